"""The start of a job, when ranks wait for others and cannot speak to any yet."""

import os
import subprocess
import sys
from contextlib import contextmanager

from . import gate
from .launchers import end_all_ranks_with_this_one, launched, launched_ranks
from .watchdog import limit

LOCAL_SIZE_VARIABLE = "MPI_LOCALNRANKS"  # set by MPICH's launcher; Open MPI yields by itself when cores are short
YIELD_VARIABLE = "MPIR_CVAR_POLLS_BEFORE_YIELD"


@contextmanager
def waited_for(what):
    """Ranks that wait in this block for others that were started with them do not wait for ever."""
    rank, size = launched()
    if size == 1 or not limit():
        yield
        return
    words = map(str, (limit(), what, rank, size, os.getppid()))
    program = [sys.executable, "-I", "-S", gate.__file__, *words]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def mpi():
    """mpi4py.MPI, started; a RuntimeError says why not. From now on an uncaught error of this rank ends all of them."""
    if "mpi4py.MPI" not in sys.modules:
        _yield_if_crowded()
        with waited_for("the start of MPI"):
            _import()
    end_all_ranks_with_this_one(sys.modules["mpi4py.MPI"])
    return sys.modules["mpi4py.MPI"]


def _import():
    try:
        import mpi4py.MPI  # noqa: F401 - which starts it
    except (ImportError, RuntimeError) as error:
        ranks = f"the launcher started {launched_ranks()} ranks, but " if launched_ranks() > 1 else ""
        raise RuntimeError(f"{ranks}MPI cannot be used ({error}); install an MPI and mpi4py") from None


def _yield_if_crowded():
    """With more ranks than cores, let MPICH's ranks that wait make room. It reads this when it starts."""
    if int(os.environ.get(LOCAL_SIZE_VARIABLE, 1)) > len(cores()):
        os.environ.setdefault(YIELD_VARIABLE, "0")


def cores():
    """The cores that this process may use; a launcher may have bound it to a few."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
