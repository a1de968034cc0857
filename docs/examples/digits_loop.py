"""A convolutional net on scikit-learn's handwritten digits, in a loop of one's own; dense beside sparse.

python docs/examples/digits_loop.py [EPOCHS]
mpiexec -n 2 python docs/examples/digits_loop.py
torchrun --standalone --nproc-per-node 2 docs/examples/digits_loop.py
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import oktopk

EPOCHS = int([*sys.argv, 15][1])
BATCH, VALIDATION = 32, 297
RANKS = oktopk.connect()
DIGITS = load_digits()
IMAGES = torch.tensor(DIGITS.images, dtype=torch.float32).unsqueeze(1) / 16
LABELS = torch.tensor(DIGITS.target)


def net():
    torch.manual_seed(0)  # the same on all ranks
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def train(compression, density):
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = oktopk.DistributedOptimizer(
        sgd, model.named_parameters(), compression=compression, density=density, warmup_iters=10
    )
    sent = steps = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(LABELS) - VALIDATION, generator=torch.Generator().manual_seed(epoch))
        own = order[: len(order) // (BATCH * RANKS.size) * BATCH * RANKS.size][RANKS.rank :: RANKS.size]
        for part in own.split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(IMAGES[part]), LABELS[part]).backward()
            optimizer.step()
            sent, steps = sent + optimizer.last_step.bytes_sent, steps + 1
    optimizer.stop()
    with torch.no_grad():
        scores = model(IMAGES[-VALIDATION:])
    loss = nn.functional.cross_entropy(scores, LABELS[-VALIDATION:]).item()
    right = (scores.argmax(1) == LABELS[-VALIDATION:]).float().mean().item()
    if RANKS.rank == 0:
        sent = f"{sent / steps / 1e3:.1f} kB a step"
        print(f"{compression} {density:.1%}: loss {loss:.3f}, accuracy {right:.3f}, {sent}", flush=True)


for compression, density in (("dense", 1.0), ("oktopk", 0.02), ("oktopk", 0.005)):
    train(compression, density)
