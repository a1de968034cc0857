"""A small model under DDP, as the cases of hooks.py train it."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from oktopk import SparseState, sparse_hook

WIDTH, INPUTS, CLASSES, BATCH = 300, 20, 5, 16
BUCKET_MB = 0.2  # of 0.4 MB: at least three buckets
LAYOUTS = {
    "plain": {},
    "view": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
}


def net():
    torch.manual_seed(0)
    layers = nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    return nn.Sequential(*layers)


def batch(step):
    rng = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(BATCH, INPUTS, generator=rng), torch.randint(CLASSES, (BATCH,), generator=rng)


def loss_of(model, step):
    inputs, labels = batch(step)
    return nn.functional.cross_entropy(model(inputs), labels)


def flat(parameters):
    return torch.cat([parameter.detach().flatten().clone() for parameter in parameters])


class Training:
    """A model under DDP, by default with our hook."""

    def __init__(self, hook=True, layout="plain", model=None, lr=0.1, bucket_mb=BUCKET_MB, **options):
        self.model = model or net()
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=bucket_mb, **LAYOUTS[layout])
        self.state = SparseState(**options) if hook else None
        if hook:
            self.ddp.register_comm_hook(self.state, sparse_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def step(self, step, backwards=1):
        self.optimizer.zero_grad()
        for number in range(backwards):
            last = number == backwards - 1
            with contextlib.nullcontext() if last else self.ddp.no_sync():
                loss_of(self.ddp, step * backwards + number).backward()
        self.optimizer.step()

    def run(self, steps, first=0):
        for step in range(first, first + steps):
            self.step(step)
        return self

    @property
    def parameters(self):
        return flat(self.model.parameters())

    def residual(self):
        states = self.state.state_dict()["parameters"]
        names = [f"parameter.{i}" for i in range(len(list(self.model.parameters())))]
        return torch.cat([states[name]["residual"].flatten() for name in names])
