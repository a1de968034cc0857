"""Why sparse training converges: `--inspect N` looks, every N steps, at what is chosen and at what stays behind.

1. Before a reduction, an inspector counts the gradient's magnitudes and keeps a copy of the accumulated gradient: with
   the residual, what this rank could send. (With momentum correction, the velocity stands for the gradient.)
2. After it, the ranks form the mean of these copies; its k largest are the true choice, with which the own one and the
   result are compared. That goes over a communicator of its own, and counts in no step's bytes and seconds.
3. After the step, figures are added up over the ranks, and rank 0 writes them down (inspection_files.py).

Ages of residual entries need every sparse step, not only those that are inspected.
"""

import logging
import time
from contextlib import contextmanager

import torch

from .inspection_figures import Ages, by_parameter, energy, in_both, largest, powers_of_two
from .inspection_files import record_of

log = logging.getLogger("oktopk")


def inspector_of(every, ranks, averager, run):
    """All ranks call it. Without `every` there is none, and reducers know of none."""
    if every is None:
        return NoInspector()
    inspector = Inspector(every, ranks.new_communicator("inspection"), run)
    averager.inspect(inspector)
    if averager.is_sparse_now:
        log.info("--inspect: ages of residual entries are counted from here on")
    return inspector


class NoInspector:
    seconds = 0.0

    def begin_step(self, number):
        pass

    def end_step(self, step):
        pass


class Inspector:
    """One rank's. `seconds` is what it has taken in this step, on this rank, waiting for others included."""

    def __init__(self, every, communicator, run):
        self._every, self._communicator, self._run = every, communicator, run
        self._ages = {}  # by merged gradient
        self.begin_step(0)

    def begin_step(self, number):
        self.seconds, self._looks, self._whole = 0.0, number % self._every == 0, None
        self._sums, self._selected = {}, {}

    def end_step(self, step):
        """A step that was skipped has reduced nothing."""
        if not self._sums:
            return
        with self._timed():
            sums = self._over_the_ranks()
        steps = max((ages.steps for ages in self._ages.values()), default=0)
        about = {"iter": step.iter, "epoch": step.epoch, "phase": step.phase, "seconds": self.seconds}
        self._run.inspection({**about, **record_of(sums, self._communicator.size, steps, self._selected)})

    # What a reducer calls.

    def before(self, reducer):
        if not self._looks:
            return
        with self._timed():
            gradient, residual = reducer.merged.gradient, reducer.residual
            self._add("gradient", powers_of_two(gradient), energy(gradient))
            if reducer.is_sparse_now:
                self._whole = gradient.clone() if residual is None else residual + gradient

    def after(self, reducer, chosen, reduction):
        if reduction is None:
            return
        with self._timed():
            merged = reducer.merged
            if merged.name not in self._ages:
                self._ages[merged.name] = Ages(merged.size, merged.gradient.device)
            self._ages[merged.name].step(reduction.delivered)
            if self._looks:
                self._look(reducer, chosen, reduction)

    def _look(self, reducer, chosen, reduction):
        merged, residual, result = reducer.merged, reducer.residual, _indices(reduction)
        whole, self._whole = self._whole, None
        self._add("energy", energy(whole), energy(whole[chosen.indices]), energy(reduction.delivered.values))
        self._communicator.allreduce(whole, op="mean")
        true = largest(whole, reducer.k)
        del whole  # as large as the gradient, and ages are too
        self._add("overlap", true.numel(), in_both(chosen.indices, true), in_both(result, true))
        self._add("residual", powers_of_two(residual), energy(residual))
        self._add("ages", *self._ages[merged.name].of(residual))
        self._selected |= by_parameter(result, {name: view.numel() for name, view in merged.views.items()})

    # Sums over merged gradients, and over ranks.

    def _add(self, name, *figures):
        flat = torch.cat([torch.as_tensor(each, dtype=torch.float64).reshape(-1).cpu() for each in figures])
        self._sums[name] = self._sums.get(name, 0) + flat

    def _over_the_ranks(self):
        lengths = [each.numel() for each in self._sums.values()]
        together = torch.cat(list(self._sums.values()))
        self._communicator.allreduce(together)
        return {name: part.tolist() for name, part in zip(self._sums, together.split(lengths), strict=True)}

    @contextmanager
    def _timed(self):
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


def _indices(reduction):
    """Of the entries of the result."""
    if reduction.dense_mean is None:
        return reduction.mean.indices
    return reduction.dense_mean.nonzero().squeeze(1).int()
