# shellcheck shell=bash
# Sourced by the job scripts, with options of LSTM/main_trainer.py as "$@". Starts the ranks of a run under PBS (Polaris),
# under Slurm, or on a machine without a scheduler, and ends the script.
#
# Every variable of exp_configs/$config.conf can be set from outside (lr=0.05 bash lstm_oktopk.sh), and these:
#
#   DRY_RUN=1    print the launch command instead of running it
#   config       which of exp_configs: the name of one, for they are shell and are run
#   resume       auto: go on with the newest run of the same name, or begin one, so that a job that met its wall time
#                is sent again as it is; or the folder of a run
#   checkpoint_interval   steps (500) or minutes (5m) from one checkpoint to the next
#   nworkers     ranks; by default nwpernode on each node of the job, and 2 without a scheduler
#   nwpernode    ranks of a node; by default 4, the GPUs of a Polaris node, or what Slurm was asked for
#   depth        cores of a rank; by default 8 under PBS: a Polaris node has 32
#   launcher     by default srun under Slurm, otherwise mpiexec or mpirun, whichever is there
#   transport    how ranks reach each other: auto (MPI, unless torchrun started them), mpi, or torch, which needs no mpi4py
#                and, on one machine, no MPI: where there is no launcher, torchrun starts the ranks
#   MASTER_ADDR  where ranks meet with transport=torch; by default the job's first host, and a port of the job's own:
#   MASTER_PORT  two runs at once in one job need two
#   placement    the launcher's words about nodes and cores, where its defaults below do not fit a site
#   modulefiles  where PBS jobs find the module conda; by default Polaris' /soft/modulefiles
#   venv         the environment to enter when none is active; by default .venv in the project's folder
#   program      what the ranks run; scripts/doctor.py instead of the training checks the job's surroundings

set -euo pipefail

config="${config:-lstman4}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '== %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

is_dry() { [[ ! "${DRY_RUN:-0}" =~ ^(0|false|False|no)$ ]]; }

# What stops a run is worth a word in a dry run, and no more: login nodes lack what compute nodes have.
fail_unless_dry() {
    is_dry || fail "$@"
    printf 'warning: %s\n' "$*" >&2
}

has() { command -v "$1" >/dev/null; }

# Each of these variables that is set is a whole number above 0.
check_counts() {
    local name
    for name in "$@"; do
        [[ "${!name:-1}" =~ ^[1-9][0-9]*$ ]] || fail "$name=${!name}: expected a whole number above 0"
    done
}

read_config() {
    local file="$root/exp_configs/$config.conf"
    [[ "$config" != */* ]] || fail "config=$config: expected the name of one in exp_configs, without its folder"
    [[ -f "$file" ]] || fail "config=$config: there is no $file; exp_configs holds $(cd "$root/exp_configs" && echo ./*)"
    [[ "$(<"$file")" != *$'\r'* ]] || fail "$file has the line ends of Windows; take them out with: sed -i 's/\r\$//' $file"
    "$BASH" -eu "$file" >/dev/null || fail "$file ends with an error: it should be a list of values, and nothing else"
    # shellcheck source=exp_configs/quickstart.conf
    source "$file"
    local name
    for name in dnn dataset data_dir batch_size max_epochs lr compression compressor density sigma_scale warmup_iters; do
        [[ -n "${!name-}" ]] || fail "$file sets no $name"
    done
}

check_transport() {
    transport="${transport:-auto}"
    [[ "$transport" =~ ^(auto|mpi|torch)$ ]] || fail "transport=$transport: expected auto, mpi or torch"
}

read_allocation() {
    if [[ -n "${PBS_NODEFILE-}" ]]; then
        scheduler=pbs
        # An interactive job stays in the folder that its user went to.
        [[ "${PBS_ENVIRONMENT-}" == PBS_INTERACTIVE ]] || cd "${PBS_O_WORKDIR:-.}" 2>/dev/null ||
            fail "PBS_O_WORKDIR=$PBS_O_WORKDIR cannot be entered; send the job from a folder that its nodes see"
        [[ -f "$PBS_NODEFILE" && -r "$PBS_NODEFILE" ]] ||
            fail "PBS_NODEFILE=$PBS_NODEFILE cannot be read; is this shell inside the job?"
        nodes="$(while read -r node _; do [[ -z "$node" ]] || echo "$node"; done <"$PBS_NODEFILE" | sort -u | wc -l)"
        ((nodes > 0)) || fail "PBS_NODEFILE=$PBS_NODEFILE names no node; is this shell inside the job?"
    elif [[ -n "${SLURM_JOB_ID-}" ]]; then
        scheduler=slurm
        check_counts SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK
        nodes="${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}"
        tasks="${SLURM_NTASKS:-$((nodes * ${SLURM_NTASKS_PER_NODE:-4}))}"
        nworkers="${nworkers:-$tasks}"
        nwpernode="${nwpernode:-${SLURM_NTASKS_PER_NODE:-$(((tasks + nodes - 1) / nodes))}}"
    else
        scheduler=none
        nodes=1
        nworkers="${nworkers:-2}"
        nwpernode="${nwpernode:-$nworkers}"
    fi
}

# What is active already is used; otherwise Polaris' conda, and the environment that stands over it.
enter_environment() {
    modulefiles="${modulefiles:-/soft/modulefiles}"
    venv="${venv:-$root/.venv}"
    if [[ -z "${VIRTUAL_ENV-}" ]]; then
        set +u # the scripts of conda and of modules use variables that are not set
        if [[ "$scheduler" == pbs && -z "${CONDA_PREFIX-}" && -d "$modulefiles" ]]; then
            module use "$modulefiles"
            module load conda
            conda activate base
        fi
        # shellcheck source=/dev/null
        [[ ! -f "$venv/bin/activate" ]] || source "$venv/bin/activate"
        set -u
    fi
    python="$(command -v python || command -v python3)" ||
        fail "there is no python; run 'bash scripts/test.sh' once to set one up, or activate an environment"
}

count_ranks() {
    check_counts nworkers nwpernode
    nwpernode="${nwpernode:-4}"
    nworkers="${nworkers:-$((nodes * nwpernode))}"
    ((nworkers <= nodes * nwpernode)) ||
        fail "nworkers=$nworkers, but there is room for $((nodes * nwpernode)) ($nodes nodes, nwpernode=$nwpernode);" \
            "ask for $(((nworkers + nwpernode - 1) / nwpernode)) nodes or set nworkers=$((nodes * nwpernode))"
    ((nworkers >= nwpernode)) || nwpernode="$nworkers"
    ((nworkers % nwpernode == 0)) ||
        fail "nworkers=$nworkers cannot be shared evenly by nodes of nwpernode=$nwpernode;" \
            "set nworkers=$((nworkers / nwpernode * nwpernode))"
}

choose_launch() {
    local default words
    if needs_torchrun; then
        launch=("$python" -m torch.distributed.run --standalone --nproc-per-node "$nworkers" --no-python)
        choose_devices
        return
    fi
    [[ -z "${launcher-}" ]] || has "$launcher" ||
        fail_unless_dry "launcher=$launcher: there is no such command on the PATH; leave the choice to this script"
    case "$scheduler" in
        pbs)
            depth="${depth:-8}"
            launcher="${launcher:-$(first_of mpiexec mpirun)}"
            default="--ppn $nwpernode --depth=$depth --cpu-bind depth"
            launch=("$launcher" -n "$nworkers")
            ;;
        slurm)
            depth="${depth:-${SLURM_CPUS_PER_TASK:-1}}"
            launcher="${launcher:-$(first_of srun)}"
            default="--ntasks-per-node=$nwpernode --cpus-per-task=$depth"
            launch=("$launcher" --ntasks="$nworkers")
            ;;
        none)
            launcher="${launcher:-$(first_of mpiexec mpirun)}"
            default=""
            launch=("$launcher" -n "$nworkers")
            ;;
    esac
    read -ra words <<<"${placement-$default}"
    ((${#words[@]} == 0)) || launch+=("${words[@]}")
    [[ "$transport" != torch ]] || choose_meeting_point
    choose_devices
}

# Torch's own launcher, for one machine that has no other.
needs_torchrun() {
    [[ "$transport" == torch && "$nodes" == 1 && -z "${launcher-}" ]] && ! has mpiexec && ! has mpirun && ! has srun
}

# On the host of rank 0. The launcher's own command line says it to ranks too: Open MPI takes no variables elsewhere.
choose_meeting_point() {
    local id="${PBS_JOBID-}"
    [[ "$scheduler" == pbs ]] || id="${SLURM_JOB_ID-}"
    id="${id%%.*}" # of 1234[5].server, the number and its place in the array
    id="${id//[^0-9]/}"
    check_counts MASTER_PORT
    MASTER_ADDR="${MASTER_ADDR:-$(first_host)}"
    MASTER_PORT="${MASTER_PORT:-$((20000 + 10#${id:-$$} % 10000))}"
    export MASTER_ADDR MASTER_PORT
    launch+=(env "MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$MASTER_PORT")
}

first_host() {
    local host=""
    case "$scheduler" in
        pbs) while [[ -z "$host" ]] && read -r host _; do :; done <"$PBS_NODEFILE" ;;
        slurm)
            if has scontrol; then read -r host < <(scontrol show hostnames "${SLURM_JOB_NODELIST-}") || :; fi
            host="${host:-${SLURMD_NODENAME:-$HOSTNAME}}"
            ;;
        none) host=127.0.0.1 ;;
    esac
    echo "$host"
}

choose_devices() {
    if [[ "$scheduler" != none ]] || has nvidia-smi; then launch+=("$root/LSTM/rank_device.sh"); fi
    if [[ "$scheduler" == pbs ]]; then export MPICH_GPU_SUPPORT_ENABLED="${MPICH_GPU_SUPPORT_ENABLED:-1}"; fi
}

# The first of these commands that is here; in a dry run, the first.
first_of() {
    local name
    for name in "$@"; do
        if has "$name"; then
            echo "$name"
            return
        fi
    done
    fail_unless_dry "there is no ${*//mpirun/nor mpirun} on the PATH; load the module that brings it, or activate the" \
        "environment that has it (bash scripts/test.sh makes one); on one machine, transport=torch needs none"
    echo "$1"
}

check_mpi4py() {
    [[ "$transport" != torch ]] || return 0
    "$python" -c 'import mpi4py' 2>/dev/null ||
        fail_unless_dry "$python has no mpi4py; on a cluster build it against the system's MPI:" \
            "MPICC='cc -shared' $python -m pip install --no-binary=mpi4py mpi4py; or do without: transport=torch"
}

check_data() {
    local word file="an4_train_manifest.csv" make="python scripts/prepare_an4.py --synthetic makes it"
    for word in "$@"; do
        case "$word" in --data[-_]dir*) return ;; esac # it wins, and main_trainer.py looks for itself
    done
    if [[ "$dataset" == ptb ]]; then
        file="ptb.train.txt"
        make="put the text there, or name its folder: data_dir=FOLDER"
    fi
    [[ -f "$data_dir/$file" || -f "$root/$data_dir/$file" ]] ||
        fail_unless_dry "the data are missing: there is no $data_dir/$file here or in $root;" \
            "$make (on a login node: compute nodes reach no network)"
}

check_gpus() {
    local gpus
    has nvidia-smi || return 0
    gpus="$(nvidia-smi -L | wc -l)"
    ((gpus >= nwpernode)) ||
        printf 'warning: %s ranks of a node share %s GPUs; nwpernode=%s gives each its own\n' \
            "$nwpernode" "$gpus" "$gpus" >&2
}

read_config
check_transport
read_allocation
enter_environment
count_ranks
choose_launch
check_mpi4py
check_gpus

program="${program:-$root/LSTM/main_trainer.py}"
command=("${launch[@]}" "$python" "$program")
if [[ "$program" == */main_trainer.py ]]; then
    check_data "$@"
    command+=(
        --dnn "$dnn" --dataset "$dataset" --data-dir "$data_dir" --batch-size "$batch_size"
        --nworkers "$nworkers" --nwpernode "$nwpernode" --lr "$lr" --max-epochs "$max_epochs"
        --compression "$compression" --compressor "$compressor" --density "$density"
        --sigma-scale "$sigma_scale" --warmup-iters "$warmup_iters"
    )
    [[ -z "${hidden_size-}" ]] || command+=(--hidden-size "$hidden_size")
    [[ -z "${hidden_layers-}" ]] || command+=(--hidden-layers "$hidden_layers")
    [[ -z "${resume-}" ]] || command+=(--resume "$resume")
    [[ -z "${checkpoint_interval-}" ]] || command+=(--checkpoint-interval "$checkpoint_interval")
fi
case "$program" in
    */main_trainer.py | */doctor.py | */bench_allreduce.py)
        [[ "$transport" == auto ]] || command+=(--transport "$transport")
        ;;
esac
command+=("$@")

if is_dry; then
    printf '%q' "${command[0]}"
    printf ' %q' "${command[@]:1}"
    echo
    exit
fi
say "$nworkers ranks on $nodes node(s)"
exec "${command[@]}"
