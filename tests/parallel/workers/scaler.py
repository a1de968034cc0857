"""`DistributedOptimizer` under a plain `GradScaler` with an overflow on one rank: prints what came of it as JSON."""

import itertools
import json
import sys

import torch
from torch import nn

import oktopk
from oktopk import DistributedOptimizer

BAD, STEPS = 6, 10
INPUTS, WIDTH, CLASSES = 20, 100, 5


def train(compression, correction, clips, seen=True, scale=1024.0):
    """(parameters, the scaler's last scale); without `seen` the overflowing batch is left out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=correction)
    options = {"density": 0.05, "warmup_iters": 2, "momentum_correction": correction}
    optimizer = DistributedOptimizer(sgd, model.named_parameters(), compression, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None, growth_interval=5)
    for step in range(STEPS):
        if step == BAD and not seen:
            continue
        rng = torch.Generator().manual_seed(100 * RANK + step)
        inputs, labels = torch.randn(16, INPUTS, generator=rng), torch.randint(CLASSES, (16,), generator=rng)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss * torch.inf if step == BAD and RANK == 1 else loss).backward()
        if clips:
            optimizer.synchronize(scaler)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    optimizer.stop()
    return torch.cat([each.detach().flatten() for each in model.parameters()]), scaler.get_scale()


def unscaled_too_early():
    model = nn.Linear(INPUTS, CLASSES)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, INPUTS)).sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.step(optimizer)
    except RuntimeError as error:
        return str(error)


def main():
    found = {}
    for compression, correction, clips in itertools.product(("none", "oktopk", "gtopk"), (False, True), (False, True)):
        seen, backed_off = train(compression, correction, clips)
        never, scale = train(compression, correction, clips, seen=False)
        verdict = {"as if never seen": torch.equal(seen, never), "backed off": backed_off < scale}
        if not clips:
            plain, _ = train(compression, correction, clips, seen=False, scale=None)
            verdict["as without a scaler"] = torch.equal(plain, never)
        found[f"{compression} correction={correction} clips={clips}"] = verdict
    everyones = [None] * WORLD.size
    torch.distributed.all_gather_object(everyones, found)
    if RANK == 0:
        found = {"same on all": all(each == found for each in everyones), "cases": found, "early": unscaled_too_early()}
        sys.stdout.write(json.dumps(found) + "\n")
    elif RANK:
        unscaled_too_early()


if __name__ == "__main__":
    WORLD = oktopk.connect()
    RANK = WORLD.rank
    main()
