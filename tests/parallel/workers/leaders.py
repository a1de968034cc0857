"""A state of ranks that reduced alone is taken up by nodes of two, whose other ranks have nothing of their own.

Prints a JSON object: which of residual and velocity each rank has when it has loaded and after the next step; by how
much what was delivered in the end differs from the residuals that were saved; and of each leader's velocity, in how
many places it is not 0, for it was sent, and how many of these are not what its node's ranks had.
"""

import json
import sys
from dataclasses import replace

import torch

import oktopk
from oktopk import GradientAverager, Settings
from oktopk.testing.meeting import texts_of_all

N, STEPS = 500, 40
COMM = oktopk.connect()
ALONE = Settings(density=0.1, warmup_iters=0)
NODES = replace(ALONE, hierarchical=True, ranks_per_node=2)


def averager(settings):
    return GradientAverager([("w", torch.nn.Parameter(torch.zeros(N)))], "oktopk", settings, COMM)


def step(averager, gradient):
    averager.view("w").copy_(gradient)
    averager.average()
    return averager.view("w").double().clone()


def buffers(averager):
    return texts_of_all(COMM, " ".join(sorted(set(averager.state_dict()["parameters"]["w"]) - {"reductions"})))


def summed(tensor):
    tensor = tensor.double().clone()
    COMM.allreduce(tensor)
    return tensor


def taken_up(momentum):
    before = averager(replace(ALONE, momentum=momentum))
    generator = torch.Generator().manual_seed(COMM.rank)
    for _ in range(3):
        step(before, torch.randn(N, generator=generator))
    state = before.state_dict()
    kept = state["parameters"]["w"]
    after = averager(replace(NODES, momentum=momentum))
    after.load_state_dict(state)
    loaded = buffers(after)
    delivered, nothing = torch.zeros(N, dtype=torch.float64), torch.zeros(N)
    delivered += step(after, nothing)
    led, velocity = buffers(after), after.state_dict()["parameters"]["w"].get("velocity", nothing)
    due = momentum * COMM.allgather(kept.get("velocity", nothing))[COMM.rank : COMM.rank + 2].sum(0)
    wrong = (velocity != 0) & ((velocity - due).abs() > 1e-5)
    velocities = texts_of_all(COMM, f"{velocity.count_nonzero()} {wrong.count_nonzero()}")
    for _ in range(STEPS if not momentum else 0):
        delivered += step(after, nothing)
    lost = (COMM.size * delivered - summed(kept["residual"])).abs().max().item()
    return {"loaded": loaded, "led": led, "lost": lost, "velocities": velocities[::2]}


found = {name: taken_up(momentum) for name, momentum in (("plain", 0.0), ("momentum", 0.9))}
if COMM.rank == 0:
    sys.stdout.write(f"{json.dumps(found)}\n")
