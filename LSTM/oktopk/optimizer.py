"""Any torch optimizer, with its gradients averaged over the ranks before each step.

    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                     model.named_parameters(), compression="oktopk", density=0.02)
    loss.backward()
    optimizer.step()         # averages the gradients over the ranks, then takes the optimizer's own step
    optimizer.zero_grad()

Gradients live in the averager's merged buffer from the start, so that merging and demerging cost nothing.
"""

import inspect
import math
import sys
import time
import weakref
from dataclasses import replace

import torch

from .averager import GradientAverager
from .registry import Settings

STATE = "oktopk"  # where the averager's share lies in the optimizer's state_dict


class Distributed:
    """Mixed in before an optimizer's own class; its attributes come on top of the optimizer's."""

    def _attach(self, wrapped, averager, named_parameters):
        self._wrapped = wrapped
        self._averager = averager
        self._named = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        self._synchronized = self._late_backward = False
        self._scale = None  # of the gradients that were synchronized, if a scaler was named
        self.local = False  # True: a step takes this rank's gradients as they are
        waiting = {name: p.grad for name, p in self._named.items() if p.grad is not None}
        self.zero_grad()
        for name, gradient in waiting.items():
            self._named[name].grad = gradient
        self._notices = [
            parameter.register_post_accumulate_grad_hook(_notice_gradient(weakref.ref(self), name))
            for name, parameter in self._named.items()
        ]

    def synchronize(self, scaler=None):
        """Make every gradient the mean over the ranks.

        The reduction begins here and not in backward: whether a gradient is finite, and how long it is, are
        properties of the whole, and until here backward may add to it as often as it likes. With `overlap`, sums of
        dense steps do begin there, and a step has one backward: set `local` for those before it.

        `scaler` is the `GradScaler` of a loop that wants to unscale and clip means before its step.
        """
        scale = None if scaler is None else scaler.get_scale()
        self._average(scale)
        if scale is not None:
            self._scale_gradients(math.inf if self.skipped else scale)

    def _average(self, scale):
        start = time.perf_counter()
        self._hand_in()
        self._averager.average(time.perf_counter() - start, scale)
        for name, parameter in self._named.items():  # one that was frozen meanwhile has no gradient, as in torch
            parameter.grad = self._averager.result(name) if parameter.requires_grad else None
        self._synchronized, self._scale = True, scale

    def _hand_in(self):
        self._follow_wrapped()
        self._check_parameters()
        self._refuse_a_late_backward()
        self._copy_strays()
        for name, parameter in self._named.items():
            view = self._averager.view(name)
            self._averager.hand_in(name, view.zero_() if parameter.grad is None else parameter.grad)

    @torch.no_grad()
    def _scale_gradients(self, factor):
        """An infinite factor leaves infinities: what a `GradScaler` looks for."""
        for parameter in self._named.values():
            if parameter.requires_grad and factor == math.inf:
                parameter.grad = torch.full_like(parameter, factor) if parameter.grad is None else parameter.grad
                parameter.grad.fill_(factor)
            elif parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _copy_strays(self):
        """Gradients that were exchanged by hand lie in each other's places: handing in one would overwrite another."""
        for name, parameter in self._named.items():
            view, gradient = self._averager.view(name), parameter.grad
            if gradient is None or gradient.data_ptr() == view.data_ptr() or gradient.device != view.device:
                continue
            if gradient.untyped_storage().data_ptr() == view.untyped_storage().data_ptr():
                parameter.grad = gradient.clone()

    def _follow_wrapped(self):
        """The wrapped optimizer may have loaded a state itself, in which the averager has no share."""
        if self._wrapped.param_groups is not self.param_groups:
            self.state, self.param_groups = self._wrapped.state, self._wrapped.param_groups
            self._leave_momentum_to_averager()
            self._averager.reset()

    def _leave_momentum_to_averager(self):
        if self._averager.settings.momentum:
            _drop_momentum(self.param_groups)

    def _check_parameters(self):
        """What the optimizer steps and the averager does not know would drift apart between the ranks."""
        known = {id(parameter) for parameter in self._named.values()}
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in known:
                    raise ValueError(
                        f"a parameter of shape {tuple(parameter.shape)} in group {number} is trained, but was not "
                        "among the named parameters when the optimizer was wrapped: wrap it again with all of them"
                    )

    def _note(self, name, gradient):
        self._late_backward = self._synchronized
        if not self._synchronized and not self.local:
            self._averager.gradient_is_made(name, gradient)

    def _refuse_a_late_backward(self):
        if self._synchronized and self._late_backward:
            raise RuntimeError(
                "backward was called after synchronize(), so this rank's own gradient was added to the mean over the "
                "ranks: call it before synchronize(), or zero_grad() before it"
            )

    def step(self, closure=None):
        """The optimizer's own step on the averaged gradients; none at all if any rank's gradient was not finite."""
        if closure is not None and inspect.signature(super().step).parameters["closure"].default is not None:
            return super().step(lambda: self._averaged(closure))  # LBFGS and its like evaluate it several times
        loss = closure() if closure is not None else None
        self._refuse_a_late_backward()
        if getattr(self, "found_inf", None) is not None:
            self._prepare_scaled_step()
        if not self.local and not self._synchronized:
            self.synchronize()
        self._synchronized = self._late_backward = False
        if self.local or not self.skipped:
            super().step()
        # A scheduler that was given the optimizer before it was wrapped asks there whether it has stepped.
        self._wrapped._opt_called = True
        return loss

    def _prepare_scaled_step(self):
        """A `GradScaler` is stepping this: it has set `found_inf` and, unless it has unscaled before, `grad_scale`."""
        scale, overflow = self.grad_scale, self.found_inf
        self.grad_scale = self.found_inf = None  # the optimizer's own step shall not heed them again
        if self.local:
            raise RuntimeError("a GradScaler cannot take a step that is not averaged over the ranks")
        if not self._synchronized and scale is not None:
            if overflow.item():  # on all ranks: see below
                self._averager.skip()
                self._synchronized = True
            else:
                self._average(scale.item())
        elif not self._synchronized or self._scale is None:
            raise RuntimeError(
                "the GradScaler must know the gradients that all ranks have: call optimizer.synchronize(scaler) before "
                "scaler.unscale_(optimizer), or neither of both"
            )
        elif scale is not None and not self.skipped:
            self._scale_gradients(1 / scale.item())

    @property
    def _step_supports_amp_scaling(self):
        """Where a `GradScaler` asks, on every rank, who looks for overflows.

        It is told to call `step` always, for it would leave out a rank's own alone. But it looks for infinities itself
        first: now is the time to agree on them, and to give all ranks some if any has.
        """
        asks = isinstance(sys._getframe(1).f_locals.get("self"), torch.amp.GradScaler)
        if asks and not self._synchronized and not self.local:
            self._hand_in()
            if not self._averager.all_are_finite():
                self._scale_gradients(math.inf)
        return True

    step.hooked = True  # torch would let step hooks run here too, after loading a state; they run in super().step

    def _averaged(self, closure):
        """The mean over the ranks of the closure's loss, with gradients to match: all ranks must decide alike on it."""
        loss = torch.as_tensor(closure(), dtype=torch.float64).detach().cpu().view(1)
        self.synchronize()
        self._synchronized = self._late_backward = False
        self._averager.communicator.allreduce(loss)
        return loss.item() / self._averager.size()

    def zero_grad(self, set_to_none=True):
        """Zero the gradients in place: they stay in the merged buffer, whatever `set_to_none` says."""
        self._synchronized = self._late_backward = False
        self._averager.zero_gradients()
        for name, parameter in self._named.items():
            in_buffer = parameter.dtype == torch.float32 and parameter.requires_grad
            parameter.grad = self._averager.view(name) if in_buffer else None

    def get_current_density(self):
        return self._averager.get_current_density()

    @property
    def averager(self):
        return self._averager

    @property
    def last_step(self):
        """The `Report` of the step that was last synchronized."""
        return self._averager.last_step

    @property
    def skipped(self):
        """Whether the ranks agreed to skip that step."""
        return self._averager.last_step.skipped

    def stop(self):
        """At the end, on all ranks."""
        self._averager.close()
        for notice in self._notices:
            notice.remove()

    # State: the optimizer's own, and this rank's share of the averager's.

    def state_dict(self):
        state = super().state_dict()
        state["param_groups"] = [{**group, **self._own_momentum()} for group in state["param_groups"]]
        return {**state, STATE: self._averager.state_dict()}

    def _own_momentum(self):
        """The optimizer's, where momentum correction keeps it: a plain optimizer that loads the state has it again."""
        settings = self._averager.settings
        return {"momentum": settings.momentum, "nesterov": settings.nesterov} if settings.momentum else {}

    def load_state_dict(self, state_dict):
        """Torch puts new groups and a new state in place of the old; the wrapped optimizer's users see them too.

        A state without a share of the averager's lets that begin anew.
        """
        super().load_state_dict({key: value for key, value in state_dict.items() if key != STATE})
        self._wrapped.state, self._wrapped.param_groups = self.state, self.param_groups
        self._leave_momentum_to_averager()
        if STATE in state_dict:
            self._averager.load_state_dict(state_dict[STATE])
        else:
            self._averager.reset()

    def __deepcopy__(self, memo):
        raise self._no_copy()

    def __reduce_ex__(self, protocol):
        raise self._no_copy()

    def _no_copy(self):
        return TypeError(
            f"a {type(self).__name__} is bound to its model and to the other ranks, and is neither copied nor pickled: "
            "keep its state_dict(), wrap an optimizer of the copied model, and load that there"
        )

    def _unwrap(self):
        """The optimizer as it was, for somebody who wraps it anew; and the averager's state."""
        self._follow_wrapped()
        for group in self.param_groups:
            group.update(self._own_momentum())
        return self._wrapped, self._averager.state_dict()


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression="oktopk",
    is_sparse=True,
    *,
    momentum_correction=False,
    communicator=None,
    **options,
):
    """Wrap an optimizer; its class stays one of the wrapper's classes, its state and groups are shared.

    `options` are those of `Settings`; without `is_sparse` every step is dense. With `momentum_correction` the
    optimizer's momentum moves into the averager, where it is accumulated before compression.

    Every parameter has a gradient here, of zeros if no rank made one: such a one's momentum and decay go on.
    """

    def make(named, settings):
        return GradientAverager(named, compression if is_sparse else "none", settings, communicator)

    return wrap(optimizer, named_parameters, make, Settings(**options), momentum_correction)


def wrap(optimizer, named_parameters, make_averager, settings, momentum_correction=False, mixin=Distributed):
    """The wrapped optimizer, over the averager that `make_averager(named_parameters, settings)` gives.

    One that is wrapped already is wrapped anew: what its averager has not delivered yet goes over, by name.
    """
    before, state = None, None
    if isinstance(optimizer, Distributed):
        before, (optimizer, state) = optimizer, optimizer._unwrap()
    if named_parameters is None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        named_parameters = [(f"parameter.{i}", p) for i, p in enumerate(parameters)]
    named_parameters = list(named_parameters)
    if momentum_correction:
        momentum, nesterov = _take_momentum(optimizer)
        settings = replace(settings, momentum=momentum, nesterov=nesterov)
    settings.check_names([name for name, _ in named_parameters])
    averager = make_averager(named_parameters, settings)
    own_class = type(optimizer)
    wrapper = type(f"Distributed{own_class.__name__}", (mixin, own_class), {})
    wrapped = wrapper.__new__(wrapper)
    # A scheduler that was made first has left its own `step` in the instance: ours must come before it.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    if before is not None:
        still_here = {name for name, parameter in named_parameters if parameter.requires_grad}
        kept = {name: own for name, own in state["parameters"].items() if name in still_here}
        averager.load_state_dict({**state, "parameters": kept})
        before.stop()
    wrapped._attach(optimizer, averager, named_parameters)
    return wrapped


def _notice_gradient(optimizer, name):
    """A hook that every backward calls; it must not keep the optimizer alive."""

    def notice(parameter):
        distributed = optimizer()
        if distributed is not None:
            distributed._note(name, parameter.grad)

    return notice


def _take_momentum(optimizer):
    """The optimizer's momentum, and whether it is Nesterov's; it steps without from now on."""
    kinds = {(group.get("momentum", 0), group.get("nesterov", False)) for group in optimizer.param_groups}
    if len(kinds) != 1 or next(iter(kinds))[0] == 0:
        found = sorted({factor for factor, _ in kinds})
        raise ValueError(f"momentum correction needs an optimizer with one momentum above 0, found {found}")
    for name in ("weight_decay", "dampening"):
        if any(group.get(name, 0) for group in optimizer.param_groups):
            raise ValueError(f"momentum correction knows no {name}, which would act outside the momentum: set it to 0")
    _drop_momentum(optimizer.param_groups)
    return kinds.pop()


def _drop_momentum(groups):
    for group in groups:
        group.update(momentum=0.0, nesterov=False)
