"""Ways of averaging gradients in training: ours, and PyTorch's DDP with its communication hooks."""

import copy
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dl_trainer import MOMENTUM
from lab import sent_from_here
from oktopk import DistributedOptimizer
from oktopk_training.errors import UserError

MEGABYTE = 1e6
EPILOG = "All options of LSTM/main_trainer.py are taken too, as --hidden-size, --batch-size and --data-dir."


class How(NamedTuple):
    """What all methods are told: learning rate, dense steps before the first compressed one, longest mean gradient."""

    lr: float
    warmup_iters: int
    max_grad_norm: float | None = None


@dataclass(frozen=True)
class Ours:
    compression: str
    momentum_correction: bool = True  # as in main_trainer.py, where steps are sparse
    settings: dict = field(default_factory=dict)

    @property
    def warm_up(self):
        """The method whose steps come first, where they are others."""
        return None if self.compression == "dense" else "dense"

    def start(self, net, communicator, how):
        """The net as it is called, and its optimizer."""
        settings = {"warmup_iters": how.warmup_iters, **self.settings}
        if self.momentum_correction:
            settings |= {"momentum_correction": True, "velocity_clip": how.max_grad_norm}
        is_sparse = self.compression != "dense"
        named, base = net.named_parameters(), _sgd(net, how.lr)
        return net, DistributedOptimizer(
            base, named, self.compression, is_sparse, communicator=communicator, **settings
        )


@dataclass(frozen=True)
class Ddp:
    """With a hook or without; `hook(how)` gives its state and the function.

    A hook that sends more once an answer has come needs `one_bucket`: over Gloo, ranks would mix up those of several.
    """

    hook: Callable | None = None
    one_bucket: bool = False
    momentum_correction = False

    @property
    def warm_up(self):
        return "DDP" if self.one_bucket else None

    def start(self, net, communicator, how):
        """See Ours; it goes over a process group of its own."""
        whole = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters()) / MEGABYTE
        wrapped = DistributedDataParallel(net, bucket_cap_mb=whole if self.one_bucket else None)
        if self.hook:
            wrapped.register_comm_hook(*self.hook(how))
        return wrapped, _sgd(net, how.lr)


def _sgd(net, lr):
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=MOMENTUM)


def _float16(how):
    return None, default_hooks.fp16_compress_hook


def _bfloat16(how):
    """As torch's own, which refuses CPUs, though Gloo takes the type."""

    def hook(_, bucket):
        narrow = bucket.buffer().div(dist.get_world_size()).bfloat16()
        future = dist.all_reduce(narrow, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    return None, hook


def _power_sgd(rank):
    def hook(how):
        begins = max(how.warmup_iters, POWER_SGD_BEGINS)
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=begins)
        return state, powerSGD_hook.powerSGD_hook

    return hook


POWER_SGD_BEGINS = 2  # at the earliest, for it has to see a dense step
METHODS = {
    "DDP": Ddp(),
    "DDP, float16 hook": Ddp(_float16),
    "DDP, bfloat16 hook": Ddp(_bfloat16),
    **{f"DDP, PowerSGD rank {rank}": Ddp(_power_sgd(rank), one_bucket=True) for rank in (1, 2, 4)},
    "dense": Ours("dense", momentum_correction=False),
    "dense, overlapped": Ours("dense", momentum_correction=False, settings={"overlap": True}),
    **{name: Ours(name) for name in ("topkA", "gtopk", "oktopk")},
    "oktopk, no momentum correction": Ours("oktopk", momentum_correction=False),
    "oktopk, bfloat16": Ours("oktopk", settings={"wire": "gaps16"}),
    "auto": Ours("auto"),
}


def chosen(words):
    """Of a command line's NAME|NAME…; all, if it is None."""
    if words is None:
        return list(METHODS)
    names = [name.strip() for name in words.split("|")]
    for name in names:
        if name not in METHODS:
            raise UserError(f"--methods: there is no {name!r}; there are {' | '.join(METHODS)}")
    return names


def started(name, net, ranks, how):
    """A copy of the net as the method trains it: the copy, how it is called, its optimizer."""
    own = copy.deepcopy(net)
    called, optimizer = METHODS[name].start(own, ranks.new_communicator(name), how)
    choice = choice_of(optimizer)
    if choice and ranks.is_first:
        print(f"{name}: {choice.reason}", file=sys.stderr, flush=True)
    return own, called, optimizer


def choice_of(optimizer):
    """What `auto` took; None of all others."""
    return getattr(getattr(optimizer, "averager", None), "choice", None)


def meet_by_gloo(ranks):
    """Under torchrun they have met."""
    if dist.is_initialized():
        return
    address = ranks.from_first(_free_address)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=ranks.rank, world_size=ranks.size)


def _free_address():
    """Of this host: its name in a lab, where all know it, or of the machine itself."""
    host = socket.gethostname() if sent_from_here() is not None else "127.0.0.1"
    with socket.socket() as free:
        free.bind((host, 0))
        return f"{host}:{free.getsockname()[1]}"
