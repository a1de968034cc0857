"""Which entries a rank sends: exact top-k, a reused threshold, a Gaussian estimate; and the choice over all ranks.

A chooser is made for one flat gradient and is asked once per reduction. What it keeps from one to the next is a bound,
never entries.
"""

import abc
import math
import statistics

import numpy as np
import torch

from .entries import (
    INFINITY,
    MAGNITUDE,
    OCTAVE,
    RADIX_PARTS_ON_THE_WIRE,
    BeyondFloat32,
    bits_of,
    kth_magnitude,
    magnitude_of,
)

CANDIDATES_PER_K = 4  # more candidates than that, and the guess was of no use
NUDGE = 1.01  # how a reused threshold follows the number of entries that passed it
TOUCH = 16  # a reused threshold that lets through 16 times too few or too many is computed anew
MOST_PER_K = 1.5  # of what passed a reused threshold, no more than the largest 1.5 k are sent
CORRECTIONS = 3  # steps of a Gaussian search that trust in the tail's shape, before it is bisected
STEEPNESS = 6  # of a normal tail at 2%: a threshold 1% higher lets through 6% less
LOOK_BELOW = OCTAVE // 8  # under a Gaussian search's expected threshold, 8%: what reaches that is searched


class Chooser(abc.ABC):
    """Made with the tensor operations (`operations.TorchOps` or `cpu_operations.CpuOps`), n, k and the settings."""

    kept = ()  # names of the attributes that the next choice depends on: whole numbers or None
    estimates = False  # whether it may leave entries out where k is n: at density 1, an exact one takes its place

    def __init__(self, ops, n, k, settings):
        self.ops, self.n, self.k, self.settings = ops, n, k, settings
        self._room = min(n, CANDIDATES_PER_K * k)

    @abc.abstractmethod
    def choose(self, residual, gradient):
        """Add the gradient to the residual, clear it, and return the entries of the residual that are to be sent."""

    def state_dict(self):
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self, name, value)


class ExactTopK(Chooser):
    """The k largest magnitudes; of equal ones those with the lowest indices.

    One pass is enough where the guess was right: what reaches it is collected while gradients accumulate, and the exact
    threshold is found among those candidates. Where fewer than k (or far too many) reached it, another pass finds them.
    """

    _guess = _last = None  # they make choices faster, not other: no state to keep

    def choose(self, residual, gradient):
        candidates = self.ops.accumulate(residual, gradient, self._guess, self._room)
        if candidates is None or candidates.count < self.k:
            candidates = self.ops.candidates(residual, self.k)
        chosen, bound = self.ops.ranking(candidates).largest(self.k)
        self._guess, self._last = self.ops.guess(bound, self._last), bound
        return chosen


class ReusedThreshold(Chooser):
    """The entries that reach a threshold, computed every `threshold_period` reductions and nudged by 1% in between.

    A threshold that has drifted too low lets the largest 1.5 k through and no more: what it costs is bounded.
    """

    kept = ("_bound", "_age")
    estimates = True
    _bound, _age = None, 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._exact = ExactTopK(*arguments)

    def choose(self, residual, gradient):
        recompute = self._age % self.settings.threshold_period == 0
        self._age += 1
        if recompute:
            chosen = self._exact.choose(residual, gradient)
            self._bound = smallest(chosen)
        else:
            chosen = self._reuse(residual, gradient)
            self._bound = nudged(self._bound, chosen.count, self.k)
        if is_out_of_touch(chosen.count, self.k):
            self._age = 0
        return chosen

    def _reuse(self, residual, gradient):
        most = math.ceil(MOST_PER_K * self.k)
        chosen = self.ops.accumulate(residual, gradient, self._bound, self._room)
        if chosen is None:
            chosen = self.ops.candidates(residual, most)
        if chosen.count > most:
            chosen, _ = self.ops.ranking(chosen).largest(most)
            self._bound = smallest(chosen)
        return chosen


class GaussianThreshold(Chooser):
    """The entries that reach a threshold which between 2/3 k and 4/3 k do, wherever there are so many non-zeros.

    The search begins at the last threshold; the first at the normal quantile of mean and standard deviation (at most
    `sigma_scale` deviations). Of magnitudes that are all equal, no threshold parts off k: the lowest indices are sent.
    """

    kept = ("_recent",)
    estimates = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._least, self._most = -(-2 * self.k // 3), 4 * self.k // 3
        self._recent = []  # the last two thresholds

    def choose(self, residual, gradient):
        bound = self._expected()
        lower = bound and max(1, bound - LOOK_BELOW)
        candidates = self.ops.accumulate(residual, gradient, lower, self._room)
        bound = bound or self._estimate(residual)
        if candidates is None or candidates.count < self._least:
            lower, _ = self._search(residual, bound, 1, self._room)
            bound, candidates = lower, self.ops.at_least(residual, lower)
        bound, count = self._search(candidates.values, bound, lower, self._most)
        self._recent = [*self._recent, self._nearer_to_k(bound, count)][-2:]
        if count <= self._most:
            return self.ops.entries_at_least(candidates, bound)
        above = self.ops.count_at_least(candidates.values, bound + 1)
        return self.ops.ranking(candidates).keep(bound, self.k - above, self.k)

    def _expected(self):
        """Where the threshold seems to be going; None at first."""
        if not self._recent:
            return None
        change = self._recent[-1] - self._recent[0]
        return max(1, self._recent[-1] + min(change, change // 2, OCTAVE))

    def _estimate(self, values):
        quantile = statistics.NormalDist().inv_cdf(1 - self.k / self.n / 2)
        mean, deviation = self.ops.mean_and_deviation(values)
        return min(INFINITY - 1, bits_of(abs(mean) + min(quantile, self.settings.sigma_scale) * deviation))

    def _search(self, values, bound, low, most):
        """A bound that from 2/3 k to `most` values reach, and how many do. At least so many reach `low`, or no bound.

        Where no bound is like that, it is the highest that enough reach.
        """
        high, tries = INFINITY, 0
        while high - low > 1:
            count = self.ops.count_at_least(values, bound)
            if count < self._least:
                high = bound
            elif count > most:
                low = bound
            else:
                return bound, count
            tries += 1
            nearer = self._nearer_to_k(bound, count)
            bound = nearer if tries <= CORRECTIONS and low < nearer < high else (low + high) // 2
        return low, self.ops.count_at_least(values, low)

    def _nearer_to_k(self, bound, count):
        return max(1, bound + int(OCTAVE * math.log2(max(count, 1) / self.k) / STEEPNESS))


def smallest(entries):
    return bits_of(float(entries.values.abs().min()) if entries.count else 0.0)


def nudged(bound, count, k):
    """A reused bound: 1% higher after more than k entries passed it, 1% lower after fewer."""
    if count == k:
        return bound
    magnitude = magnitude_of(bound)
    return min(bits_of(magnitude * NUDGE if count > k else magnitude / NUDGE), MAGNITUDE)


def is_out_of_touch(count, k):
    """Whether so many entries show that a reused threshold belongs to other gradients than the present ones."""
    return count * TOUCH < k or count > TOUCH * k


# ---- over all ranks


class GlobalExactTopK:
    """The k largest of all ranks' entries: the ranks add up their histograms instead of gathering candidates."""

    def __init__(self, exchange, k):
        self.exchange, self.k = exchange, k

    def __call__(self, entries):
        """Returns what is kept of this rank's entries, and how many each rank keeps."""
        ranking = self.exchange.ops.ranking(entries)
        histograms = _Histograms(self.exchange.comm, ranking)
        bound, ties = kth_magnitude(histograms, self.k, RADIX_PARTS_ON_THE_WIRE)
        above, at = histograms.here(bound)
        all_above, all_at = self.exchange.counts_of_all(above, at if ties else 0)
        # Regions lie in the order of ranks: of equal magnitudes the lower ranks have the lower indices.
        quota = [max(0, min(mine, ties - sum(all_at[:rank]))) for rank, mine in enumerate(all_at)]
        counts = [more + share for more, share in zip(all_above, quota, strict=True)]
        rank = self.exchange.comm.rank
        return ranking.keep(bound, quota[rank], counts[rank]), counts

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class _Histograms:
    """Summed over all ranks, from the top bits down; those of this rank alone are remembered."""

    def __init__(self, comm, ranking):
        self._comm, self._ranking, self._own = comm, ranking, []

    def __call__(self, shift, width, prefix):
        own = self._ranking.histogram(shift, width, prefix)
        everyone = own.clone()
        self._comm.allreduce(everyone)
        if not self._own and everyone[INFINITY >> shift :].any():
            raise BeyondFloat32
        self._own.append((shift, width, own))
        return everyone

    def here(self, bound):
        """How many entries of this rank are above the bound, and how many at it."""
        chosen = [(own, bound >> shift & (1 << width) - 1) for shift, width, own in self._own]
        last, at = chosen[-1]
        return sum(int(own[place + 1 :].sum()) for own, place in chosen), int(last[at])


class GlobalReusedThreshold:
    """The paper's way: an exact global threshold every `period` reductions, reused and nudged by 1% in between."""

    def __init__(self, exchange, k, period):
        self.exchange, self.k, self.period = exchange, k, period
        self.exact = GlobalExactTopK(exchange, k)
        self.age, self.bound = 0, None

    def __call__(self, entries):
        recompute = self.age % self.period == 0
        self.age += 1
        if recompute:
            kept, counts = self.exact(entries)
            self.bound = self._smallest_of_all(kept.values)
        else:
            kept = self.exchange.ops.entries_at_least(entries, self.bound)
            (counts,) = self.exchange.counts_of_all(kept.count)
            self.bound = nudged(self.bound, sum(counts), self.k)
        if is_out_of_touch(sum(counts), self.k):
            self.age = 0
        return kept, counts

    def state_dict(self):
        return {} if self.bound is None else {"age": self.age, "bound": self.bound}

    def load_state_dict(self, state):
        self.age, self.bound = state.get("age", 0), state.get("bound")

    def _smallest_of_all(self, values):
        smallest = -float(values.abs().min()) if values.numel() else -float(np.finfo(np.float32).max)
        lowest = torch.tensor([smallest])
        self.exchange.comm.allreduce(lowest, op="max")
        return bits_of(-float(lowest))
