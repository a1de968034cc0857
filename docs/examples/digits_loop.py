"""A convolutional net on scikit-learn's handwritten digits, in a loop of one's own; dense beside sparse.

mpiexec -n 2 python docs/examples/digits_loop.py [EPOCHS [FOLDER OF CHECKPOINTS, TO GO ON FROM]]
torchrun --standalone --nproc-per-node 2 docs/examples/digits_loop.py"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import oktopk

EPOCHS, FOLDER = int([*sys.argv, 15][1]), [*sys.argv, None, None][2]
BATCH, VALIDATION = 32, 297
RANKS = oktopk.connect()
PIXELS, LABELS = map(torch.tensor, load_digits(return_X_y=True))
IMAGES = PIXELS.float().view(-1, 1, 8, 8) / 16


def net():
    torch.manual_seed(0)  # the same on all ranks
    convolutions = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
    return nn.Sequential(
        *convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def train(model, optimizer, checkpoints):
    found, sent, steps = checkpoints and checkpoints.load(), 0, 0
    if found:
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])  # this rank's residuals too
        sent, steps = found.state["sent"]
    for epoch in range(found.step if found else 0, EPOCHS):
        order = torch.randperm(len(LABELS) - VALIDATION, generator=torch.Generator().manual_seed(epoch))
        own = order[: len(order) // (BATCH * RANKS.size) * BATCH * RANKS.size][RANKS.rank :: RANKS.size]
        for part in own.split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(IMAGES[part]), LABELS[part]).backward()
            optimizer.step()
            sent, steps = sent + optimizer.last_step.bytes_sent, steps + 1
        if checkpoints:
            own = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sent": (sent, steps)}
            checkpoints.save(epoch + 1, own)
    return sent / steps


for compression, density in (("dense", 1.0), ("oktopk", 0.02), ("oktopk", 0.005)):
    model, settings = net(), {"compression": compression, "density": density, "warmup_iters": 10}
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = oktopk.DistributedOptimizer(sgd, model.named_parameters(), **settings)
    sent = train(model, optimizer, FOLDER and oktopk.Checkpoints(f"{FOLDER}/{compression}-{density}", RANKS))
    optimizer.stop()
    with torch.no_grad():
        scores, truth = model(IMAGES[-VALIDATION:]), LABELS[-VALIDATION:]
    loss, right = nn.functional.cross_entropy(scores, truth), (scores.argmax(1) == truth).float().mean()
    if RANKS.rank == 0:
        figures = f"loss {loss:.3f}, accuracy {right:.3f}, {sent / 1e3:.1f} kB a step"
        print(f"{compression} {density:.1%}: {figures}", flush=True)
