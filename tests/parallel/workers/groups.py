"""A case of hooks.py: process groups that reducers make, of all ranks and of some."""

import torch.distributed as dist
from torch import nn, zeros

from oktopk import GradientAverager, Settings


def nodes():
    """Of all ranks, made and given back several times; of some they are refused, and so are groups that would hang."""
    named, refused = [("p", nn.Parameter(zeros(1000)))], []
    settings = Settings(density=0.1, warmup_iters=0, hierarchical=True, ranks_per_node=2)
    groups = []
    for group in map(dist.new_group, ([0, 1], [0, 2])):
        if dist.get_rank(group) >= 0:
            try:
                GradientAverager(named, "oktopk", settings, group)
            except ValueError as error:
                refused.append(str(error))
    for _ in range(3):
        averager = GradientAverager(named, "oktopk", settings)
        averager.view("p").fill_(dist.get_rank() + 1)
        averager.average()
        averager.close()
        groups.append(len(dist.distributed_c10d._world.pg_map))
    return {"refused": refused, "means": averager.view("p").unique().tolist(), "more_groups": groups[-1] - groups[0]}
