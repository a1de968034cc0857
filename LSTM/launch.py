"""The launcher and its job: what it says it has started, and ending all of it when one rank fails."""

import os
import sys
import threading
import traceback

SECONDS_TO_BE_HEARD = 0.5
LAUNCHED_RANKS = {  # how many ranks a launcher says there are, and which of them this is
    "PMI_SIZE": "PMI_RANK",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PALS_SIZE": "PALS_RANKID",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",  # of what srun started; SLURM_NTASKS is the whole job's
}


def abort_all_ranks_on_uncaught_errors():
    """An error that ends one rank ends the job: otherwise the others would wait for it in their next collective."""
    from mpi4py import MPI

    previous = sys.excepthook
    if MPI.COMM_WORLD.Get_size() == 1 or getattr(previous, "aborts_all_ranks", False):
        return

    def hook(kind, error, trace):
        if issubclass(kind, SystemExit):
            previous(kind, error, trace)
            return
        sys.stderr.write(f"rank {MPI.COMM_WORLD.Get_rank()}: {''.join(traceback.format_exception(error))}")
        end_all_ranks(1)

    hook.aborts_all_ranks = True
    sys.excepthook = hook


def end_all_ranks(status):
    """Abort the job, once the launcher has had time to pass on what was said: it drops what is still in its pipes."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    threading.Event().wait(SECONDS_TO_BE_HEARD)
    MPI.COMM_WORLD.Abort(status)


def launched_ranks():
    """How many ranks the launcher says that it started; 1 without one."""
    said = (os.environ.get(name, "") for name in LAUNCHED_RANKS)
    return max((int(size) for size in said if size.isdigit()), default=1)


def ranks_that_mpi_does_not_see(size):
    """A launcher that started N ranks while MPI sees one: two MPI libraries, of which mpi4py has the wrong one.

    Returns the sentence that says so, or None.
    """
    launched = launched_ranks()
    if launched == 1 or size > 1:
        return None
    return (
        f"the launcher started {launched} ranks, but MPI sees only this one: mpi4py was built against another "
        'MPI than the launcher\'s; rebuild it with MPICC="cc -shared" pip install --no-binary=mpi4py mpi4py'
    )
