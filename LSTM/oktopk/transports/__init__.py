"""How ranks reach each other: a file for each transport.

Each has `connect()`, which gives a `Communicator` over all ranks that were started. A new file here is a new transport,
by its name.
"""

import importlib
import pkgutil
import sys

from ..communicator import Communicator
from ..launchers import launched_ranks

AUTO = "auto"


def names():
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def connect(name=AUTO):
    """A communicator over all ranks.

    "auto": torch.distributed under torchrun or where the program has a process group, else MPI; one rank alone where
    there is neither and nothing was launched.
    """
    if name == AUTO:
        name = _usual()
    if name not in names():
        raise ValueError(f"there is no transport {name!r}; there are {', '.join(names())}")
    return _load(name).connect()


def _usual():
    if _load("torch").is_there():
        return "torch"
    return "mpi" if launched_ranks() > 1 or _load("mpi").is_there() else "alone"


def over(handle):
    """A communicator of ours, over an mpi4py communicator or a process group of torch.distributed."""
    if isinstance(handle, Communicator):
        return handle
    if type(handle).__module__.startswith("mpi4py"):
        return _load("mpi").connect(handle)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and isinstance(handle, getattr(distributed, "ProcessGroup", ())):
        return _load("torch").connect(handle)
    raise TypeError(
        "a communicator is one of oktopk's, of mpi4py's, or a process group of torch.distributed, "
        f"not {type(handle).__name__}"
    )


def _load(name):
    return importlib.import_module(f".{name}", __name__)
