"""What a reduction works with: chosen entries, and the operations on them for CPU and device tensors.

`CpuOps` streams through Numba kernels; `TorchOps` does the same in torch operations, for tensors that live on a device
(and, in the tests, for CPU tensors: the two agree element for element). An algorithm is written against either.
"""

from typing import NamedTuple

import numpy as np
import torch

import kernels

MAGNITUDE_BITS = 31


class Sparse(NamedTuple):
    """Entries of a merged gradient: int32 indices, ascending, and their float32 values."""

    indices: torch.Tensor
    values: torch.Tensor

    @property
    def count(self):
        return self.indices.numel()

    def part(self, start, stop):
        return Sparse(self.indices[start:stop], self.values[start:stop])


def bits_of(magnitude):
    """The bound that a float32 magnitude stands for; it is never below 1, so that zeros never pass."""
    return max(1, int(np.float32(magnitude).view(np.int32)))


def magnitude_of(bits):
    return float(np.int32(bits).view(np.float32))


class CpuOps:
    """Numba kernels over the memory of CPU tensors; nothing is copied on the way in or out."""

    @staticmethod
    def moments(tensor):
        """Sum and sum of squares in float64."""
        return kernels.moments(tensor.numpy())

    @staticmethod
    def accumulate(residual, gradient, bound=None, room=0):
        """residual += gradient; gradient = 0. With a bound: also the entries that reach it, or None if over `room`."""
        if bound is None:
            residual.add_(gradient)
            gradient.zero_()
            return None
        indices, values = _empty(room)
        count = kernels.accumulate(residual.numpy(), gradient.numpy(), np.int32(bound), indices, values)
        return None if count < 0 else _sparse(indices, values, count)

    @staticmethod
    def count_at_least(tensor, bound):
        return int(kernels.count_at_least(tensor.numpy(), np.int32(bound)))

    @staticmethod
    def at_least(tensor, bound):
        """The entries of a dense tensor whose magnitudes reach the bound."""
        array = tensor.numpy()
        indices, values = _empty(kernels.count_at_least(array, np.int32(bound)))
        kernels.collect_at_least(array, np.int32(bound), indices, values)
        return _sparse(indices, values, len(indices))

    @staticmethod
    def histogram(values, shift, width, prefix):
        """Counts (int64) of the magnitudes that start with `prefix`, by their next `width` bits above bit `shift`."""
        counts = np.empty(1 << width, np.int64)
        kernels.histogram(values.numpy(), shift, width, prefix, counts)
        return torch.from_numpy(counts)

    @staticmethod
    def keep(entries, bound, ties, room):
        """The entries above the bound and the first `ties` of those at it: `room` of them at most."""
        indices, values = _empty(room)
        count = kernels.keep(
            entries.indices.numpy(), entries.values.numpy(), np.int32(bound), int(ties), indices, values
        )
        return _sparse(indices, values, count)

    @staticmethod
    def sum_lists(lists, counts, low, high):
        """Add up sorted lists that lie one after another, each index in [low, high); sums of zero are left out."""
        starts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        indices, values = _empty(min(lists.count, high - low))
        count = kernels.sum_lists(
            lists.indices.numpy(), lists.values.numpy(), starts, int(low), int(high), indices, values
        )
        return _sparse(indices, values, count)

    @staticmethod
    def common(a, b):
        """The indices that stand in both sorted lists."""
        both = np.empty(min(a.numel(), b.numel()) + 1, np.int32)
        return torch.from_numpy(both[: kernels.common(a.numpy(), b.numpy(), both)])

    @staticmethod
    def put(tensor, entries):
        kernels.put(tensor.numpy(), entries.indices.numpy(), entries.values.numpy())

    @staticmethod
    def put_zero(tensor, indices):
        kernels.put_zero(tensor.numpy(), indices.numpy())

    @staticmethod
    def add(tensor, entries):
        kernels.add(tensor.numpy(), entries.indices.numpy(), entries.values.numpy())


class TorchOps:
    """The same operations in torch, on whatever device the tensors are; see `CpuOps` for what each one is."""

    @staticmethod
    def moments(tensor):
        wide = tensor.double()
        return float(wide.sum()), float(wide.square().sum())

    @staticmethod
    def accumulate(residual, gradient, bound=None, room=0):
        residual.add_(gradient)
        gradient.zero_()
        if bound is None:
            return None
        entries = TorchOps.at_least(residual, bound)
        return None if entries.count > room else entries

    @staticmethod
    def count_at_least(tensor, bound):
        return int((_magnitudes(tensor) >= bound).sum())

    @staticmethod
    def at_least(tensor, bound):
        indices = (_magnitudes(tensor) >= bound).nonzero().squeeze(1)
        return Sparse(indices.int(), tensor[indices])

    @staticmethod
    def histogram(values, shift, width, prefix):
        magnitudes = _magnitudes(values)
        if shift + width < MAGNITUDE_BITS:
            magnitudes = magnitudes[(magnitudes >> (shift + width)) == prefix]
        bins = (magnitudes >> shift) & ((1 << width) - 1)
        return torch.bincount(bins, minlength=1 << width)

    @staticmethod
    def keep(entries, bound, ties, room):
        magnitudes = _magnitudes(entries.values)
        equal = magnitudes == bound
        chosen = (magnitudes > bound) | (equal & (equal.cumsum(0) <= ties))
        positions = chosen.nonzero().squeeze(1)[:room]
        return Sparse(entries.indices[positions], entries.values[positions])

    @staticmethod
    def sum_lists(lists, counts, low, high):
        dense = torch.zeros(high - low, dtype=torch.float32, device=lists.values.device)
        start = 0
        for count in counts:  # list after list, for within one no index stands twice: the order of sums is fixed
            part = lists.part(start, start + int(count))
            dense.index_add_(0, part.indices.long() - low, part.values)
            start += int(count)
        sums = TorchOps.at_least(dense, 1)
        return Sparse(sums.indices + int(low), sums.values)

    @staticmethod
    def common(a, b):
        return a[torch.isin(a, b, assume_unique=True)]

    @staticmethod
    def put(tensor, entries):
        tensor[entries.indices.long()] = entries.values

    @staticmethod
    def put_zero(tensor, indices):
        tensor[indices.long()] = 0

    @staticmethod
    def add(tensor, entries):
        tensor.index_add_(0, entries.indices.long(), entries.values)


def ops_for(device):
    """The operations for tensors on this device."""
    return CpuOps if torch.device(device).type == "cpu" else TorchOps


def _empty(count):
    return np.empty(count, np.int32), np.empty(count, np.float32)


def _sparse(indices, values, count):
    return Sparse(torch.from_numpy(indices[:count]), torch.from_numpy(values[:count]))


def _magnitudes(tensor):
    return tensor.view(torch.int32) & int(kernels.MAGNITUDE)
