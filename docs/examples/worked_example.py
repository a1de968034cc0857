"""Ok-Topk step by step on 12 elements over 3 ranks:  mpiexec -n 3 python docs/examples/worked_example.py"""

import torch

import oktopk
from oktopk import Settings, compressors
from oktopk.testing.meeting import texts_of_all

N, K = 12, 3
GRADIENTS = [
    [9, 0, 1, -2, 0, 0, 5, 1, 0, 0, 4, 0],
    [6, 0, 0, 7, 0, 1, 0, 0, -3, 0, 0, 2],
    [0, 1, 0, -5, 0, 0, 4, 0, 0, 9, 0, 0],
]


def show(title, own):
    """A line from each rank, of its entries or of what is true for all."""
    everyone = texts_of_all(comm, own if isinstance(own, str) else in_words(own))
    if comm.rank == 0:
        print(title)
        for rank, text in enumerate(everyone):
            print(f"  rank {rank}: {text}")


def in_words(entries):
    pairs = zip(entries.indices.tolist(), entries.values.tolist(), strict=True)
    return ", ".join(f"[{index}] {value:g}" for index, value in pairs) or "nothing"


comm = oktopk.connect()
if comm.size != len(GRADIENTS):
    raise SystemExit("start it on three ranks: mpiexec -n 3 python docs/examples/worked_example.py")
gradient, residual = torch.tensor(GRADIENTS[comm.rank], dtype=torch.float32), torch.zeros(N)
chooser, algorithm = compressors["oktopk"].make(comm, gradient.device, N, Settings(density=K / N))

show("the gradient of", " ".join(f"{value:2d}" for value in GRADIENTS[comm.rank]))
chosen = chooser.choose(residual, gradient)
show("1. what each chooses, its 3 largest", chosen)
regions = algorithm.current_regions(chosen.indices)
show("2. the region that each owns", "{} to {}".format(*regions.cuts[comm.rank : comm.rank + 2]))
sums = algorithm.exchange.split_and_reduce(chosen, regions)
show("   what it gets there, summed up", sums)
kept, counts = algorithm.choose_globally(sums)
show("3. of these, what is among the 3 largest of all", kept)
everyone, _ = algorithm.exchange.gather(kept)
show("4. what all have, once that is gathered", everyone)
delivered = algorithm.ops.common(chosen, everyone)
algorithm.ops.subtract(residual, delivered)
show("5. what each has delivered of its own", delivered)
show("   and the residual that stays with it", " ".join(f"{value:2.0f}" for value in residual.tolist()))
mean = torch.zeros(N)
algorithm.ops.put(mean, everyone)
show("the mean, which is the gradient now", " ".join(f"{value:2.0f}" for value in (mean / comm.size).tolist()))
