"""The hook with Hugging Face Accelerate: what `prepare` returns is DDP, and takes it.

torchrun --standalone --nproc-per-node 2 docs/examples/with_accelerate.py [STEPS [FOLDER OF CHECKPOINTS]]"""

import sys

import torch
from accelerate import Accelerator

from oktopk import Checkpoints, SparseState, sparse_hook

STEPS, FOLDER = int([*sys.argv, 5][1]), [*sys.argv, None, None][2]
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(100, 10)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
state = SparseState(density=0.02, warmup_iters=2)
model.register_comm_hook(state, sparse_hook)
parts, first = {"model": model, "optimizer": optimizer, "sparse": state}, 0
checkpoints = Checkpoints(FOLDER) if FOLDER else None
found = checkpoints and checkpoints.load()
if found:
    first = found.step
    for name, part in parts.items():
        part.load_state_dict(found.state[name])
for step in range(first, STEPS):
    batch = torch.randn(8, 100, generator=torch.Generator().manual_seed(2 * step + accelerator.process_index))
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    if checkpoints:
        checkpoints.save(step + 1, {name: part.state_dict() for name, part in parts.items()})
if accelerator.is_main_process:
    weights = sum(parameter.square().sum().item() for parameter in model.parameters())
    print(f"{state.last_step.phase} step, {state.last_step.selected_global} entries, weights {weights!r}")
accelerator.end_training()
