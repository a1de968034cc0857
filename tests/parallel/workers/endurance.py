"""Many steps of a small model: endurance.py STEPS. Prints memory and what was left behind, as JSON.

Under torchrun through DDP's hook, under mpiexec through the optimizer. `endurance.py STEPS REDUCERS` makes so many
reducers instead, one after another, of so many steps each; every other one is stopped, and the rest are dropped.
"""

import ctypes
import gc
import json
import os
import sys
import threading

import torch

from oktopk import DistributedOptimizer, connect
from oktopk.launchers import rendezvous_is_known

FIRST = 20  # steps, of which some are dense
SETTLED = 2  # the part of the steps, or of the reducers, after which memory must be flat: one in so many


class Heap(ctypes.Structure):
    """What glibc's mallinfo2 tells; `resident` grows by what it keeps free, too."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def in_use():
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    return mallinfo().uordblks


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def figures():
    gc.collect()
    return resident(), in_use(), threading.active_count(), len(os.listdir("/proc/self/fd"))


class Loop:
    """Of somebody's own, around the optimizer."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.optimizer = DistributedOptimizer(sgd, self.model.named_parameters(), density=0.02, warmup_iters=5)
        torch.manual_seed(self.optimizer.averager.rank())

    def run(self, steps, first=0):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 20)).square().mean().backward()
            self.optimizer.step()
        return self


def many_steps(steps):
    if rendezvous_is_known():
        import torch.distributed as dist
        from ddp_training import Training

        dist.init_process_group("gloo")
        loop = Training(density=0.02, warmup_iters=5)
    else:
        loop = Loop()
    settled = max(FIRST, steps // SETTLED)
    loop.run(settled)
    before = figures()
    loop.run(steps - settled, first=settled)
    return before, figures()


def many_reducers(steps, reducers):
    for number in range(reducers):
        if number == reducers // SETTLED:
            before = figures()
        loop = Loop().run(steps)
        if number % 2:
            loop.optimizer.stop()
    del loop
    return before, figures()


def main():
    steps, *reducers = map(int, sys.argv[1:])
    before, after = many_reducers(steps, *reducers) if reducers else many_steps(steps)
    if connect().rank == 0:
        found = {"growth": after[0] / before[0] - 1, "in_use": after[1] / before[1] - 1}
        found.update(threads=after[2] - before[2], files=after[3] - before[3])
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
