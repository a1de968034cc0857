"""The hook with Hugging Face Accelerate: what `prepare` returns is DDP, and takes it.

torchrun --standalone --nproc-per-node 2 docs/examples/with_accelerate.py"""

import torch
from accelerate import Accelerator

from oktopk import SparseState, sparse_hook

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(100, 10)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
state = SparseState(density=0.02, warmup_iters=2)
model.register_comm_hook(state, sparse_hook)
for _ in range(5):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(8, 100)).square().mean())
    optimizer.step()
if accelerator.is_main_process:
    print(f"{state.last_step.phase} step, {state.last_step.selected_global} entries")
accelerator.end_training()
