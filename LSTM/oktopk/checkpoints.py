"""Checkpoints of a job: a folder for each, with a part from every rank, which counts once all parts are there.

    checkpoints = Checkpoints("checkpoints")              # all ranks call this, and the rest, alike
    found = checkpoints.load()                            # the newest whole one, or None
    ...
    checkpoints.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

On another number of ranks than it was saved on, a rank gets the state of one of them, with all residuals shared out.
"""

import json
import logging
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from . import tensor_files
from .communicator import Communicator
from .shares import regrouped, sources
from .tensor_files import DamagedFile, StrangeContent
from .transports import connect, over

log = logging.getLogger("oktopk.checkpoints")

WHOLE = "whole.json"  # written last: sizes and checksums of all parts
COMMON = "common.pt"
MOST_OF_AN_INDEX = 1 << 24  # bytes
BEFORE = ".before"  # of a folder whose step is saved once more
_FOLDER = re.compile(r"step-(\d{1,18})(\.before)?")


class CheckpointError(RuntimeError):
    """None was written, or none can be read. It says why, on all ranks."""


class Checkpoint(NamedTuple):
    step: int
    ranks: int  # that saved it
    state: dict  # this rank's
    common: object  # what rank 0 saved for all


class Checkpoints:
    """`communicator` is one of ours, an mpi4py one, a process group, or None for all ranks that were started."""

    def __init__(self, folder, communicator=None, keep=3):
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint is kept")
        self.folder, self.keep = Path(folder), keep
        self._came_to = None  # the step that was loaded or saved last
        self._owns_communicator = not isinstance(communicator, Communicator)
        self._communicator = connect() if communicator is None else over(communicator)

    def save(self, step, state, common=None):
        """Write this rank's `state`, and rank 0's `common`: dictionaries, lists, tensors and plain values.

        Older ones than the newest `keep` go, once this one is whole; one of the same step counts until then. Where
        some are of later steps, all after what was loaded or saved last are of another past, and go; where nothing
        was, none is touched and nothing is saved.
        """
        if step < 0:
            raise ValueError(f"step {step}: steps are counted from 0")
        place = self.folder / f"step-{step:08d}"
        self._on_first(lambda: self._make_way_for(step))
        try:
            self._on_first(lambda: _make_room(place))
            files = self._write_parts(place, state, common)
            self._on_first(lambda: self._complete(place, {"step": step, **files}))
        except CheckpointError:
            if self._communicator.rank == 0:  # the disk may be full because of it
                _give_up(place)
            raise
        self._came_to = step

    def _make_way_for(self, step):
        later = [each for each in self.steps() if each > step]
        if not later:
            return
        if self._came_to is None or self._came_to > step:
            raise StrangeContent(
                f"{self.folder} has a checkpoint of step {later[0]} from before, which is later than {step}: go on "
                "from what load() gives, or choose another folder"
            )
        self._discard_after(self._came_to)

    def _write_parts(self, place, state, common):
        rank = self._communicator.rank
        parts = {_part(rank): state, **({COMMON: common} if rank == 0 and common is not None else {})}
        everyones = self._everyones(
            lambda: {name: tensor_files.write(place / name, part) for name, part in parts.items()}
        )
        return {
            "ranks": len(everyones),
            "files": {name: written for each in everyones for name, written in each.items()},
        }

    def _complete(self, place, index):
        tensor_files.write_bytes(place / WHOLE, json.dumps(index).encode())
        tensor_files.sync_folder(self.folder)
        kept = {path for _, path in sorted(_whole(self.folder).items())[-self.keep :]}
        with suppress(OSError):  # what cannot go now may go the next time
            for step, path in _folders(self.folder):
                if path not in kept and step <= index["step"]:
                    _remove(path)

    def steps(self):
        """Those that count, the newest first."""
        return sorted(_whole(self.folder), reverse=True)

    def discard_after(self, step):
        """Whoever goes on from here comes to later steps again, and what was saved there is of another past."""
        self._on_first(lambda: self._discard_after(step))

    def _discard_after(self, step):
        for later, path in _folders(self.folder):
            if later > step:
                _remove(path)

    def load(self, step=None):
        """The newest whole one, or that of a step; None if there is none at all. Damaged ones are said and passed."""
        (steps,) = self._everyones(lambda: self.steps() if self._communicator.rank == 0 else None)[:1]
        wanted = [each for each in steps if step in (None, each)]
        reasons = []
        for candidate in wanted:
            try:
                return self._load(candidate)
            except CheckpointError as error:
                reasons.append(str(error))
                if self._communicator.rank == 0 and candidate != wanted[-1]:
                    log.warning("%s; the checkpoint before it is taken", error)
        if reasons:
            raise CheckpointError(f"no checkpoint in {self.folder} can be used: {reasons[-1]}")
        if step is not None:
            raise CheckpointError(f"there is no whole checkpoint of step {step} in {self.folder}")
        return None

    def _load(self, step):
        rank, size = self._communicator.rank, self._communicator.size
        place = _whole(self.folder).get(step, self.folder)

        def read():
            index = _read_index(place, step)
            old, takers = sources(rank, size, index["ranks"])
            states = [_read_part(place, _part(each), index) for each in old]
            common = _read_part(place, COMMON, index) if COMMON in index["files"] else None
            state = states[0] if index["ranks"] == size else _regrouped(place, states, rank, size, takers)
            return index["ranks"], state, common

        found = []
        self._everyones(lambda: found.append(read()))
        self._came_to = step
        return Checkpoint(step, *found[0])

    def close(self):
        """At the end, on all ranks."""
        if self._owns_communicator:
            self._communicator.close()

    def _on_first(self, action):
        self._everyones(lambda: action() if self._communicator.rank == 0 else None)

    def _everyones(self, action):
        """What the action returns on each rank, if JSON has it. Where it fails on any, all raise the same."""
        try:
            said = {"value": action()}
        except (DamagedFile, StrangeContent) as error:
            said = {"error": str(error)}
        except OSError as error:
            said = {"error": f"{error.filename or self.folder}: {error.strerror or error}"}
        own = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        lengths = self._communicator.allgather(torch.tensor([own.numel()])).flatten().tolist()
        parts = self._communicator.allgatherv(own, lengths).split(lengths)
        everyone = [json.loads(part.numpy().tobytes()) for part in parts]
        errors = [f"on rank {rank}: {each['error']}" for rank, each in enumerate(everyone) if "error" in each]
        if errors:
            raise CheckpointError(errors[0].removeprefix("on rank 0: "))
        return [each["value"] for each in everyone]


def _part(rank):
    return f"rank-{rank}.pt"


def _folders(folder):
    """(step, its folder, whole or not); one that is replaced just now has two."""
    if not folder.is_dir():
        return []
    named = ((_FOLDER.fullmatch(path.name), path) for path in sorted(folder.iterdir(), reverse=True))
    return [(int(match[1]), path) for match, path in named if match and path.is_dir()]


def has_checkpoints(folder):
    """Whether there is one that counts."""
    return bool(_whole(Path(folder)))


def _whole(folder):
    """step -> folder, of those that count."""
    return {step: path for step, path in _folders(folder) if (path / WHOLE).exists()}


def _make_room(place):
    before = place.with_name(place.name + BEFORE)
    if (place / WHOLE).exists():
        if before.exists():
            _remove(before)
        place.rename(before)
    elif place.exists():
        _remove(place)
    place.mkdir(parents=True)


def _give_up(place):
    """Back to the checkpoint of this step that there was, if any."""
    before = place.with_name(place.name + BEFORE)
    with suppress(OSError):
        if place.exists() and not (place / WHOLE).exists():
            _remove(place)
        if before.exists():
            before.rename(place)


def _remove(place):
    """It stops to count before its parts go. What a link leads to stays: it may be anybody's."""
    if place.is_symlink():
        place.unlink()
        return
    (place / WHOLE).unlink(missing_ok=True)
    shutil.rmtree(place)


def _read_index(place, step):
    """The index of a checkpoint, once it is known to be that of this step, with a part from each of its ranks."""
    path = place / WHOLE
    try:
        if not path.is_file() or path.stat().st_size > MOST_OF_AN_INDEX:
            raise ValueError
        index = json.loads(path.read_bytes())
        ranks, names = index["ranks"], index["files"].keys() - {COMMON}
        if index["step"] != step or type(ranks) is not int or len(names) != ranks or _part(ranks - 1) not in names:
            raise ValueError
        if names != {_part(rank) for rank in range(ranks)}:
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DamagedFile(f"{path} is not the index of a checkpoint, or it is damaged") from None
    return index


def _read_part(place, name, index):
    try:
        size, digest = index["files"][name]
    except (ValueError, TypeError):
        raise DamagedFile(f"{place / WHOLE} is not the index of a checkpoint, or it is damaged") from None
    try:
        return tensor_files.read(place / name, size, digest)
    except FileNotFoundError:
        raise DamagedFile(f"{place / name} is missing") from None


def _regrouped(place, states, rank, size, takers):
    try:
        return regrouped(states, rank, size, takers)
    except (LookupError, TypeError, RuntimeError, AttributeError):
        raise DamagedFile(f"{place}: the parts of its ranks do not fit each other") from None
