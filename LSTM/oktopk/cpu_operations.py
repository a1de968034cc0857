"""The operations that algorithms and choosers are written against, on CPU tensors: compiled passes over their memory.

What passes over a whole gradient is shared out among as many threads as torch has.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import torch

from . import entries, kernels
from .entries import GUESS_SLACK, OCTAVE, RADIX_PARTS, Entries, bin_of_kth, kth_magnitude

SHORTEST_PIECE = 1 << 18  # elements, for a thread
PIECES_OF_MOMENTS = 64


class CpuOps:
    """What `operations.TorchOps` does, over the memory of CPU tensors; nothing is copied on the way in or out."""

    @staticmethod
    def norm(tensor):
        return _moments(tensor)[1] ** 0.5

    @staticmethod
    def is_finite(tensor):
        return CpuOps.count_at_least(tensor, entries.INFINITY) == 0

    @staticmethod
    def mean_and_deviation(tensor):
        total, squares = _moments(tensor)
        mean = total / tensor.numel()
        return mean, max(0.0, squares / tensor.numel() - mean * mean) ** 0.5

    @staticmethod
    def gather(velocity, gradient, momentum, nesterov):
        """velocity = momentum * velocity + gradient; the gradient becomes what an optimizer with momentum steps by."""
        if nesterov:
            gradient.add_(velocity.mul_(momentum).add_(gradient), alpha=momentum)
        else:
            arrays, factor = (velocity.numpy(), gradient.numpy()), np.float32(momentum)
            borders = _pieces(velocity.numel(), torch.get_num_threads())
            _for_each(lambda start, end: kernels.gather(*(each[start:end] for each in arrays), factor), borders)

    @staticmethod
    def accumulate(residual, gradient, bound=None, room=0):
        """residual += gradient; gradient = 0. With a bound: also the entries that reach it, or None if over `room`."""
        if bound is None:
            residual.add_(gradient)
            gradient.zero_()
            return None
        indices, values = _empty(room)
        count = _accumulate(residual.numpy(), gradient.numpy(), np.int32(bound), indices, values)
        return None if count < 0 else _entries(indices, values, count)

    @staticmethod
    def count_at_least(tensor, bound):
        return int(kernels.count_at_least(tensor.numpy(), np.int32(bound)))

    @staticmethod
    def at_least(tensor, bound):
        array = tensor.numpy()
        indices, values = _empty(kernels.count_at_least(array, np.int32(bound)))
        kernels.collect_at_least(array, np.int32(bound), indices, values)
        return _entries(indices, values, len(indices))

    @staticmethod
    def candidates(tensor, k):
        """Entries of a dense tensor among which the k largest are: all from the bin of the k-th on."""
        shift, width = RADIX_PARTS[0]
        chosen, _ = bin_of_kth(_histogram(tensor, shift, width, 0), k)
        return CpuOps.at_least(tensor, max(1, chosen << shift))

    @staticmethod
    def guess(bound, last):
        change = 0 if last is None else bound - last
        return max(1, bound + min(change, change // 2, OCTAVE) - GUESS_SLACK)

    @staticmethod
    def ranking(entries):
        return CpuRanking(entries)

    @staticmethod
    def entries_at_least(entries, bound):
        return CpuRanking(entries).keep(bound - 1, 0, entries.count)

    @staticmethod
    def sum_lists(lists, counts, low, high):
        if lists.count in counts:
            return lists
        starts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        indices, values = _empty(min(lists.count, high - low))
        count = kernels.sum_lists(
            lists.indices.numpy(), lists.values.numpy(), starts, int(low), int(high), indices, values
        )
        return _entries(indices, values, count)

    @staticmethod
    def without_zeros(entries):
        return entries  # `sum_lists` left them out

    @staticmethod
    def common(entries, others):
        indices, values = _empty(min(entries.count, others.count) + 1)
        count = kernels.common(entries.indices.numpy(), entries.values.numpy(), others.indices.numpy(), indices, values)
        return _entries(indices, values, count)

    @staticmethod
    def differences(before, after):
        indices, values = _empty(before.count)
        arrays = (part.numpy() for part in (*before, *after))
        return _entries(indices, values, kernels.differences(*arrays, indices, values))

    @staticmethod
    def put(tensor, entries):
        kernels.put(tensor.numpy(), entries.indices.numpy(), entries.values.numpy())

    @staticmethod
    def subtract(tensor, entries):
        kernels.add(tensor.numpy(), entries.indices.numpy(), entries.values.numpy(), np.float32(-1))

    @staticmethod
    def add(tensor, entries):
        kernels.add(tensor.numpy(), entries.indices.numpy(), entries.values.numpy(), np.float32(1))

    @staticmethod
    def clear(tensor, entries):
        kernels.clear(tensor.numpy(), entries.indices.numpy(), entries.values.numpy())


class CpuRanking:
    """Entries ranked by histograms of their magnitudes' bits, without sorting."""

    def __init__(self, entries):
        self._entries = entries

    def largest(self, k):
        bound, ties = kth_magnitude(self.histogram, k)
        return self.keep(bound, ties, min(k, self._entries.count)), bound

    def keep(self, bound, ties, count):
        indices, values = _empty(count)
        arrays = (part.numpy() for part in self._entries)
        return _entries(indices, values, kernels.keep(*arrays, np.int32(bound), int(ties), indices, values))

    def histogram(self, shift, width, prefix):
        return _histogram(self._entries.values, shift, width, prefix)


def _moments(tensor):
    """In pieces that do not depend on the number of threads, for sums of others would differ in their last bits."""
    array = tensor.numpy()
    parts = _for_each(lambda start, end: kernels.moments(array[start:end]), _pieces(array.size, PIECES_OF_MOMENTS))
    return sum(total for total, _ in parts), sum(squares for _, squares in parts)


def _accumulate(residual, gradient, bound, indices, values):
    """`accumulate`, by all threads: each fills its share of the room, and all move up."""
    borders = _pieces(residual.size, torch.get_num_threads())
    rooms = [indices.size * i // (len(borders) - 1) for i in range(len(borders))]
    first = dict(zip(borders, rooms, strict=False))
    last = dict(zip(borders[1:], rooms[1:], strict=True))

    def collect(start, end):
        room = slice(first[start], last[end])
        return kernels.accumulate(residual[start:end], gradient[start:end], bound, indices[room], values[room])

    found = _for_each(collect, borders)
    if min(found) < 0:
        return _collect(residual, bound, indices, values) if len(found) > 1 else -1
    count = 0
    for start, some in zip(borders, found, strict=False):
        there = slice(first[start], first[start] + some)
        np.add(indices[there], np.int32(start), out=indices[count : count + some])
        values[count : count + some] = values[there]
        count += some
    return count


def _collect(array, bound, indices, values):
    """What reaches the bound, or -1 if there is more than there is room for."""
    count = kernels.count_at_least(array, bound)
    if count > indices.size:
        return -1
    kernels.collect_at_least(array, bound, indices[:count], values[:count])
    return count


def _histogram(values, shift, width, prefix):
    bins = np.empty(1 << width, np.int64)
    kernels.histogram(values.numpy(), shift, width, prefix, bins)
    return torch.from_numpy(bins)


def _empty(count):
    return np.empty(count, np.int32), np.empty(count, np.float32)


def _entries(indices, values, count):
    return Entries(torch.from_numpy(indices[:count]), torch.from_numpy(values[:count]))


# ---- threads


@cache
def _pool(threads):
    return ThreadPoolExecutor(threads, "oktopk")


def _pieces(size, most):
    """Borders of even pieces of an array, `most` of them at most, and none too short to be worth a thread."""
    count = max(1, min(most, size // SHORTEST_PIECE))
    return [size * i // count // kernels.GROUP * kernels.GROUP for i in range(count)] + [size]


def _for_each(work, borders):
    """What `work(start, end)` returns for each piece. A thread takes neighbours, and this one is one of them."""
    pieces = list(pairwise(borders))
    threads = min(torch.get_num_threads(), len(pieces))
    shares = [pieces[len(pieces) * i // threads : len(pieces) * (i + 1) // threads] for i in range(threads)]

    def each(share):
        return [work(*piece) for piece in share]

    others = [_pool(threads - 1).submit(each, share) for share in shares[1:]]
    found = each(shares[0])
    for other in others:
        found += other.result()
    return found
