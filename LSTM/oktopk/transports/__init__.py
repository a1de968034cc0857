"""How ranks reach each other: a file for each transport.

Each has `connect()`, which gives a `Communicator` over all ranks that were started. A new file here is a new transport,
by its name.
"""

import importlib
import pkgutil

from ..launchers import launched_ranks

AUTO = "auto"


def names():
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def connect(name=AUTO):
    """A communicator over all ranks. "auto": MPI, or one rank alone where there is none and nothing was launched."""
    if name == AUTO:
        name = "mpi" if launched_ranks() > 1 or _load("mpi").is_there() else "alone"
    if name not in names():
        raise ValueError(f"there is no transport {name!r}; there are {', '.join(names())}")
    return _load(name).connect()


def _load(name):
    return importlib.import_module(f".{name}", __name__)
