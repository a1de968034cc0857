"""FSDP2 over a mesh of 2 x 2 CPU ranks: dense in a node, ours between nodes. Prints differences as a JSON object."""

import json
import sys

import torch
import torch.distributed as dist
from ddp_training import flat, loss_of, net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from oktopk import shard_sparsely

STEPS = 20


def train(mesh, **options):
    """The parameters after some steps, and the state of the sparse half."""
    model, state = net(), None
    if mesh is not None:
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh["node"])
        fully_shard(model, mesh=mesh["node"])
        state = shard_sparsely(model, mesh["between"].get_group(), warmup_iters=0, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if mesh is None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
    return flat([each.full_tensor() if mesh is not None else each for each in model.parameters()]), state


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "node"))
    dense, _ = train(None)
    whole, _ = train(mesh, density=1.0)
    sparse, state = train(mesh, density=0.02)
    everyone = [torch.zeros_like(sparse) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, sparse)
    if dist.get_rank() == 0:
        found = {
            "dense": (whole - dense).abs().max().item(),
            "agree": all(torch.equal(each, sparse) for each in everyone),
            "selected": state.last_step.selected_global / state.last_step.target_k,
            "kept": sorted(state.state_dict()["parameters"]),
        }
        sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
