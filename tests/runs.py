"""What two runs left behind, compared bit for bit; and a disk that is full."""

import json
import resource
from contextlib import contextmanager
from pathlib import Path

import torch

from oktopk.tensor_files import read

OF_TIME = ("time", "seconds", "stages", "t_", "ms_")  # how the names of times begin
OF_THE_START = ("options", "metrics")  # in a checkpoint: what the run was told, and where metrics.jsonl ended


def records(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def figures(run):
    """All that metrics.jsonl tells, but for times, and for where a run was taken up."""
    return [_timeless(record) for record in records(run) if record.get("name") != "resumed"]


def newest_checkpoint(run):
    return max((Path(run) / "checkpoints").glob("step-*"))


def states(run):
    """Of the saved models and of all ranks' parts of the newest checkpoint, all but times."""
    saved = Path(run) / "checkpoints"
    files = [saved / "last.pt", saved / "best.pt", *newest_checkpoint(run).glob("*.pt")]
    return {path.name: _timeless(read(path)) for path in files}


def _timeless(value):
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in OF_THE_START}
        return {key: _timeless(each) for key, each in kept.items() if not str(key).startswith(OF_TIME)}
    return [_timeless(each) for each in value] if isinstance(value, list | tuple) else value


def differences_of(run, other):
    """Names of all that is not the same in both."""
    yield from differences(figures(run), figures(other), "metrics.jsonl")
    yield from differences(states(run), states(other))


def differences(one, other, where=""):
    """Where two such values differ, if only by a bit."""
    if type(one) is not type(other):
        yield where
    elif isinstance(one, dict):
        yield from (f"{where}/{key}" for key in one.keys() ^ other.keys())
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        if len(one) != len(other):
            yield where
        for index, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{where}/{index}")
    elif _bits(one) != _bits(other):
        yield where


def _bits(value):
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return value.dtype, value.shape, value.reshape(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def files_up_to(size):
    """A disk that has no room for larger ones."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
