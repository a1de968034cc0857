"""What one rank can see of its host, its packages and its launcher, as facts; scripts/doctor.py judges them.

Importing this needs no package, and a package that is missing or broken is a fact like others.
"""

import importlib
import os
import platform
from collections import defaultdict
from importlib import metadata

import _project
from oktopk.launchers import LAUNCHED_RANKS, OWN_PLACE, rendezvous_is_known

MANIFESTS = ("an4_train_manifest.csv", "an4_val_manifest.csv")


def attempt_import(name):
    """The module and None, or None and what went wrong; a library that does not load says so in several ways."""
    try:
        return importlib.import_module(name), None
    except (ImportError, OSError, RuntimeError) as error:
        return None, " ".join(str(error).split())


def launched():
    """What the launcher says: (variable, ranks, this rank); None if there is none. Torchrun's may be MPI's too."""
    if rendezvous_is_known():
        rank, size = OWN_PLACE
        return size, int(os.environ[size]), int(os.environ[rank])
    for size, rank in LAUNCHED_RANKS.items():
        if os.environ.get(size, "").isdigit():
            return size, int(os.environ[size]), int(os.environ.get(rank, "0"))
    return None


class BareRanks:
    """MPI's ranks where torch does not load on each: too little for a run, enough to compare what they see."""

    def __init__(self, comm):
        self.rank, self.size, self.everyones = comm.Get_rank(), comm.Get_size(), comm.allgather


def meet(transport, mpi):
    """(ranks, communicator, None) as a run would have them; what there is no way to is None, and the last says why."""
    training, fault = attempt_import("oktopk_training.ranks")
    if mpi and any(mpi.COMM_WORLD.allgather(fault is not None)):
        return BareRanks(mpi.COMM_WORLD), None, fault or "torch does not load on another rank"
    if not training:
        return None, None, fault
    try:
        communicator = training.transports.connect(transport)
    except (RuntimeError, ValueError) as error:
        return None, None, " ".join(str(error).split())
    return training.Ranks(communicator), communicator, None


def name_of(communicator):
    """That of its transport, as --transport takes it."""
    return type(communicator).__module__.rpartition(".")[2]


def backends(torch):
    """What torch.distributed could carry messages by here."""
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()]


def look_around(data_dir):
    """What one rank sees. Rank 0 compares."""
    torch, torch_fault = attempt_import("torch")
    devices = torch.cuda.device_count() if torch else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices))))
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name, _ in requirements()},
        "torch_fault": torch_fault,
        "backends": backends(torch),
        "first_device": visible.split(",")[0] if devices else None,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count())),
        "data": [name for name in MANIFESTS if (data_dir / name).is_file()],
    }


def requirements():
    """(package, oldest version) for each line of requirements.txt."""
    lines = (_project.ROOT / "requirements.txt").read_text().splitlines()
    return [tuple(line.split(">=")) for line in lines if line and not line.startswith("#")]


def installed_version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def by_host(ranks):
    hosts = defaultdict(list)
    for rank in ranks:
        hosts[rank["host"]].append(rank)
    return hosts
