"""Doors for programs that train with DistributedDataParallel or FSDP2.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(SparseState(density=0.02, warmup_iters=128), sparse_hook)

DDP makes its buckets anew after the first steps: what is kept from step to step belongs to parameters here, not to
buckets. All buckets of a step are collected and reduced as one, in their order in the model, once the last has come.
"""

import time
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from .averager import GradientAverager
from .devices import on_cpu
from .pieces import PiecewiseAverager
from .registry import Settings, find_compressor
from .transports import connect, over

HEAD = 64  # elements of a gradient that tell almost always whether it is all zeros


class _Bucket(NamedTuple):
    """Its gradients lie in its buffer, and whoever has the future waits for their means there."""

    parameters: list
    gradients: list
    buffer: torch.Tensor
    future: torch.futures.Future
    in_backward: bool

    @property
    def is_of_a_rank_without_data(self):
        """Under `join()`, DDP calls the hook with zeros for ranks that are through, and outside of any backward."""
        return not self.in_backward and not self.buffer.any()


class SparseState:
    """What `sparse_hook` reduces a model with, and what it keeps between steps. One state serves one model.

    `compression` is a compressor or its name, `options` are those of `Settings`. With `named_parameters` (those of the
    model) its state and `exclude` go by these names; without, parameters are numbered in the order of the model.
    `scaler` is the `GradScaler` of the program, if it has one: residuals are kept in units that do not change with its
    scale. `per_bucket` chooses in each bucket apart, while backward goes on: another algorithm.
    """

    def __init__(
        self,
        compression="oktopk",
        *,
        named_parameters=None,
        process_group=None,
        scaler=None,
        per_bucket=False,
        **options,
    ):
        self.compressor, self.settings = find_compressor(compression), Settings(**options)
        self._names = None if named_parameters is None else {id(each): name for name, each in named_parameters}
        if self._names is None and self.settings.exclude:
            raise ValueError("exclude goes by names: give named_parameters=model.named_parameters() too")
        if scaler is not None and per_bucket:
            raise ValueError(
                "a GradScaler skips whole steps, and per_bucket has sent parts of them by then: leave one of them out"
            )
        self._group, self._scaler, self._per_bucket = process_group, scaler, per_bucket
        self._waiting, self._averager, self._loaded = [], None, None

    @property
    def averager(self):
        """None before the first step."""
        return self._averager

    @property
    def last_step(self):
        """The `Report` of the last step; None before it."""
        return self._averager.last_step if self._averager else None

    def take(self, bucket):
        """A future of the bucket's means."""
        buffer = _buffer_of(bucket)
        if bucket.index() == 0:
            self._waiting.clear()  # of a backward that was given up
        future = torch.futures.Future(devices=None if on_cpu(buffer.device) else [buffer.device])
        in_backward = torch._C._current_graph_task_id() != -1
        self._waiting.append(_Bucket(bucket.parameters(), bucket.gradients(), buffer, future, in_backward))
        if bucket.is_last():
            self._reduce_all()
        elif self._per_bucket and self._averager is not None:
            self._reduce_alone(self._waiting.pop())
        return future.then(torch.futures.Future.value) if self._per_bucket else future  # for errors to arrive as such

    def _reduce_all(self):
        buckets, self._waiting = self._waiting, []
        if self._averager is None:
            self._begin(buckets)
        if self._per_bucket:
            for bucket in buckets:
                self._reduce_alone(bucket)
        else:
            self._reduce_together(buckets)

    def _reduce_alone(self, bucket):
        named = [(self._name_of(parameter), parameter) for parameter in bucket.parameters]
        gradients = list(zip(named, bucket.gradients, strict=True))
        used = dict(zip((name for name, _ in named), _are_used(bucket.gradients), strict=True))
        self._averager.average_soon(gradients, bucket.is_of_a_rank_without_data, used, bucket.buffer, bucket.future)

    def _reduce_together(self, buckets):
        start = time.perf_counter()
        pairs = [pair for each in buckets for pair in zip(each.parameters, each.gradients, strict=True)]
        for parameter, gradient in pairs:
            self._averager.hand_in(self._name_of(parameter), gradient)
        scale = 1 if self._scaler is None else self._scaler.get_scale()
        abstains = all(each.is_of_a_rank_without_data for each in buckets)
        used = _are_used([gradient for _, gradient in pairs])
        used = {self._name_of(parameter): flag for (parameter, _), flag in zip(pairs, used, strict=True)}
        report = self._averager.average(time.perf_counter() - start, scale, abstains, used)
        for parameter, gradient in pairs:
            mean = self._averager.view(self._name_of(parameter))
            if report.skipped:
                gradient.fill_(torch.inf)  # as DDP would have it: a GradScaler hears of it on every rank
            else:
                gradient.copy_(mean if scale == 1 else mean * scale)
        for each in buckets:
            each.future.set_result(each.buffer)

    def _begin(self, buckets):
        """Now every parameter is known. DDP's first buckets are those of the model, the last ones first."""
        parameters = [parameter for each in reversed(buckets) for parameter in each.parameters]
        if self._names is None:
            self._names = {id(parameter): f"parameter.{i}" for i, parameter in enumerate(parameters)}
        self.settings.check_names(list(self._names.values()))
        place = {name: i for i, name in enumerate(self._names.values())}
        named = sorted(((self._name_of(each), each) for each in parameters), key=lambda pair: place[pair[0]])
        communicator = connect("torch") if self._group is None else over(self._group)
        if self._per_bucket:
            self._averager = PiecewiseAverager(self.compressor, self.settings, communicator)
        else:
            self._averager = GradientAverager(named, self.compressor, self.settings, communicator)
        if self._loaded is not None:
            self._averager.load_state_dict(self._loaded)

    def _name_of(self, parameter):
        if id(parameter) not in self._names:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is not among those of this state: give each model a "
                "state of its own, and named_parameters all that are trained"
            )
        return self._names[id(parameter)]

    def state_dict(self):
        """This rank's share: what was not delivered yet, by parameter. `torch.load` takes it with weights_only."""
        if self._averager is None:
            return self._loaded or {}
        return self._averager.state_dict()

    def load_state_dict(self, state):
        """Go on from such a share, now or before the first step."""
        self._loaded = state or None
        if self._averager is not None and state:
            self._averager.load_state_dict(state)

    def close(self):
        """At the end, on all ranks."""
        if self._averager is not None:
            self._averager.close()
            self._averager.communicator.close()

    def __reduce__(self):
        raise TypeError("a SparseState is bound to its model and to the other ranks: save its state_dict() instead")


def sparse_hook(state, bucket):
    """For `DistributedDataParallel.register_comm_hook`, with a `SparseState`."""
    return state.take(bucket)


def _buffer_of(bucket):
    if not isinstance(bucket, dist.GradBucket):
        raise TypeError(
            "the hook was not given one of DDP's buckets: of torch.compile's ways to treat DDP, python_reducer ignores "
            'what hooks return; set torch._dynamo.config.optimize_ddp = "ddp_optimizer"'
        )
    if bucket.buffer().is_sparse:
        raise TypeError("a gradient is a sparse tensor, and a dense one is needed: give its embedding sparse=False")
    return bucket.buffer()


def _are_used(gradients):
    """Whether each has anything but zeros: DDP drops the means of parameters that no rank has used."""
    if on_cpu(gradients[0].device):
        return [bool(each.flatten()[:HEAD].any() or each.any()) for each in gradients]
    return torch.stack([each.any() for each in gradients]).tolist()


def shard_sparsely(model, process_group, compression="oktopk", **options):
    """FSDP2's all-reduce hook: dense within the mesh that `model` is sharded over, sparse between such meshes.

    Call it after `fully_shard`, with the process group of the ranks that hold the same shards. Each module that was
    sharded is reduced on its own. Returns the state, which has `last_step`, `state_dict` and `load_state_dict`.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = [(name or "model", module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError("no module of the model was sharded: call fully_shard on it first")
    averager = PiecewiseAverager(find_compressor(compression), Settings(**options), over(process_group))
    for name, module in modules:
        module.set_all_reduce_hook(partial(_average_shard, averager, name))
    return averager


def _average_shard(averager, name, reduced):
    """DDP's buckets have parameters; a shard is one flat gradient of a module."""
    flat = reduced.view(-1)
    like_it = flat.new_zeros(1).expand(flat.shape).requires_grad_()
    averager.average([((name, like_it), flat)])
