# shellcheck shell=bash
# Sourced by demo.sh, test.sh and .ci/run. Leaves the project's folder in $root, and in $python an interpreter that has
# every package.
#
# An active environment (of a cluster, of conda, a virtualenv) is used as it is: only what it lacks is installed.
# With none active, .venv is made with the versions in constraints.txt. Both are quick when nothing is left to do.

set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/ready" # checksum of the requirements that are installed in full

say() { printf '== %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

has_module() { "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# Whether there is an MPI that environment $1 did not bring itself.
has_system_mpi() {
    local name path
    for name in mpiexec mpirun; do
        if path="$(command -v "$name")" && [[ "$path" != "$1"/* ]]; then return 0; fi
    done
    on_cluster
}

on_cluster() {
    [[ -n "${PBS_JOBID-}${PBS_O_WORKDIR-}${SLURM_JOB_ID-}${CRAYPE_VERSION-}${CRAY_MPICH_DIR-}" ]]
}

pip_install() {
    "$python" -m pip install --no-user "$@" ||
        fail "pip could not install into the environment of $python; if that is not yours to change, put one of your own" \
            "over it: $python -m venv --system-site-packages FOLDER && source FOLDER/bin/activate"
}

# install MPI [pip options]: MPI is `system` or `pip`.
install() {
    local mpi="$1" torch wanted
    shift
    # Torch first and pinned, so that a local CPU build of this very version is taken before any newer one.
    torch="$(grep '^torch==' "$root/constraints.txt")"
    has_module torch || pip_install "$@" "$torch"
    wanted="$(cat "$root/requirements.txt" "$root/requirements-dev.txt" | grep -v '^-r')"
    if [[ "$mpi" == system ]]; then
        # PyPI's MPICH beside another MPI is a trap: under the other's launcher, every rank believes that it is alone.
        say "There is an MPI on this system: PyPI's mpich is left out, and mpi4py built against the system's."
        wanted="$(grep -v '^mpich' <<<"$wanted")"
        has_module mpi4py || build_mpi4py
    fi
    pip_install --quiet "$@" --requirement <(printf '%s\n' "$wanted")
}

build_mpi4py() {
    local compiler="mpicc"
    [[ -z "${CRAYPE_VERSION-}" ]] || compiler="cc -shared"
    command -v "${compiler%% *}" >/dev/null ||
        fail "no ${compiler%% *} to build mpi4py with; load your system's MPI development module and try again."
    MPICC="$compiler" pip_install --no-binary=mpi4py --no-cache-dir "$(grep '^mpi4py' "$root/requirements.txt")"
}

use_active_environment() {
    local environment="$1"
    python="$environment/bin/python"
    say "Python packages: in the active environment $environment"
    is_recent "$python" || fail "$python is older than Python 3.11; activate a newer environment, or deactivate this one."
    if has_system_mpi "$environment"; then install system; else install pip; fi
}

use_own_environment() {
    local wanted mpi=pip
    python="$venv/bin/python"
    wanted="$(cat "$root"/requirements*.txt "$root/constraints.txt" | cksum)"
    # Without a stamp an earlier run was cut short somewhere, and without its base an environment is dead.
    if ! [[ -f "$stamp" ]] || ! is_recent "$python"; then
        make_venv
    elif [[ "$(<"$stamp")" == "$wanted" ]]; then
        say "Python packages: in $venv, complete"
        enter_venv
        return
    fi
    enter_venv
    say "Python packages: into $venv; this takes a few minutes, once"
    rm -f "$stamp"
    if on_cluster; then mpi=system; fi
    install "$mpi" --constraint "$root/constraints.txt"
    printf '%s\n' "$wanted" >"$stamp"
}

make_venv() {
    local base
    base="$(find_python)" || fail "Python 3.11 or newer is needed, and $(command -v python3 || echo python3) is not; install one."
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$base cannot make virtual environments; on Debian and Ubuntu, install python3-venv."
    say "A virtual environment with $base: $venv"
    "$base" -m venv --clear "$venv"
}

# Not before a new one is made: it must not be made by its predecessor.
enter_venv() {
    PATH="$venv/bin:$PATH" # its mpiexec belongs to its mpi4py
    export PATH
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        if is_recent "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

if [[ -n "${VIRTUAL_ENV:-${CONDA_PREFIX-}}" ]]; then
    use_active_environment "${VIRTUAL_ENV:-$CONDA_PREFIX}"
else
    use_own_environment
fi
