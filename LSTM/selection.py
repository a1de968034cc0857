"""Finding the k largest: the k-th magnitude by its bits, on one rank or over all of them, without sorting."""

from functools import partial

import numpy as np
import torch

from exchange import counts_of_all
from sparse import MAGNITUDE_BITS, bits_of, magnitude_of

# The 31 bits of a magnitude, from the top, in parts: (bits below the part, bits in the part). On one rank, few passes
# count; between ranks every bin is a word on the wire, and four small histograms are a twelfth of three large ones.
RADIX_PARTS = ((19, 12), (7, 12), (0, 7))
RADIX_PARTS_ON_THE_WIRE = ((23, 8), (15, 8), (7, 8), (0, 7))
NUDGE = 1.01  # how a reused threshold follows the number of entries that passed it
TOUCH = 16  # a reused threshold that lets through 16 times too many or too few is computed anew


def kth_magnitude(histogram, k, parts=RADIX_PARTS):
    """The bound of the k-th largest magnitude, and how many of the entries at it belong to the k largest.

    Descends from the top bits to the lowest. `histogram(shift, width, prefix)` counts the magnitudes that start with
    `prefix`; it may count over all ranks. Zeros are never chosen: with fewer than k non-zeros the answer is (0, 0).
    """
    prefix, wanted = 0, k
    for shift, width in parts:
        chosen, above = _bin_of_kth(histogram(shift, width, prefix), wanted)
        wanted -= above
        prefix = prefix << width | chosen
    return prefix, (wanted if prefix > 0 else 0)


def sure_bound(histogram, k):
    """A bound that the k largest magnitudes reach, from one histogram: their lowest bin's edge."""
    shift, width = RADIX_PARTS[0]
    chosen, _ = _bin_of_kth(histogram(shift, width, 0), k)
    return max(1, chosen << shift)


def largest(ops, entries, k):
    """The k largest entries; of equal ones those with the lowest indices."""
    bound, ties = kth_magnitude(partial(ops.histogram, entries.values), k)
    return ops.keep(entries, bound, ties, min(k, entries.count))


def nudged(bound, count, k):
    """A reused bound: 1% higher after more than k entries passed it, 1% lower after fewer."""
    if count == k:
        return bound
    magnitude = magnitude_of(bound)
    with np.errstate(over="ignore"):
        return min(bits_of(magnitude * NUDGE if count > k else magnitude / NUDGE), (1 << MAGNITUDE_BITS) - 1)


def is_out_of_touch(count, k):
    """Whether so many entries show that a reused threshold belongs to other gradients than the present ones."""
    return count * TOUCH < k or count > TOUCH * k


class GlobalExactTopK:
    """The k largest of all ranks' entries: the ranks add up their histograms instead of gathering candidates."""

    def __init__(self, comm, ops, k):
        self.comm, self.ops, self.k = comm, ops, k

    def __call__(self, entries):
        """Returns what is kept of this rank's entries, and how many each rank keeps."""
        bound, ties = kth_magnitude(partial(self._histogram_of_all, entries.values), self.k, RADIX_PARTS_ON_THE_WIRE)
        above = self.ops.count_at_least(entries.values, bound + 1)
        equal = self.ops.count_at_least(entries.values, max(1, bound)) - above if ties else 0
        all_above, all_equal = counts_of_all(self.comm, above, equal)
        # Regions lie in the order of ranks: of equal magnitudes the lower ranks have the lower indices.
        quota = [max(0, min(mine, ties - sum(all_equal[:rank]))) for rank, mine in enumerate(all_equal)]
        counts = [more + share for more, share in zip(all_above, quota, strict=True)]
        return self.ops.keep(entries, bound, quota[self.comm.rank], counts[self.comm.rank]), counts

    def _histogram_of_all(self, values, shift, width, prefix):
        counts = self.ops.histogram(values, shift, width, prefix).cpu()
        self.comm.allreduce(counts)
        return counts


class GlobalReusedThreshold:
    """The paper's way: an exact global threshold every `period` reductions, reused and nudged by 1% in between."""

    def __init__(self, comm, ops, k, period):
        self.comm, self.ops, self.k, self.period = comm, ops, k, period
        self.exact = GlobalExactTopK(comm, ops, k)
        self.age, self.bound = 0, None

    def __call__(self, entries):
        recompute = self.age % self.period == 0
        self.age += 1
        if recompute:
            kept, counts = self.exact(entries)
            self.bound = self._smallest_of_all(kept.values)
        else:
            kept = self.ops.keep(entries, self.bound - 1, 0, entries.count)
            (counts,) = counts_of_all(self.comm, kept.count)
            self.bound = nudged(self.bound, sum(counts), self.k)
        if is_out_of_touch(sum(counts), self.k):
            self.age = 0
        return kept, counts

    def _smallest_of_all(self, values):
        smallest = -float(values.abs().min()) if values.numel() else -float(np.finfo(np.float32).max)
        lowest = torch.tensor([smallest])
        self.comm.allreduce(lowest, op="max")
        return bits_of(-float(lowest))


def _bin_of_kth(counts, k):
    """The bin that holds the k-th largest (the lowest if there are fewer), and how many lie in higher ones."""
    counts = counts.cpu().numpy()
    at_or_above = np.cumsum(counts[::-1])[::-1]
    enough = np.flatnonzero(at_or_above >= k)
    chosen = int(enough[-1]) if len(enough) else 0
    return chosen, int(at_or_above[chosen] - counts[chosen])
