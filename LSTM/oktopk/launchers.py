"""What is known of the other ranks without a package: others ask before they load any."""

import atexit
import os
import sys
import threading

LAUNCHED_RANKS = {  # how many ranks a launcher says there are, and which of them this is
    "PMI_SIZE": "PMI_RANK",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PALS_SIZE": "PALS_RANKID",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",  # of what srun started; SLURM_NTASKS is the whole job's
}
MEETING_POINT = ("MASTER_ADDR", "MASTER_PORT")  # of torch.distributed's ranks
OWN_PLACE = ("RANK", "WORLD_SIZE")  # torchrun's; without a meeting point, anybody's
SECONDS_TO_BE_HEARD = 0.5


class LostRanks(RuntimeError):
    """Another rank failed or is gone, so what this one waits for will not come. `told`: that one has said why."""

    def __init__(self, message, told=False):
        super().__init__(message)
        self.told = told


def launched():
    """(this rank, number of ranks) as the launcher says; (0, 1) without one. Torchrun may be under another's ranks."""
    if rendezvous_is_known():
        return tuple(int(os.environ[name]) for name in OWN_PLACE)
    places = ((os.environ.get(rank, ""), os.environ.get(size, "")) for size, rank in LAUNCHED_RANKS.items())
    said = [(int(rank or 0), int(size)) for rank, size in places if size.isdigit()]
    return max(said, key=lambda place: place[1], default=(0, 1))


def launched_ranks():
    """How many ranks the launcher says that it started; 1 without one."""
    return launched()[1]


def rendezvous_is_known(of_all_ranks=True):
    """Whether torchrun, or somebody in its way, has said where the ranks meet, and by default also who is who."""
    names = MEETING_POINT + OWN_PLACE if of_all_ranks else MEETING_POINT
    return all(os.environ.get(name) for name in names)


def ranks_that_are_not_seen(size):
    """A launcher that started N ranks of which each sees itself alone: the sentence that says so, or None."""
    launched = launched_ranks()
    if launched == 1 or size > 1:
        return None
    return (
        f"the launcher started {launched} ranks, but MPI sees only this one: mpi4py was built against another "
        'MPI than the launcher\'s; rebuild it with MPICC="cc -shared" pip install --no-binary=mpi4py mpi4py'
    )


def abort(mpi, status):
    """End the ranks of MPI, once the launcher has had time to pass on what was said: it drops what is in its pipes."""
    sys.stdout.flush()
    sys.stderr.flush()
    threading.Event().wait(SECONDS_TO_BE_HEARD)
    mpi.COMM_WORLD.Abort(status)


_watched = threading.Event()


def end_all_ranks_with_this_one(mpi):
    """If an uncaught error ends this interpreter, end the job: the others would wait for it in their next collective.

    Runs before mpi4py's own exit handler, which would wait for them. The host program's sys.excepthook stays its own.
    """
    if _watched.is_set() or mpi.COMM_WORLD.Get_size() == 1:
        return
    _watched.set()

    def end():
        uncaught = getattr(sys, "last_exc", getattr(sys, "last_type", None))
        if uncaught is not None and not hasattr(sys, "ps1") and not mpi.Is_finalized():
            sys.stderr.write(f"rank {mpi.COMM_WORLD.Get_rank()} failed, and ends the job on all ranks\n")
            abort(mpi, 1)

    atexit.register(end)
