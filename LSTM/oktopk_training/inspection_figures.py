"""The figures of `--inspect`, each a function of tensors: what a choice has of the whole, and what it leaves behind."""

import torch

from oktopk.entries import Entries
from oktopk.operations import ops_for

MANTISSA, EXPONENT = 23, 8  # bits of a float32


def powers_of_two(values):
    """How many magnitudes lie from each power of two to the next: 256 counts. The first is that of zeros.

    Count number b is of magnitudes from 2^(b - 127) on. What is smaller than 2^-126 counts as zero.
    """
    ranking = ops_for(values.device).ranking(Entries(values, values))
    return ranking.histogram(MANTISSA, EXPONENT, 0)


def energy(values):
    """The sum of the squares."""
    return ops_for(values.device).norm(values) ** 2


def largest(tensor, k):
    """The indices of its k largest magnitudes, or of all that are not zero where these are fewer."""
    ops = ops_for(tensor.device)
    return ops.ranking(ops.candidates(tensor, k)).largest(k)[0].indices


def in_both(indices, others):
    """How many indices stand in both lists, which are sorted."""
    lists = (Entries(each, torch.ones(each.numel(), device=each.device)) for each in (indices, others))
    return int(ops_for(indices.device).common(*lists).values.count_nonzero())


def by_parameter(indices, sizes):
    """Of sorted indices of a merged gradient, how many lie in each parameter: {name: (count, elements)}."""
    ends = torch.tensor(list(sizes.values())).cumsum(0).to(indices.dtype)
    counts = torch.searchsorted(indices.cpu(), ends).diff(prepend=torch.zeros(1, dtype=torch.int64))
    return dict(zip(sizes, zip(counts.tolist(), sizes.values(), strict=True), strict=True))


class Ages:
    """For how many sparse steps in a row, the last one included, this rank has not sent an entry.

    One that was sent in the last step is 0 steps old. What came before the first step that was counted is not known:
    an entry that was not sent since then is as old as the counting.
    """

    def __init__(self, size, device):
        self.steps = 0
        self._sent = torch.zeros(size, dtype=torch.int32, device=device)  # in which step, the last time

    def step(self, delivered):
        """These entries were sent; zeros among them are none."""
        self.steps += 1
        self._sent[delivered.indices[delivered.values != 0]] = self.steps

    def of(self, residual):
        """Of the entries of which something waits: how many are how old (see `powers_of_two`), and all ages together.

        Picking these entries out would take more memory than all of them do.
        """
        waits = residual != 0
        ages = self._sent.float().neg_().add_(self.steps).mul_(waits)
        counts = powers_of_two(ages)
        counts[0] -= int(waits.logical_not_().sum())
        mean, _ = ops_for(ages.device).mean_and_deviation(ages)
        return counts, round(mean * ages.numel())
