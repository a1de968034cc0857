"""The hook with Lightning. Its DDPStrategy(ddp_comm_state=…, ddp_comm_hook=…) registers hooks on CUDA devices alone;
what is done here works on CPUs too.

torchrun --standalone --nproc-per-node 2 docs/examples/with_lightning.py"""

import lightning
import torch

from oktopk import SparseState, sparse_hook


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.sparse = torch.nn.Linear(100, 10), SparseState(density=0.02, warmup_iters=2)

    def on_train_start(self):
        self.trainer.strategy.model.register_comm_hook(self.sparse, sparse_hook)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=1, strategy="ddp", **quiet)
module = Regression()
trainer.fit(module, torch.utils.data.DataLoader(torch.randn(80, 100), batch_size=8))
if trainer.is_global_zero:
    print(f"{module.sparse.last_step.phase} step, {module.sparse.last_step.selected_global} entries")
