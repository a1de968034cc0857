"""A whole model's gradients in, their means over the ranks out.

    averager = GradientAverager(model.named_parameters(), "oktopk", Settings(density=0.02))
    ...
    averager.view(name).copy_(gradient)          # for every parameter; its gradient may live there from the start
    report = averager.average()
    averager.view(name)                          # the mean

All ranks make one alike and call `average` alike. It owns all state: `state_dict()` hands it out by parameter name.
"""

import logging
import math
from fnmatch import fnmatch

import torch

from .agreement import insist_on_the_same_settings, warn_of_other_parameters
from .auto import fastest
from .buffers import check_parameters, merge
from .communicator import Communicator
from .devices import Stopwatch, unsorted_scatters
from .early import EarlySums, can_sum_early
from .launchers import LostRanks, ranks_that_are_not_seen
from .memory import enough_for
from .nodes import NodeReducer, Nodes
from .reducer import KEPT, Reducer
from .registry import FASTEST, Settings, compressors, find_compressor
from .report import Report
from .shares import PLACE, insist_on_the_place
from .transports import connect, over
from .wire import AUTO

log = logging.getLogger("oktopk.reducer")

MAX_SKIPS_IN_A_ROW = 10
BUFFERS = "the reducer's buffers"
CHOICE = "choice"  # the key of a state that has one
FLOAT32_LIMIT = torch.finfo(torch.float32).max


class ReducerError(RuntimeError):
    """A reduction failed, or the averager was closed."""


class GradientAverager:
    """`communicator` is one of ours, an mpi4py one, a process group, or None for all ranks that were started."""

    def __init__(self, named_parameters, compression="oktopk", settings=None, communicator=None):
        self.compressor, self.settings = find_compressor(compression), settings or Settings()
        trainable = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
        check_parameters(trainable)
        self._unchecked = [parameter for _, parameter in trainable]
        self._owns_communicator = not isinstance(communicator, Communicator)
        self.communicator = _communicator(communicator)
        shapes = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in trainable]
        insist_on_the_same_settings(self.communicator, (shapes, self.compressor.name, self.settings))
        self.choice = None
        if self.compressor is FASTEST:
            self.choice = fastest_for(trainable, self.settings, self.communicator)
            if self.rank() == 0:
                log.info("%s: %s", AUTO, self.choice.reason)
        with enough_for(BUFFERS):
            groups = [merge(group, self.settings.merge_size) for group in _split(trainable, self.settings)]
            self._sparse, self._dense = groups
            self._make_reducers()
        self._early = None  # sums of this step that began in backward
        self._ranks_agree = False  # on the step that they are in: not known before the first, nor after a load
        self._merged = [reducer.merged for reducer in self._reducers]
        self._views = {name: view for merged in self._merged for name, view in merged.views.items()}
        self._dtypes = {name: parameter.dtype for name, parameter in trainable}
        self.train_epoch = 0  # for messages
        self.last_step = Report()
        self.skipped_steps = self._skips_in_a_row = 0
        self._closed = False
        self._said = set()

    def _make_reducers(self):
        if self.choice is not None:
            self.compressor, self.settings = find_compressor(self.choice.compression), self.choice.settings
        self._nodes = Nodes(self.communicator, self.settings.ranks_per_node) if self.settings.hierarchical else None
        self._reducers = [
            *(self._reducer(merged, self.compressor) for merged in self._sparse),
            *(self._reducer(merged, compressors["none"]) for merged in self._dense),
        ]
        device = self._reducers[0].merged.gradient.device
        self.can_sum_early = can_sum_early(self.settings, self.communicator, device)

    def _reducer(self, merged, compressor):
        if self._nodes is None:
            return Reducer(merged, compressor, self.settings, self.communicator)
        return NodeReducer(merged, compressor, self.settings, self._nodes)

    def rank(self):
        return self.communicator.rank

    def size(self):
        return self.communicator.size

    @property
    def is_sparse_now(self):
        return any(reducer.is_sparse_now for reducer in self._reducers)

    def get_current_density(self):
        """The share of the gradient that the next reduction lets through: 1 as long as it is dense."""
        return next((reducer.density for reducer in self._reducers if reducer.is_sparse_now), 1.0)

    def inspect(self, inspector):
        """Show it every reduction from now on (see `Reducer`); None: show nobody."""
        for reducer in self._reducers:
            reducer.inspector = inspector

    def view(self, name):
        """The place of a parameter's gradient: this rank's before `average`, the mean after it."""
        if name not in self._views:
            raise KeyError(f"no parameter named {name!r} was given to the reducer")
        return self._views[name]

    def result(self, name):
        """The mean as the parameter takes it: the view itself for a float32 one."""
        return self.view(name).to(self._dtypes[name])

    @property
    def device(self):
        return self._merged[0].gradient.device

    def hand_in(self, name, tensor):
        """Put a gradient in its place. One that lies there already is not copied."""
        view = self.view(name)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"the gradient of {name} is {tensor!r}: hand in a tensor, of zeros if there is none")
        if tensor.data_ptr() != view.data_ptr():
            view.copy_(tensor.reshape(view.shape))
        elif tensor.stride() != view.stride():  # a transposed view, say, of the place itself
            view.copy_(tensor.clone().reshape(view.shape))

    def gradient_is_made(self, name, gradient):
        """In its place, and nothing will be added to it before `average`: where sums may be early, its own may begin.

        Whoever says it of one gradient says it of all that backward makes, on all ranks; then they are means, not this
        rank's own, from any moment on.
        """
        early, view = self._early_sums(), self.view(name)
        if early and gradient.data_ptr() == view.data_ptr() and gradient.stride() == view.stride():
            early.note(name)

    def _early_sums(self):
        """Those of this step, on all ranks or on none, whether backward has made anything here or not."""
        can = self.can_sum_early and self._ranks_agree and not self.is_sparse_now
        if self._early is None and can and self._reducers[0].inspector is None:  # one looks at the rank's own gradient
            self._early = EarlySums(self._reducers, self.communicator)
        return self._early

    def zero_gradients(self):
        if self._early is not None:
            raise RuntimeError(
                "the gradients were zeroed between backward and step, and with overlap other ranks have some of them: "
                "call step() after each backward, or leave overlap out"
            )
        self._zero()

    def _zero(self):
        for merged in self._merged:
            merged.gradient.zero_()

    def average(self, merging_seconds=0.0, scale=None, abstains=False, used=None):
        """Make every gradient the mean over the ranks; none at all if any rank's gradient is not finite.

        `scale` says how many times too long the gradients are that were handed in, for a loss that was scaled; means
        and residuals are of the true length. Overflows belong to such a scale's life: they are skipped for ever.
        A rank that `abstains` handed in zeros, and keeps its residual: it has nothing to train on any more.
        `used` says of each name whether this rank's gradient has anything; what no rank has used keeps its residuals.
        """
        if self._closed:
            raise ReducerError("the reducer was stopped: make a new one to go on")
        try:
            with enough_for(BUFFERS):
                return self._average(merging_seconds, scale, abstains, used or {})
        except Exception as error:
            if not isinstance(error, LostRanks):
                self.communicator.tell_failure(f"{type(error).__name__}: {error}")
            raise

    @torch.no_grad()
    def _average(self, merging_seconds, scale, abstains, used):
        if self._unchecked:  # before the first step, for a loop may share them after it has made its reducer
            warn_of_other_parameters(self.communicator, self._unchecked)
            self._unchecked = None
        early = self._early_sums()
        if early:
            early.finish()
        report, before = Report(), early.before if early else self.communicator.total()
        report.seconds["merge"] += merging_seconds
        with unsorted_scatters():
            norm = self._measure(report, scale)
            finite, unused = self._agree(norm * self.size() < FLOAT32_LIMIT, used)  # NaN is below nothing
            if finite:
                for reducer in self._reducers:
                    reducer.reduce(report, abstains, unused, is_summed=early is not None)
            else:
                self._skip(report, gives_up=scale is None)
        self._add_traffic(report, self.communicator.total().add(before, -1), early.hidden if early else 0.0)
        self._early, self.last_step = None, report
        return report

    @torch.no_grad()
    def all_are_finite(self):
        """Whether every rank's gradients are, as they were handed in."""
        return self._agree(math.isfinite(self._norm()))[0]

    def _norm(self):
        """Of this rank's own gradient, all reducers' together."""
        early = self._early_sums()
        return early.finish().norm if early else math.hypot(*(reducer.norm() for reducer in self._reducers))

    def skip(self):
        """All ranks know already that a gradient was not finite: leave everything as it is."""
        self._early, self.last_step = None, Report()
        self._skip(self.last_step, gives_up=False)

    def _agree(self, fine, used=None):
        """Whether all ranks' gradients are fine, and the names that no rank has used."""
        place, used = sum(reducer.reductions for reducer in self._reducers), used or {}
        agreed = torch.tensor([not fine, place, -place, *used.values()], dtype=torch.int64)
        self.communicator.allreduce(agreed, op="max")
        broken, most, least, *flags = agreed.tolist()
        if most != -least:
            raise ValueError(
                f"some rank's reducer has made {most} reductions and another's {-least}: load a state on all ranks, "
                "each its own of the same step, or on none"
            )
        self._ranks_agree = True
        return not broken, {name for name, flag in zip(used, flags, strict=True) if not flag}

    def _measure(self, report, scale):
        """Unscale and clip this rank's gradient, and return how long it is.

        One that is so long that the sum over the ranks could leave float32 is as good as not finite.
        """
        watch = Stopwatch(self.device, self.settings.timed)
        if scale not in (None, 1):
            for merged in self._merged:
                merged.gradient.div_(scale)
        report.grad_norm = norm = self._norm() / (scale if self._early and scale else 1)
        limit = self._longest()
        if norm > limit and math.isfinite(norm):
            for merged in self._merged:
                merged.gradient.mul_(limit / norm)
            norm = limit
        report.seconds["merge"] += watch.lap()
        return norm

    def _longest(self):
        """The norm to which this rank's gradient is clipped.

        `norm_clip` / sqrt(P): so the sum of P independent gradients keeps within it (DGC, 3.2). `velocity_clip` is
        meant for their mean, which is sqrt(P) shorter than each.
        """
        root, infinite = math.sqrt(self.size()), math.inf
        return min((self.settings.norm_clip or infinite) / root, (self.settings.velocity_clip or infinite) * root)

    def _skip(self, report, gives_up):
        report.skipped = True
        report.phase = "sparse" if self.is_sparse_now else "dense"
        self._zero()
        self.skipped_steps += 1
        if not gives_up:
            return
        self._skips_in_a_row += 1
        self._say_once(
            ("skip", self.train_epoch),
            f"epoch {self.train_epoch}: a gradient was not finite; this step is skipped on all ranks",
        )
        if self._skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            raise FloatingPointError(
                f"gradients were not finite in {MAX_SKIPS_IN_A_ROW} steps in a row: "
                "lower the learning rate, or look for infinite values in the input"
            )

    def _add_traffic(self, report, traffic, hidden):
        if not report.skipped:
            self._skips_in_a_row = 0
        report.bytes_sent, report.bytes_received = traffic.sent, traffic.received
        report.seconds["communication"] = traffic.seconds - traffic.to_host - traffic.to_device - hidden
        report.seconds["device_to_host"] = traffic.to_host
        report.seconds["host_to_device"] = traffic.to_device

    def _say_once(self, key, message):
        """What all ranks meet, the first one says."""
        if key not in self._said and self.rank() == 0:
            self._said.add(key)
            log.warning(message)

    def close(self):
        """On all ranks: gives the communicator back. Whoever averages after that is told so."""
        if not self._closed:
            self._close_nodes()
        if not self._closed and self._owns_communicator:
            self.communicator.close()
        self._closed = True

    def _close_nodes(self):
        if self._nodes is not None:
            self._nodes.close()

    # State.

    def state_dict(self):
        """This rank's share of the state: plain tensors and numbers, by parameter name where they belong to one."""
        return {
            "parameters": {name: state for each in self._reducers for name, state in each.parameter_states().items()},
            "compressors": {each.merged.name: each.compressor_state() for each in self._reducers},
            "skipped_steps": self.skipped_steps,
            "skips_in_a_row": self._skips_in_a_row,
            PLACE: (self.rank(), self.size()),
            **({} if self.choice is None else {CHOICE: self.choice.state_dict()}),
        }

    def load_state_dict(self, state):
        """Take over such a state; where gradients are merged or compressed otherwise now, all but the thresholds.

        Parameters that it does not know begin anew.
        """
        if not isinstance(state, dict) or "parameters" not in state:
            raise ValueError("this is no reducer's state: it has no 'parameters'; load what state_dict() gave")
        insist_on_the_place(state, self.rank(), self.size())
        self._ranks_agree = False
        self._check_state(state["parameters"])
        if self.choice is not None and CHOICE in state:
            self._close_nodes()
            self.choice = self.choice.of_state(state[CHOICE])
            self._make_reducers()
        for reducer in self._reducers:
            reducer.load_parameter_states(state["parameters"])
            reducer.load_compressor_state(state.get("compressors", {}).get(reducer.merged.name))
        self.skipped_steps, self._skips_in_a_row = state.get("skipped_steps", 0), state.get("skips_in_a_row", 0)

    def _check_state(self, states):
        unknown = [name for name in states if name not in self._views]
        if unknown:
            raise ValueError(
                f"the state is of {len(unknown)} parameters that are not here, {unknown[0]!r} for one; here is "
                f"{next(iter(self._views))!r} for one: give the same named_parameters as when it was saved"
            )
        for name, state in states.items():
            for key in KEPT:
                if key in state and state[key].shape != self._views[name].shape:
                    shapes = f"{tuple(state[key].shape)}, and the parameter {tuple(self._views[name].shape)}"
                    raise ValueError(f"the state's {key} of {name} has the shape {shapes}: it is another model's")

    def reset(self):
        """As if nothing had been averaged yet."""
        self._ranks_agree = False
        for reducer in self._reducers:
            reducer.reset()
        self.skipped_steps = self._skips_in_a_row = 0


def fastest_for(named_parameters, settings, communicator):
    """The `Choice` (see auto.py) for a model with these parameters, of which it changes nothing."""

    def make(compression, settings):
        return GradientAverager(named_parameters, compression, settings, communicator)

    names, device = [name for name, _ in named_parameters], named_parameters[0][1].device
    return fastest(make, names, settings, communicator, device)


def _split(named_parameters, settings):
    """Those that are compressed, and those that the settings exclude."""
    smallest, sparse, dense = settings.exclude_below or 0, [], []
    for name, parameter in named_parameters:
        excluded = parameter.numel() < smallest or any(fnmatch(name, pattern) for pattern in settings.excluded)
        (dense if excluded else sparse).append((name, parameter))
    return sparse, dense


def _communicator(given):
    if given is not None:
        return over(given)
    communicator = connect()
    unseen = ranks_that_are_not_seen(communicator.size)
    if unseen:
        log.warning(unseen)
    return communicator
