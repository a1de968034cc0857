"""Any torch optimizer, with its gradients averaged over the ranks before each step.

    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                     model.named_parameters(), compression=compressors["oktopk"],
                                     is_sparse=True, density=0.02)
    loss.backward()
    optimizer.step()         # averages the gradients over the ranks, then takes the optimizer's own step
    optimizer.zero_grad()

Gradients live in the reducer's merged buffer from the start, so that merging and demerging cost nothing.
"""

import inspect
import threading

import torch

from allreducer import AllReducer
from compression import compressors


class _Distributed:
    """Mixed in before an optimizer's own class; its attributes come on top of the optimizer's."""

    def _attach(self, wrapped, reducer, named_parameters):
        self._wrapped = wrapped
        self._reducer = reducer
        self._named = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        self._synchronized = False
        self.local = False  # True: a step takes this rank's gradients as they are
        waiting = {name: p.grad for name, p in self._named.items() if p.grad is not None}
        self.zero_grad()
        for name, gradient in waiting.items():
            self._named[name].grad = gradient
        self._thread = threading.Thread(target=reducer.run, name="reducer", daemon=True)
        self._thread.start()

    def synchronize(self):
        """Make every gradient the mean over the ranks. Raises what went wrong in the reducer.

        The reduction begins here and not in backward: whether a gradient is finite, and how long it is, are
        properties of the whole, and until here backward may add to it as often as it likes.
        """
        self._follow_wrapped()
        self._check_parameters()
        for name, parameter in self._named.items():
            view = self._reducer.view(name)
            self._reducer.add_tensor(name, view.zero_() if parameter.grad is None else parameter.grad)
        for name in self._named:
            self._reducer.msg_queue.put(name)
        self._reducer.msg_queue2.get()
        for name, parameter in self._named.items():  # one that was frozen meanwhile has no gradient, as in torch
            parameter.grad = self._reducer.get_result(name) if parameter.requires_grad else None
        self._synchronized = True

    def load_state_dict(self, state_dict):
        """Torch puts new groups and a new state in place of the old; the wrapped optimizer's users see them too."""
        super().load_state_dict(state_dict)
        self._wrapped.state, self._wrapped.param_groups = self.state, self.param_groups
        self._leave_momentum_to_reducer()

    def _follow_wrapped(self):
        """The wrapped optimizer may have loaded a state itself."""
        if self._wrapped.param_groups is not self.param_groups:
            self.state, self.param_groups = self._wrapped.state, self._wrapped.param_groups
            self._leave_momentum_to_reducer()

    def _leave_momentum_to_reducer(self):
        if self._reducer.has_momentum:
            _drop_momentum(self.param_groups)

    def _check_parameters(self):
        """What the optimizer steps and the reducer does not know would drift apart between the ranks."""
        known = {id(parameter) for parameter in self._named.values()}
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in known:
                    raise ValueError(
                        f"a parameter of shape {tuple(parameter.shape)} in group {number} is trained, but was not "
                        "among the named parameters when the optimizer was wrapped: wrap it again with all of them"
                    )

    def step(self, closure=None):
        """The optimizer's own step on the averaged gradients; none at all if any rank's gradient was not finite."""
        if closure is not None and inspect.signature(super().step).parameters["closure"].default is not None:
            return super().step(lambda: self._averaged(closure))  # LBFGS and its like evaluate it several times
        loss = closure() if closure is not None else None
        if not self.local and not self._synchronized:
            self.synchronize()
        self._synchronized = False
        if self.local or not self.skipped:
            super().step()
        # A scheduler that was given the optimizer before it was wrapped asks there whether it has stepped.
        self._wrapped._opt_called = True
        return loss

    def _averaged(self, closure):
        """The mean over the ranks of the closure's loss, with gradients to match: all ranks must decide alike on it."""
        loss = torch.as_tensor(closure(), dtype=torch.float64).detach().cpu().view(1)
        self.synchronize()
        self._synchronized = False
        self._reducer.communicator.allreduce(loss)
        return loss.item() / self._reducer.size()

    def zero_grad(self, set_to_none=True):
        """Zero the gradients in place: they stay in the merged buffer, whatever `set_to_none` says."""
        self._synchronized = False
        self._reducer.zero_gradients()
        for name, parameter in self._named.items():
            in_buffer = parameter.dtype == torch.float32 and parameter.requires_grad
            parameter.grad = self._reducer.view(name) if in_buffer else None

    def set_trainer(self, trainer):
        """Whose lists hear what each sparse reduction selected."""
        self._reducer.trainer = trainer

    def add_train_epoch(self):
        self._reducer.train_epoch += 1

    def get_current_density(self):
        return self._reducer.get_current_density()

    @property
    def reducer(self):
        return self._reducer

    @property
    def skipped(self):
        """Whether the ranks agreed to skip the step that was last synchronized."""
        return self._reducer.last_step.skipped

    def stop(self):
        """End the reducer's thread."""
        self._reducer.stop()
        self._thread.join()


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=compressors["none"],
    is_sparse=False,
    err_handler=None,
    layerwise_times=None,
    sigma_scale=2.5,
    density=0.1,
    norm_clip=None,
    writer=None,
    *,
    momentum_correction=False,
    **options,
):
    """Wrap an optimizer; its class stays one of the wrapper's classes, its state and groups are shared.

    `options` are the keyword-only options of `AllReducer`. With `momentum_correction` the optimizer's momentum moves
    into the reducer, where it is accumulated before compression.

    Every parameter has a gradient here, of zeros if no rank made one: such a one's momentum and decay go on.
    """
    if momentum_correction:
        options["momentum"], options["nesterov"] = _take_momentum(optimizer)
    if named_parameters is None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        named_parameters = [(f"parameter.{i}", p) for i, p in enumerate(parameters)]
    named_parameters = list(named_parameters)
    reducer = AllReducer(
        named_parameters,
        threading.Lock(),
        threading.Lock(),
        compression,
        sparse=is_sparse,
        err_callback=err_handler,
        layerwise_times=layerwise_times,
        sigma_scale=sigma_scale,
        density=density,
        norm_clip=norm_clip,
        writer=writer,
        **options,
    )
    own_class = type(optimizer)
    wrapper = type(f"Distributed{own_class.__name__}", (_Distributed, own_class), {})
    wrapped = wrapper.__new__(wrapper)
    # A scheduler that was made first has left its own `step` in the instance: ours must come before it.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    wrapped._attach(optimizer, reducer, named_parameters)
    return wrapped


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
