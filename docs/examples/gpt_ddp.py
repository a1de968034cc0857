"""A small GPT on the text of Python's standard library, under DDP with the sparse hook; dense beside sparse.

torchrun --standalone --nproc-per-node 2 docs/examples/gpt_ddp.py [STEPS]"""

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from oktopk import SparseState, sparse_hook

STEPS, CONTEXT, WIDTH, BATCH = int([*sys.argv, 400][1]), 64, 128, 16
FILES = sorted(Path(os.__file__).parent.glob("*.py"))
TEXT = torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, FILES))), dtype=torch.uint8).long()
TRAINING, VALIDATION = TEXT[: -len(TEXT) // 10], TEXT[-len(TEXT) // 10 :]


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, None, False), nn.Linear(WIDTH, 256)
        self.register_buffer("future", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, source, size, rng):
        starts = torch.randint(len(source) - CONTEXT, (size,), generator=rng)
        text = torch.stack([source[start : start + CONTEXT + 1] for start in starts])
        x = self.bytes(text[:, :-1]) + self.places.weight
        scores = self.out(self.layers(x, mask=self.future, is_causal=True))
        return nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())


def train(compression, density):
    torch.manual_seed(0)
    model, rng = GPT(), torch.Generator().manual_seed(dist.get_rank())
    ddp, state = DistributedDataParallel(model), SparseState(compression, density=density, warmup_iters=STEPS // 10)
    ddp.register_comm_hook(state, sparse_hook)
    optimizer, sent = torch.optim.AdamW(model.parameters(), lr=1e-3), 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(TRAINING, BATCH, rng).backward()
        optimizer.step()
        sent += state.last_step.bytes_sent
    with torch.no_grad():
        loss = model(VALIDATION, 512, torch.Generator().manual_seed(0)).item()
    if dist.get_rank() == 0:
        print(f"{compression} {density:.1%}: loss {loss:.3f}, {loss / math.log(2):.3f} bits per byte, ", end="")
        print(f"{sent / STEPS / 1e3:.1f} kB a step", flush=True)


dist.init_process_group()
for compression, density in (("dense", 1.0), ("oktopk", 0.02), ("oktopk", 0.005)):
    train(compression, density)
dist.destroy_process_group()
