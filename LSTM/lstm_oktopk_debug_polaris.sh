#!/bin/bash -l
#PBS -q debug
#PBS -l select=2:system=polaris
#PBS -l place=scatter
#PBS -l walltime=00:30:00
#PBS -l filesystems=home:eagle
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:30:00
# Ok-Topk for two epochs, in the debug queue of Polaris: bash LSTM/lstm_oktopk_debug_polaris.sh [options of main_trainer.py]
# On a cluster: qsub -A PROJECT LSTM/lstm_oktopk_debug_polaris.sh, or sbatch -A PROJECT LSTM/lstm_oktopk_debug_polaris.sh
config="${config:-lstm_debug}"
compressor="${compressor:-oktopk}"
# Batch systems run a copy of this file from elsewhere, so the folder that the job was sent from is looked in too.
home="${OKTOPK_HOME:-${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-.}}}"
for folder in "$(dirname "$0")" "$home"{/LSTM,}; do
    # shellcheck source=LSTM/launch.sh
    if [[ -f "$folder/launch.sh" ]]; then source "$folder/launch.sh"; fi
done
echo "error: there is no launch.sh in $home; send the job from the project's folder, or name that in OKTOPK_HOME" >&2
exit 2
