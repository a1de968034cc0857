"""The compressors by name, and everything that a user may set about them.

A compressor is an algorithm, the way its ranks choose what to send, and what that looks like on the wire. To add one,
write an algorithm (see algorithms/__init__.py) or a chooser (choosers.py), and a line below; an option that it needs is
a field of `Settings`.
"""

from dataclasses import dataclass
from fnmatch import fnmatch

from .algorithms.gtopk import GTopk
from .algorithms.oktopk import OkTopk
from .algorithms.topka import TopkA, TopkA2
from .algorithms.topksa import TopkSA
from .choosers import ExactTopK, GaussianThreshold, ReusedThreshold
from .exchange import Exchange
from .fields import COUNT, DECAY, FLAG, NATURAL, POSITIVE, SHARE, TEXT, Checked, choice, option
from .operations import ops_for
from .wire import AUTO, wire_for, wires


@dataclass(frozen=True)
class Settings(Checked):
    """Handed on whole, from whoever sets it to whoever it concerns. Wrong values are a ValueError."""

    density: float = option(0.02, SHARE, "share of the gradient that is sent")
    # Early gradients move too fast for a sparse choice to be any good.
    warmup_iters: int = option(128, NATURAL, "dense steps before the first sparse one")
    ramp_iters: int = option(0, NATURAL, "sparse steps after the warm-up in which the density comes down from 0.25")
    threshold: str = option("exact", choice("exact", "reuse"), "found anew in every step, or reused as in the paper")
    threshold_period: int = option(32, COUNT, "steps that a reused threshold serves")
    region_period: int = option(64, COUNT, "steps that oktopk keeps the cut of its regions")
    sigma_scale: float = option(2.5, POSITIVE, "of the gaussian compressors: largest estimate, in standard deviations")
    norm_clip: float | None = option(None, POSITIVE, "clip each rank's gradient to X/sqrt(P) before it is sent")
    merge_size: int | None = option(None, COUNT, "merge gradients up to so many elements; by default all into one")
    exclude: str | None = option(None, TEXT, "parameters that stay dense: names or patterns, parted by commas")
    exclude_below: int | None = option(None, COUNT, "parameters with fewer elements stay dense")
    wire: str = option(AUTO, choice(AUTO, *wires), "what entries look like between ranks")
    hierarchical: bool = option(False, FLAG, "dense within a node, sparse between nodes")
    ranks_per_node: int | None = option(None, COUNT, "ranks that make a node; by default those of a host")
    overlap: bool | None = option(None, FLAG, "dense steps: sum during backward; by default where cores are free")
    # Momentum correction (Deep Gradient Compression, 3.1 to 3.3): each rank accumulates its own velocity and reduces
    # that in place of the gradient, for an optimizer without momentum. `velocity_clip` bounds what goes into it.
    momentum: float = option(0.0, DECAY)
    nesterov: bool = option(False, FLAG)
    velocity_clip: float | None = option(None, POSITIVE)
    timed: bool = option(False, FLAG)  # on a device: wait for it after each stage, so that the stage's time is known

    @property
    def excluded(self):
        """Patterns of names."""
        return [pattern.strip() for pattern in (self.exclude or "").split(",") if pattern.strip()]

    def k_of(self, n):
        """How many of n entries the density lets through."""
        return max(1, int(n * self.density))

    def check_names(self, names):
        """A pattern that excludes nothing was meant otherwise."""
        for pattern in self.excluded:
            if not any(fnmatch(name, pattern) for name in names):
                raise ValueError(f"exclude: no parameter has a name like {pattern!r}; {names[0]!r} is one of the names")


@dataclass(frozen=True)
class Compressor:
    """Without an algorithm it is dense: everything is summed in every step."""

    name: str
    algorithm: type | None = None
    chooser: type | None = None
    wire: str = AUTO

    @property
    def is_sparse(self):
        return self.algorithm is not None

    def wire_of(self, settings, device, communicator):
        """The form that its entries have between ranks: the one that was asked for, or else its own."""
        name = self.wire if settings.wire == AUTO else settings.wire
        return wire_for(name, device, communicator.shares_memory)

    def make(self, communicator, device, n, settings):
        """(chooser, algorithm), with their state, for one flat gradient of n elements on this device."""
        k, ops = settings.k_of(n), ops_for(device)
        reuses = self.chooser is ExactTopK and settings.threshold == "reuse"
        chooser = ReusedThreshold if reuses else self.chooser
        if chooser.estimates and k >= n:  # everything is chosen: there is nothing to estimate
            chooser = ExactTopK
        exchange = Exchange(communicator, ops, self.wire_of(settings, device, communicator))
        return chooser(ops, n, k, settings), self.algorithm(exchange, n, k, settings)


compressors = {
    compressor.name: compressor
    for compressor in (
        Compressor("none"),
        Compressor("topkA", TopkA, ExactTopK),
        Compressor("topkA2", TopkA2, ExactTopK),
        Compressor("topkAopt", TopkA, ReusedThreshold),
        Compressor("topkSA", TopkSA, ExactTopK),
        Compressor("gtopk", GTopk, ExactTopK),
        Compressor("gaussiank", TopkA, GaussianThreshold),
        Compressor("gaussiankconcat", TopkA, GaussianThreshold, wire="joined"),
        Compressor("gaussiankSA", TopkSA, GaussianThreshold),
        Compressor("oktopk", OkTopk, ExactTopK),
    )
}


# What it stands for is found out where gradients are averaged: see auto.py.
FASTEST = Compressor(AUTO, OkTopk, ExactTopK)


def find_compressor(compression):
    """A compressor by its name, or as it is."""
    if isinstance(compression, Compressor):
        return compression
    if compression == AUTO:
        return FASTEST
    if compression not in compressors:
        raise ValueError(f"there is no compressor {compression!r}; there are {', '.join(compressors)} and {AUTO}")
    return compressors[compression]


compressors["dense"] = compressors["none"]
compressors["topkDSA"] = compressors["topkSA"]
