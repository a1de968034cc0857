#!/usr/bin/env bash
# Started for each rank, in front of its program: gives the rank a GPU of its own before Python can look at any.
# In reverse of the local rank, because on Polaris GPU 3 is the one beside the cores of local rank 0.
set -euo pipefail

local_rank=0
for name in LOCAL_RANK PMI_LOCAL_RANK PALS_LOCAL_RANKID SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID; do
    if [[ -n "${!name-}" ]]; then # torchrun's comes first: it may be one of Slurm's tasks
        local_rank="${!name}"
        break
    fi
done
if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
    IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES" # those that the scheduler left us
else
    mapfile -t devices < <(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)
fi
count="${#devices[@]}"
if ((count)); then export CUDA_VISIBLE_DEVICES="${devices[count - 1 - local_rank % count]}"; fi
exec "$@"
