"""Loads the newest checkpoint of argv[1] on all ranks; says whether their residuals add up to those that were saved."""

import json
import sys
from pathlib import Path

import torch

import oktopk
from oktopk.optimizer import STATE
from oktopk.tensor_files import read


def residuals(share):
    return torch.cat([each["residual"].double().reshape(-1) for each in share["parameters"].values()])


def main():
    ranks, checkpoints = oktopk.connect(), oktopk.Checkpoints(sys.argv[1])
    found = checkpoints.load()
    total = residuals(found.state[STATE])
    ranks.allreduce(total)
    parts = sorted(Path(sys.argv[1]).glob(f"step-{found.step:08d}/rank-*.pt"))
    saved = sum(residuals(read(part)[STATE]) for part in parts)
    if ranks.rank == 0:
        difference = ((total - saved).abs().max() / saved.abs().max()).item()
        sys.stdout.write(json.dumps({"saved by": len(parts), "ranks": found.ranks, "difference": difference}) + "\n")
    checkpoints.close()


main()
