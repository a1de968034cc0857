"""Words that the busiest rank sends and receives in one reduction, as multiples of k; and that large indices survive.

argv: elements, density. Prints {compressor: {"sent": …, "received": …, "selected": [lowest, highest] of selected / k}}
over many iterations of random gradients, and under "large" what came back from indices above 2^24.
"""

import json
import sys

import torch
from mpi4py import MPI

from oktopk import GradientAverager, Settings, compressors

COMM = MPI.COMM_WORLD
ITERATIONS = 60 if COMM.size == 2 else 10
WORD = 4


def make(name, elements, density):
    parameter = torch.nn.Parameter(torch.zeros(elements))
    return GradientAverager([("p", parameter)], name, Settings(density=density, warmup_iters=0))


def reduce(averager, gradient):
    averager.hand_in("p", gradient)
    report = averager.average()
    return averager.result("p"), report


def volume(name, elements, density):
    averager, k = make(name, elements, density), max(1, int(elements * density))
    generator = torch.Generator().manual_seed(COMM.rank)
    sent, received, selected = [], [], []
    for _ in range(ITERATIONS):
        _, step = reduce(averager, torch.randn(elements, generator=generator))
        sent.append(COMM.allreduce(step.bytes_sent, MPI.MAX))
        received.append(COMM.allreduce(step.bytes_received, MPI.MAX))
        selected.append((step.selected_global or elements) / k)
    averager.close()
    return {
        "sent": [min(sent) / WORD / k, max(sent) / WORD / k],
        "received": [min(received) / WORD / k, max(received) / WORD / k],
        "selected": [min(selected), max(selected)],
    }


def large_indices(name):
    """Each rank has one entry of its own and one in common, all above 2^24."""
    elements = (1 << 24) + 1001
    gradient = torch.zeros(elements)
    gradient[(1 << 24) + 1 + 2 * COMM.rank] = 1.0 + COMM.rank
    gradient[elements - 1] = 10.0
    mean, _ = reduce(make(name, elements, 50 / elements), gradient)
    where = mean.nonzero().squeeze(1)
    return {int(i) - (1 << 24): float(mean[i]) * COMM.size for i in where}


elements, density = int(sys.argv[1]), float(sys.argv[2])
names = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
found = {name: volume(name, elements, density) for name in names}
if len(sys.argv) > 3:
    found["large"] = {name: large_indices(name) for name in sys.argv[3].split(",")}
if COMM.rank == 0:
    sys.stdout.write(json.dumps(found) + "\n")
