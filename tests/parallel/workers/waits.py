"""A loop of one's own in which ranks wait for others: rank 1 has a gradient that is not finite, is stopped for a while,
rank 0 is slow once, and then rank 1 leaves after one step fewer.
"""

import os
import subprocess
import sys
from threading import Event

import torch

from oktopk import DistributedOptimizer

STEPS, A_WHILE = 6, 4  # seconds

model = torch.nn.Linear(40, 5)
torch.nn.init.ones_(model.weight)
optimizer = DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), density=0.1, warmup_iters=2
)
rank = optimizer.averager.rank()
for step in range(STEPS - (rank == 1)):
    optimizer.zero_grad()
    model(torch.ones(3, 40)).square().mean().backward()
    if step == 1 and rank == 1:
        model.weight.grad[0, 0] = torch.nan
    if step == 2 and rank == 1:
        subprocess.Popen(
            ["sh", "-c", f"sleep 0.2; kill -STOP {os.getpid()}; sleep {A_WHILE}; kill -CONT {os.getpid()}"]
        )
        Event().wait(1)
    if step == 3 and rank == 0:
        Event().wait(A_WHILE)
    optimizer.step()
    sys.stdout.write(f"step {step} of rank {rank}\n")
    sys.stdout.flush()
if rank == 1:
    sys.exit()
optimizer.stop()
sys.stdout.write("through\n")
