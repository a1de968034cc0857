"""Gradients of a run: --record-gradients STEP writes some down, for scripts/bench_allreduce.py to measure with."""

import re
from pathlib import Path

import numpy as np
import torch

from .errors import UserError
from .files import atomic_write, make_folder
from .run_layout import GRADIENTS

STEPS = 3
_NAME = re.compile(r"step-[0-9]+-rank-(0|[1-9][0-9]{0,8})\.npy")


class Recorder:
    """Of one rank: its own gradients of a few steps, as they are handed to the reducer; a file for each."""

    def __init__(self, folder, first, rank):
        self._steps = () if first is None else range(first, first + STEPS)
        self._folder, self._rank = Path(folder) / GRADIENTS, rank

    def take(self, step, parameters):
        if step in self._steps:
            flat = torch.cat([parameter.grad.detach().reshape(-1).float().cpu() for parameter in parameters])
            with atomic_write(make_folder(self._folder) / f"step-{step}-rank-{self._rank}.npy", "wb") as file:
                np.save(file, flat.numpy())


def read_recorded(folder, rank):
    """The gradients of a rank; of one that the run did not have, those of another."""
    ranks = recorded_ranks(folder)
    if not ranks:
        raise UserError(f"{folder} has no gradients; record some by LSTM/main_trainer.py --record-gradients STEP")
    theirs = ranks[rank % len(ranks)]
    gradients = [_read(path) for path in sorted(Path(folder).glob(f"step-*-rank-{theirs}.npy"))]
    if len({gradient.numel() for gradient in gradients}) > 1:
        raise UserError(f"{folder}: gradients of rank {theirs} have several lengths; keep those of one run")
    return gradients


def recorded_ranks(folder):
    names = (_NAME.fullmatch(path.name) for path in Path(folder).glob("step-*.npy"))
    return sorted({int(name[1]) for name in names if name})


def _read(path):
    try:
        flat = np.load(path, mmap_mode="c", allow_pickle=False)  # copied where it is written to
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}); record it anew") from None
    if flat.dtype != np.float32 or flat.ndim != 1 or not flat.size:
        raise UserError(f"{path} is no gradient: it holds {flat.dtype} of shape {flat.shape}; record it anew")
    if not np.isfinite(flat).all():
        raise UserError(f"{path} holds values that are not finite, which nothing reduces; record another step")
    return torch.from_numpy(flat)
