"""Which entries a rank sends: exact top-k, a reused threshold, a Gaussian estimate; and the registry of compressors.

A chooser is made for one merged gradient and is asked once per reduction. What it may keep from one reduction to the
next is a bound, never entries. To add a compressor, write an algorithm (see algorithms/__init__.py) or a chooser, and
add a line to `compressors`.
"""

import statistics
from dataclasses import dataclass
from functools import partial

import numpy as np

from algorithms.dense import Dense
from algorithms.gtopk import GTopk
from algorithms.oktopk import OkTopk
from algorithms.topka import ConcatenatedTopkA, TopkA, TopkA2
from algorithms.topksa import TopkSA
from selection import is_out_of_touch, kth_magnitude, nudged, sure_bound
from sparse import bits_of

# The next guess lies 1/32 of an octave (about 2%) under where the threshold seems to be going: low enough to catch k
# entries in almost every iteration, high enough to catch few more. Bits of a magnitude are a logarithmic scale.
OCTAVE_BITS = 1 << 23
GUESS_SLACK_BITS = OCTAVE_BITS // 32
CANDIDATES_PER_K = 4  # more candidates than that, and the guess was of no use
GAUSSIAN_CORRECTIONS = 3


class ExactTopK:
    """The k largest magnitudes; of equal ones those with the lowest indices.

    One pass is enough where the guess was right: the reducer collects what reaches `bound` while it accumulates, and
    the exact threshold is found among those candidates. Where fewer than k (or far too many) reached it, a histogram
    of the top bits of everything gives a bound that k entries are sure to reach.
    """

    def __init__(self, ops, n, k):
        self.ops, self.k = ops, k
        self.bound = None
        self.room = min(n, CANDIDATES_PER_K * k)
        self._last = None

    def choose(self, acc):
        candidates = acc.candidates
        if candidates is None or candidates.count < self.k:
            candidates = self.ops.at_least(acc.values, sure_bound(partial(self.ops.histogram, acc.values), self.k))
        bound, ties = kth_magnitude(partial(self.ops.histogram, candidates.values), self.k)
        self.bound = self._guess(bound)
        return self.ops.keep(candidates, bound, ties, min(self.k, candidates.count))

    def _guess(self, bound):
        """The next bound to collect from. Residuals make thresholds rise at first, by less each time."""
        change = bound - self._last if self._last is not None else 0
        self._last = bound
        return max(1, bound + min(change, change // 2, OCTAVE_BITS) - GUESS_SLACK_BITS)


class ReusedThreshold:
    """The entries that reach a threshold, recomputed every `period` reductions and nudged by 1% in between."""

    def __init__(self, ops, n, k, period=32):
        self.ops, self.k, self.period = ops, k, period
        self.exact = ExactTopK(ops, n, k)
        self.room = self.exact.room
        self.age = 0
        self.bound = None

    def choose(self, acc):
        recompute = self.age % self.period == 0
        self.age += 1
        if recompute:
            chosen = self.exact.choose(acc)
            smallest = float(chosen.values.abs().min()) if chosen.count else 0.0
            self.bound = bits_of(smallest)
        else:
            chosen = acc.candidates if acc.candidates is not None else self.ops.at_least(acc.values, self.bound)
            self.bound = nudged(self.bound, chosen.count, self.k)
        if is_out_of_touch(chosen.count, self.k):
            self.age = 0
        return chosen


class GaussianThreshold:
    """What exceeds the normal quantile of the mean and standard deviation, corrected when that is far from k entries.

    At most three times, the threshold is halved below 2/3 k and raised by half above 4/3 k; the band is aimed at, not
    guaranteed. `sigma_scale` is the largest multiple of the standard deviation that the first estimate may use.
    """

    bound = None  # nothing is guessed ahead of the accumulation
    room = 0

    def __init__(self, ops, n, k, density, sigma_scale=2.5):
        self.ops, self.n, self.k = ops, n, k
        quantile = statistics.NormalDist().inv_cdf(1 - density / 2) if density < 1 else 0.0
        self.multiple = min(quantile, sigma_scale)
        self.everything = density >= 1

    def choose(self, acc):
        bound = 1 if self.everything else self._bound(acc.values)
        return self.ops.at_least(acc.values, bound)

    def _bound(self, values):
        total, squares = self.ops.moments(values)
        mean = total / self.n
        deviation = max(0.0, squares / self.n - mean * mean) ** 0.5
        threshold = abs(mean) + self.multiple * deviation
        for _ in range(GAUSSIAN_CORRECTIONS):
            count = self.ops.count_at_least(values, bits_of(threshold))
            if count < 2 * self.k / 3:
                threshold *= 0.5
            elif count > 4 * self.k / 3:
                threshold *= 1.5
            else:
                break
        return bits_of(min(threshold, float(np.finfo(np.float32).max)))


THRESHOLDS = ("exact", "reuse")


@dataclass(frozen=True)
class ReductionOptions:
    """What a user may set about a compressor; each algorithm takes what concerns it. Wrong values are a ValueError."""

    density: float = 0.001
    sigma_scale: float = 2.5
    threshold: str = "exact"  # or "reuse", as in the paper
    threshold_period: int = 32
    region_period: int = 64

    def __post_init__(self):
        if not 0 < self.density <= 1:
            raise ValueError(f"density is a share of the gradient, above 0 and at most 1, not {self.density}")
        if self.threshold not in THRESHOLDS:
            raise ValueError(f"threshold is one of {', '.join(THRESHOLDS)}, not {self.threshold!r}")
        for name in ("sigma_scale", "threshold_period", "region_period"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is above 0, not {getattr(self, name)}")


def exact(ops, n, k, options):
    """As `--threshold` says: exact on every reduction, or reused for a number of them."""
    if options.threshold == "reuse":
        return reused(ops, n, k, options)
    return ExactTopK(ops, n, k)


def reused(ops, n, k, options):
    if k >= n:
        return ExactTopK(ops, n, k)  # everything is chosen: there is nothing to estimate
    return ReusedThreshold(ops, n, k, options.threshold_period)


def gaussian(ops, n, k, options):
    return GaussianThreshold(ops, n, k, options.density, options.sigma_scale)


@dataclass(frozen=True)
class Compressor:
    """A name of the registry: an algorithm and the way its ranks choose what to send."""

    name: str
    algorithm: type
    chooser: object = None

    @property
    def is_sparse(self):
        return self.chooser is not None

    def make(self, comm, ops, n, options):
        """The algorithm, with its state, for one merged gradient of n elements."""
        k = max(1, int(n * options.density))
        chooser = self.chooser(ops, n, k, options) if self.chooser else None
        return self.algorithm(comm, ops, n, k, chooser, options)


compressors = {
    compressor.name: compressor
    for compressor in (
        Compressor("none", Dense),
        Compressor("topkA", TopkA, exact),
        Compressor("topkA2", TopkA2, exact),
        Compressor("topkAopt", TopkA, reused),
        Compressor("topkSA", TopkSA, exact),
        Compressor("gtopk", GTopk, exact),
        Compressor("gaussiank", TopkA, gaussian),
        Compressor("gaussiankconcat", ConcatenatedTopkA, gaussian),
        Compressor("gaussiankSA", TopkSA, gaussian),
        Compressor("oktopk", OkTopk, exact),
    )
}


def find_compressor(compression):
    """A compressor by its name, or as it is."""
    if isinstance(compression, Compressor):
        return compression
    if compression not in compressors:
        raise ValueError(f"there is no compressor {compression!r}; there are {', '.join(compressors)}")
    return compressors[compression]


compressors["dense"] = compressors["none"]
compressors["topkDSA"] = compressors["topkSA"]
