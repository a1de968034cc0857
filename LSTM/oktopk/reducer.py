"""One flat gradient: a dense warm-up, then a compressor with error feedback. Owns all state of both."""

from contextlib import contextmanager
from dataclasses import replace

from .buffers import zeros
from .devices import Stopwatch
from .entries import BeyondFloat32, no_entries
from .operations import ops_for
from .report import Selection

INT32_LIMIT = 2**31 - 1
KEPT = ("residual", "velocity")  # of a flat gradient, from one reduction to the next
RAMP_BEGINS = 0.25  # density (Deep Gradient Compression, 3.4)


class Reducer:
    """`residual` is what sparse reductions did not deliver, `velocity` what momentum correction accumulates.

    Either exists from the first reduction on that needs it.

    An `inspector`, if there is one, sees every reduction: `before(reducer)`, with the gradient and the residual that it
    begins with, and `after(reducer, chosen, reduction)`, with what this rank chose and what became of it, or with None
    for both where it was dense. It changes nothing, and its time is no stage's.
    """

    share = 1.0  # of a mean over the communicator's ranks in that over all

    def __init__(self, merged, compressor, settings, communicator):
        self.merged, self.settings, self.communicator = merged, settings, communicator
        self._compressor, self.ops = compressor, ops_for(merged.gradient.device)
        self.inspector = None
        self.reset()
        if compressor.is_sparse and merged.size > INT32_LIMIT:
            raise OverflowError(
                f"the merged gradient {merged.name} has {merged.size} elements, and indices are int32 (at most "
                f"{INT32_LIMIT}): set merge_size, so that parameters are merged into several smaller gradients"
            )

    def reset(self):
        """As if nothing had been reduced yet."""
        self.residual = self.velocity = self._chooser = self._algorithm = self._density = None
        self.reductions = 0

    @property
    def is_sparse_now(self):
        return self._compressor.is_sparse and self.reductions >= self.settings.warmup_iters

    @property
    def density(self):
        """Of the next reduction. After the warm-up it comes down evenly in its logarithm, within `ramp_iters`."""
        if not self.is_sparse_now:
            return 1.0
        final, steps = self.settings.density, self.settings.ramp_iters + 1
        place = self.reductions - self.settings.warmup_iters + 1
        return max(final, RAMP_BEGINS * (final / RAMP_BEGINS) ** (place / steps)) if place < steps else final

    @property
    def k(self):
        """Entries that it lets through, if it is sparse."""
        return self._settings_now.k_of(self.merged.size)

    @property
    def _settings_now(self):
        return replace(self.settings, density=self.density)

    def norm(self):
        return self.ops.norm(self.merged.gradient)

    def reduce(self, report, abstains=False, unused=(), is_summed=False):
        """The gradient becomes the mean over the ranks, in place; the report learns how. It may be that already.

        A rank that `abstains` has zeros for a gradient, and adds nothing else; so do all ranks for `unused` parameters.
        """
        self.communicator.whole.subject = self.merged.name, "sparse" if self.is_sparse_now else "dense"
        if not is_summed:
            self._reduce(report, abstains, unused)
        self.reductions += 1
        self.communicator.whole.subject = None

    def _reduce(self, report, abstains, unused):
        watch = Stopwatch(self.merged.gradient.device, self.settings.timed)
        if self.settings.momentum and not abstains:
            self._gather_momentum()
            report.seconds["merge"] += watch.lap()
        if self.inspector is not None:
            self.inspector.before(self)
            watch.lap()
        chosen = reduction = None
        if self.is_sparse_now:
            with self._set_aside(unused):
                chosen, reduction = self._reduce_sparsely(report, watch, abstains)
        else:
            before = self.communicator.total().seconds
            self.communicator.allreduce(self.merged.gradient, op="mean")
            self._take_share(self.merged.gradient)
            report.seconds["demerge"] += watch.lap() - (self.communicator.total().seconds - before)
        if self.inspector is not None:
            self.inspector.after(self, chosen, reduction)

    def _gather_momentum(self):
        gradient, settings = self.merged.gradient, self.settings
        if self.velocity is None:
            self.velocity = zeros(self.merged.size, gradient.device)
        self.ops.gather(self.velocity, gradient, settings.momentum, settings.nesterov)

    @contextmanager
    def _set_aside(self, names):
        """Residuals of these parameters are not to be sent: whoever gets the means would drop them."""
        self._make_compressor()
        parts = self.merged.parts(self.residual) if names else {}
        aside = {name: part.clone() for name, part in parts.items() if name in names}
        for name in aside:
            parts[name].zero_()
        yield
        for name, residual in aside.items():
            parts[name].copy_(residual)

    def _reduce_sparsely(self, report, watch, abstains):
        before, gradient = self.communicator.total().seconds, self.merged.gradient
        chosen = no_entries(gradient.device) if abstains else self._chooser.choose(self.residual, gradient)
        reduction = self._algorithm.reduce(self._algorithm.wire.rounded(chosen))
        report.seconds["compression"] += watch.lap() - (self.communicator.total().seconds - before)
        self._feed_back(reduction)
        self._deliver(reduction)
        if self.merged.narrow:
            self._keep_overflow()
        report.seconds["demerge"] += watch.lap()
        selection = Selection(self.merged.size, reduction.selected)
        report.add_sparse(self.merged.name, selection, self._algorithm.k, chosen.count)
        return chosen, reduction

    def _make_compressor(self):
        if self.residual is None:
            self.residual = zeros(self.merged.size, self.merged.gradient.device)
        if self._algorithm is None or self._density != self.density:
            self._density = self.density
            self._chooser, self._algorithm = self._compressor.make(
                self.communicator, self.merged.gradient.device, self.merged.size, self._settings_now
            )

    def _feed_back(self, reduction):
        """The residual gives up exactly what was sent of it, and takes back what was dropped on the way."""
        self.ops.subtract(self.residual, reduction.delivered)
        for part in reduction.returned:
            self.ops.add(self.residual, part)
        if self.velocity is not None:
            self.ops.clear(self.velocity, reduction.delivered)

    def _deliver(self, reduction):
        """Write the mean where the gradient was, which its accumulation has left all zero."""
        mean = reduction.mean.values if reduction.dense_mean is None else reduction.dense_mean
        if not (reduction.is_finite or self.ops.is_finite(mean)):
            raise BeyondFloat32
        self._take_share(mean)
        if reduction.dense_mean is not None:
            self.merged.gradient.copy_(reduction.dense_mean)
        else:
            self.ops.put(self.merged.gradient, reduction.mean)

    def _take_share(self, mean):
        if self.share != 1:
            mean.mul_(self.share)

    def _keep_overflow(self):
        """What a narrow parameter's gradient cannot hold of the mean stays with every rank: P times of it in all."""
        if self.ops.norm(self.merged.gradient) <= min(self.merged.narrow.values()):
            return
        residuals = self.merged.parts(self.residual)
        for name, most in self.merged.narrow.items():
            mean = self.merged.views[name]
            within = mean.clamp(-most, most)
            residuals[name].add_(mean - within, alpha=1 / self.share)
            mean.copy_(within)

    # State, by parameter.

    def parameter_states(self):
        states = {name: {"reductions": self.reductions} for name in self.merged.views}
        for key in KEPT:
            if (flat := getattr(self, key)) is not None:
                for name, part in self.merged.parts(flat).items():
                    states[name][key] = part.clone()
        return states

    def load_parameter_states(self, states):
        """Parameters that have no state begin anew; the warm-up is that of the one that has come the least far."""
        self.reset()
        states = {name: states.get(name, {}) for name in self.merged.views}
        self.reductions = min(state.get("reductions", 0) for state in states.values())
        for key in KEPT:
            if any(key in state for state in states.values()):
                flat = zeros(self.merged.size, self.merged.gradient.device)
                setattr(self, key, flat)
                for name, part in self.merged.parts(flat).items():
                    if key in states[name]:
                        part.copy_(states[name][key])

    def compressor_state(self):
        """What the compressor keeps for the whole: nothing before its first reduction."""
        if self._algorithm is None:
            return {}
        states = {"chooser": self._chooser.state_dict(), "algorithm": self._algorithm.state_dict()}
        return {"name": self._compressor.name, "density": self._density, **states}

    def load_compressor_state(self, state):
        if state and state["name"] == self._compressor.name and state.get("density", self.density) == self.density:
            self._make_compressor()
            self._chooser.load_state_dict(state["chooser"])
            self._algorithm.load_state_dict(state["algorithm"])
