"""The operations on entries in torch, for tensors on any device.

`cpu_operations.CpuOps` does the same through Numba where tensors are on the CPU: the two agree element for element.
Algorithms and choosers are written against either.
"""

import importlib.util
import math
from functools import cached_property

import torch

from .devices import on_cpu
from .entries import GUESS_SLACK, MAGNITUDE, OCTAVE, Entries, bits_of, magnitude_of

SAMPLE = 1 << 16  # elements of the sample that a first guess is made from
SLACK = 2 ** (-GUESS_SLACK / OCTAVE)


def ops_for(device):
    """The operations for tensors on this device. Numba is an extra, and no other device needs it."""
    if on_cpu(device) and importlib.util.find_spec("numba"):
        from .cpu_operations import CpuOps

        return CpuOps
    return TorchOps


class TorchOps:
    """A bound may also be a magnitude that stays on the device as a tensor: reading it would wait for all before it."""

    @staticmethod
    def norm(tensor):
        """In float64, in one pass: finite only if every element is."""
        return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))

    @staticmethod
    def is_finite(tensor):
        return math.isfinite(torch.linalg.vector_norm(tensor, ord=math.inf)) if tensor.numel() else True

    @staticmethod
    def mean_and_deviation(tensor):
        mean = float(tensor.sum(dtype=torch.float64)) / tensor.numel()
        square = TorchOps.norm(tensor) ** 2 / tensor.numel()
        return mean, max(0.0, square - mean * mean) ** 0.5

    @staticmethod
    def gather(velocity, gradient, momentum, nesterov):
        """velocity = momentum * velocity + gradient; the gradient becomes what an optimizer with momentum steps by."""
        velocity.mul_(momentum).add_(gradient)
        if nesterov:
            gradient.add_(velocity, alpha=momentum)
        else:
            gradient.copy_(velocity)

    @staticmethod
    def accumulate(residual, gradient, bound=None, room=0):
        """residual += gradient; gradient = 0. With a bound: also the entries that reach it, or None if over `room`."""
        residual.add_(gradient)
        gradient.zero_()
        if bound is None:
            return None
        entries = TorchOps.at_least(residual, bound)
        return None if entries.count > room else entries

    @staticmethod
    def count_at_least(tensor, bound):
        return int((tensor.abs() >= _magnitude(bound)).sum())

    @staticmethod
    def at_least(tensor, bound):
        """The entries of a dense tensor whose magnitudes reach the bound."""
        indices = (tensor.abs() >= _magnitude(bound)).nonzero().squeeze(1).int()
        return Entries(indices, tensor[indices])

    @staticmethod
    def candidates(tensor, k):
        """Entries of a dense tensor among which the k largest are: a sample tells where to begin."""
        stride = -(-tensor.numel() // SAMPLE)
        sample = tensor[::stride].abs().sort(descending=True).values
        bound, step = bits_of(float(sample[min(len(sample) - 1, k // stride)])), OCTAVE // 4
        while True:
            bound, step = max(1, bound - step), 2 * step
            found = TorchOps.at_least(tensor, bound)
            if found.count >= k or bound == 1:
                return found

    @staticmethod
    def guess(bound, last):
        """The next bound to collect from. Residuals make thresholds rise at first, by less each time."""
        if not (isinstance(bound, torch.Tensor) and isinstance(last, torch.Tensor)):
            return bound if isinstance(bound, torch.Tensor) else 1  # there were fewer than k: all but zeros
        change = bound / last
        return (torch.minimum(change, change.sqrt()) * bound * SLACK).clamp_min(magnitude_of(1))

    @staticmethod
    def ranking(entries):
        return TorchRanking(entries)

    @staticmethod
    def entries_at_least(entries, bound):
        positions = (entries.values.abs() >= _magnitude(bound)).nonzero().squeeze(1)
        return Entries(entries.indices[positions], entries.values[positions])

    @staticmethod
    def sum_lists(lists, counts, low, high):
        """Add up sorted lists that lie one after another, each index in [low, high); a sum may be zero."""
        if lists.count in counts:
            return lists
        indices, places = torch.unique(lists.indices, return_inverse=True)
        sums = torch.zeros_like(indices, dtype=torch.float32)
        # List after list, for within one no index stands twice: the order of sums is fixed.
        for where, values in zip(places.split(counts), lists.values.split(counts), strict=True):
            sums.index_add_(0, where, values)
        return Entries(indices, sums)

    @staticmethod
    def without_zeros(entries):
        return TorchOps.entries_at_least(entries, 1)

    @staticmethod
    def common(entries, others):
        """Those entries whose indices stand in both sorted lists; the others as zeros, or not at all."""
        both = torch.isin(entries.indices, others.indices, assume_unique=True)
        return Entries(entries.indices, entries.values.where(both, 0))

    @staticmethod
    def differences(before, after):
        """What `after` lacks of the values of `before`, whose indices include its own."""
        lost = before.values.clone()
        lost[torch.searchsorted(before.indices, after.indices)] -= after.values
        return TorchOps.without_zeros(Entries(before.indices, lost))

    @staticmethod
    def put(tensor, entries):
        tensor[entries.indices] = entries.values

    @staticmethod
    def subtract(tensor, entries):
        tensor[entries.indices] = tensor[entries.indices] - entries.values

    @staticmethod
    def add(tensor, entries):
        tensor[entries.indices] = tensor[entries.indices] + entries.values

    @staticmethod
    def clear(tensor, entries):
        """Zero where the entries are not."""
        tensor[entries.indices] = tensor[entries.indices].where(entries.values == 0, 0)


class TorchRanking:
    """Entries in the order of their magnitudes, the largest first, of equal ones the lowest index: by stable sorts."""

    def __init__(self, entries):
        self._entries = entries

    def largest(self, k):
        """The k largest, and the bound of the last of them (0 if there are fewer)."""
        if self._entries.count < k:
            return self._entries, 0
        magnitudes, order = self._entries.values.abs().sort(stable=True, descending=True)
        return self._at(order[:k]), magnitudes[k - 1]

    def keep(self, bound, ties, count):
        """The `count` entries that are above the bound, or among the first `ties` at it."""
        return self._at(self._sorted_bits[1][:count])

    def histogram(self, shift, width, prefix):
        """Counts (int64, on the host) of the magnitudes that start with `prefix`, by their next `width` bits."""
        keys, _ = self._sorted_bits
        low, high = prefix << width + shift, prefix + 1 << width + shift
        edges = torch.arange(1 - low, -high, -1 << shift, dtype=torch.int32, device=keys.device)
        at_least = torch.searchsorted(keys, edges, right=True).cpu()
        return at_least[:-1] - at_least[1:]

    @cached_property
    def _sorted_bits(self):
        """One less than each magnitude's bits, negated: so the edge above them all, 2^31, is an int32 too."""
        return (1 - (self._entries.values.view(torch.int32) & MAGNITUDE)).sort(stable=True)

    def _at(self, positions):
        positions = positions.sort().values
        return Entries(self._entries.indices[positions], self._entries.values[positions])


def _magnitude(bound):
    return bound if isinstance(bound, torch.Tensor) else magnitude_of(bound)
