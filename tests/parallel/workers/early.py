"""Sums that begin in backward: whether training comes out as without them, in ways of making gradients that differ.

Prints, from rank 0, for each way: the largest difference of parameters and of reported norms, whether all ranks ended
alike, what the steps were, and how many allreduces they took; with and without. Then what is said of a second backward,
and of gradients that are dropped. With an argument: that rank fails in a backward whose sums have begun.
"""

import json
import sys

import torch

from oktopk import DistributedOptimizer, connect
from oktopk import early as early_sums

STEPS, WARM_UP = 9, 6
early_sums.BUCKET = 3000  # elements, so that there are several
comm = connect()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(40, 64)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(3)])
        self.shared = torch.nn.Linear(64, 64)
        self.last = torch.nn.Linear(64, 5)
        self.wide = torch.nn.Linear(5, 1).double()

    def forward(self, x, branch):
        x = torch.tanh(self.first(x))
        x = self.shared(torch.tanh(self.branches[branch](x)))
        return self.wide(torch.tanh(self.last(self.shared(x))).double())


def loss_of(net, step, way, part=0):
    torch.manual_seed(1000 * step + 10 * comm.rank + part)
    branch = (step + comm.rank) % 3 if way == "branches" else 0
    loss = net(torch.randn(8, 40), branch).square().mean()
    return loss * (float("nan") if way == "not finite" and step == 2 and comm.rank == comm.size - 1 else 1)


def make_gradients(net, optimizer, step, way):
    if way == "none on one rank" and comm.rank == 0 and step in (1, 2):
        return
    if way == "two parts":
        optimizer.local = True
        loss_of(net, step, way, part=1).backward()
        optimizer.local = False
    loss_of(net, step, way).backward()


def train(way, overlap):
    net = Net()
    options = {
        "merged": {"merge_size": 10_000},
        "excluded": {"exclude_below": 100},
        "sparse never": {"is_sparse": False},
        "clipped": {"norm_clip": 0.01},
    }.get(way, {})
    optimizer = DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net.named_parameters(), warmup_iters=WARM_UP,
        overlap=overlap, communicator=comm.duplicate(), **options,
    )  # fmt: skip
    norms, steps = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        make_gradients(net, optimizer, step, way)
        optimizer.step()
        done = optimizer.last_step
        norms.append(0.0 if done.skipped else done.grad_norm)
        assert min(done.seconds.values()) >= 0
        steps.append((done.phase, done.skipped, 0 if done.skipped else done.bytes_sent // 100))
        if way == "taken up" and step == 3:
            optimizer.load_state_dict(optimizer.state_dict())
    flat = torch.cat([parameter.detach().double().flatten() for parameter in net.parameters()])
    sums = optimizer.averager.communicator.traffic["allreduce"].calls
    optimizer.stop()
    return flat, torch.tensor(norms), steps, sums


def refusals():
    """What is raised, where the dense gradients of this rank may be with others already."""
    net, said = Net(), []
    for way in ("two backwards", "dropped"):
        optimizer = DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), overlap=True,
            communicator=comm.duplicate(),
        )  # fmt: skip
        loss_of(net, 0, way).backward()
        optimizer.step()  # the first step is never early
        optimizer.zero_grad()
        loss_of(net, 1, way).backward()
        try:
            loss_of(net, 1, way).backward() if way == "two backwards" else optimizer.zero_grad()
        except RuntimeError as error:
            said.append(str(error))
        optimizer.step()
        optimizer.stop()
    return said


def fail():
    net = Net()
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), overlap=True)
    for step in range(3):
        optimizer.zero_grad()
        if step == 2 and comm.rank == int(sys.argv[1]):
            net.first.weight.register_hook(lambda _: 1 / 0)  # the last gradient that backward makes
        loss_of(net, step, "fails").backward()
        optimizer.step()


if len(sys.argv) > 1:
    fail()
ways = ("plain", "branches", "none on one rank", "two parts", "not finite", "merged", "excluded", "sparse never",
        "clipped", "taken up")  # fmt: skip
found = {}
for way in ways:
    flat, norms, steps, sums = train(way, overlap=False)
    early, early_norms, early_steps, early_sums_made = train(way, overlap=True)
    everyones = comm.allgather(early)
    found[way] = {
        "difference": float((flat - early).abs().max()),
        "of norms": float((norms - early_norms).abs().max()),
        "alike": bool((everyones == early).all()),
        "steps": [steps, early_steps],
        "sums": [sums, early_sums_made],
    }
found["refused"] = refusals()
if comm.rank == 0:
    sys.stdout.write(json.dumps(found) + "\n")
comm.close()
