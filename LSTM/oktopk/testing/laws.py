"""The laws of one step, on what all ranks held before and after it; in NumPy, without any of the code under test.

A law is a function that returns what breaks it, with figures, or None.
"""

import math
import pickle
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

EPSILON = 2.0**-20  # relative to the sum of magnitudes: a few float32 roundings
SMALLEST = 1.4e-45  # the spacing of denormals: dividing by P cannot be more exact than that


@dataclass
class Step:
    """One iteration. Each field has an item for each rank, of arrays of n float32 or numbers."""

    k: int
    is_dense: bool  # everything is to be delivered
    gradients: list
    before: list  # residuals
    residuals: list
    means: list
    selected: list  # entries that a rank sent of its own; None where the step was dense
    skipped: list
    precision: float = 0.0  # the share of a value that the wire may change; it stays in the residual

    @cached_property
    def acc(self):
        return [gradient + residual for gradient, residual in zip(self.gradients, self.before, strict=True)]

    @cached_property
    def mean(self):
        return self.means[0].astype(np.float64)

    @cached_property
    def tolerance(self):
        went_in = sum(np.abs(each.astype(np.float64)) for each in (*self.gradients, *self.before))
        return EPSILON * went_in + SMALLEST * len(self.acc)


def identical(step):
    for rank, mean in enumerate(step.means):
        other = np.flatnonzero(mean.view(np.int32) != step.means[0].view(np.int32))
        if len(other):
            at = other[0]
            return (
                f"the means of rank {rank} and rank 0 differ in {len(other)} elements, first at {at}: "
                f"{mean[at]:.9g} and {step.means[0][at]:.9g}"
            )
    return None


def finite(step):
    for what, arrays in (("mean", step.means), ("residual", step.residuals)):
        for rank, array in enumerate(arrays):
            bad = np.flatnonzero(~np.isfinite(array))
            if len(bad):
                return f"of finite gradients, rank {rank} got a {what} that is {array[bad[0]]} at {bad[0]}"
    if any(step.skipped):
        return f"rank {step.skipped.index(True)} skipped a step of finite gradients"
    return None


def nothing_lost(step):
    given_up = sum(each.astype(np.float64) for each in step.acc) - sum(map(np.float64, step.residuals))
    delivered = len(step.acc) * step.mean
    lost = np.abs(given_up - delivered)
    return _worst(lost, step.tolerance, "the ranks gave up", given_up, "but P times the mean is", delivered)


def dense(step):
    """Of all that is due. Where the wire keeps every bit that is gradients alone, for none is left of earlier ones."""
    if not step.is_dense:
        return None
    due = step.acc if step.precision else step.gradients
    expected = sum(each.astype(np.float64) for each in due) / len(due)
    roundings = 2 + math.ceil(math.log2(len(due)))  # of what is chosen, at each level of a tree, of the sums
    tolerance = step.tolerance * (1 + roundings * step.precision / EPSILON)
    return _worst(
        np.abs(step.mean - expected), tolerance, "the mean of the gradients is", expected, "but got", step.mean
    )


def exact_choice(step):
    for rank, (selected, acc) in enumerate(zip(step.selected, step.acc, strict=True)):
        wanted = min(step.k, np.count_nonzero(acc))
        if selected is not None and selected != wanted:
            return f"rank {rank} sent {selected} entries; with k = {step.k}, {wanted} were to be sent"
    return None


def _worst(errors, tolerance, *said):
    """The element that is farthest beyond the tolerance; None if none is."""
    beyond = errors - tolerance
    if (beyond <= 0).all():
        return None
    at = int(np.nan_to_num(beyond, nan=np.inf).argmax())
    words = (each if isinstance(each, str) else f"{each[at]:.9g}" for each in said)
    return f"at element {at}, {' '.join(words)} ({int((~(beyond <= 0)).sum())} elements are wrong)"


IN_EVERY_STEP = {
    "identical on all ranks": identical,
    "finite means": finite,
    "nothing lost": nothing_lost,
    "dense at density 1": dense,
}
EXACT = {"exact choice": exact_choice}


def first_broken(step, laws):
    """(its name, what breaks it), or None."""
    for name, law in laws.items():
        finding = law(step)
        if finding:
            return name, finding
    return None


def difference(one, other, where=()):
    """Where two states of plain values and tensors first differ by a bit; None if they are the same."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return _first(difference(one[key], other[key], (*where, key)) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other):
        return _first(difference(*pair, (*where, place)) for place, pair in enumerate(zip(one, other, strict=True)))
    return None if _bits(one) == _bits(other) else "/".join(map(str, where))


def _first(differences):
    return next((each for each in differences if each is not None), None)


def _bits(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return pickle.dumps(value)
