"""What the compressor "auto" chooses, and what it leaves alone; prints a JSON object."""

import json
import sys

import torch

import oktopk
from oktopk import GradientAverager, Settings
from oktopk.testing.meeting import texts_of_all

COMM = oktopk.connect()
torch.manual_seed(1)
model = torch.nn.Linear(200, 30)
model.weight.grad = torch.ones_like(model.weight)
before = torch.get_rng_state()


def made(compression):
    return GradientAverager(model.named_parameters(), compression, Settings(density=0.1, warmup_iters=0), COMM)


def train(averager):
    for _ in range(3):
        averager.view("weight").fill_(1.0)
        averager.average()
    return averager


chosen = made("auto")
untouched = bool((model.weight.grad == 1).all()) and torch.equal(before, torch.get_rng_state())
state = train(chosen).state_dict()
another = {"compression": "oktopk", "wire": "gaps", "hierarchical": False}
resumed = made("auto")
resumed.load_state_dict({**state, "choice": another})
found = {
    "reasons": texts_of_all(COMM, chosen.choice.reason),
    "untouched": untouched,
    "zeros before the first": not resumed.view("weight").any().item(),
    "resumed with": [resumed.compressor.name, resumed.settings.wire, train(resumed).last_step.phase],
    "bytes counted of a step": chosen.last_step.bytes_sent < 4 * 6030 * 4,
}
if COMM.rank == 0:
    sys.stdout.write(f"{json.dumps(found)}\n")
