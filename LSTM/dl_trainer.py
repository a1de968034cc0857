"""The trainer of one rank: model, batches, loss, step, validation.

A training loop is

    trainer.train(nsteps_update)      # forward and backward, gradients add up
    optimizer.synchronize()           # between ranks: see distributed_optimizer.py
    trainer.update_model()            # clip, step
"""

import math
import os
import time
from collections import Counter
from contextlib import contextmanager

import torch

from oktopk.devices import wait_for
from oktopk_training.errors import UserError
from oktopk_training.saved_models import load_weights
from oktopk_training.tasks import TASKS
from oktopk_training.versions import numbers

MOMENTUM = 0.9
MAX_SKIPPED_IN_A_ROW = 10
FUSED_SINCE = (2, 4)  # torch
SPARSE_METRICS = ("sparsities", "compression_ratios", "communication_sizes")
COUNTERS = ("infinite_losses", "skipped_steps", "_skipped_in_a_row")


class DLTrainer:
    """What one rank trains. `add_up` adds the totals of a validation over the ranks.

    With an optimizer that synchronizes, whether a step is skipped is what the ranks agreed there.
    """

    def __init__(self, options, rank=0, size=1, add_up=lambda totals: totals):
        _make_deterministic(options.seed)
        self.options, self.rank, self.size, self._add_up = options, rank, size, add_up
        # The reducer appends to these, one value for each sparse reduction.
        self.sparsities, self.compression_ratios, self.communication_sizes = [], [], []

        self.task = TASKS[options.dnn](options, rank, size)
        self.steps_per_epoch = self.task.steps_per_epoch // options.nsteps_update
        if self.steps_per_epoch == 0:
            raise UserError(
                f"the training data make {self.task.steps_per_epoch} batches an epoch, fewer than "
                f"--nsteps-update {options.nsteps_update}; lower it or --batch-size"
            )
        self.net = self._build()
        if options.pretrain:
            load_weights(self.net, options.dnn, options.pretrain)
        if size > 1:
            torch.manual_seed(options.seed + rank)  # each rank its own dropout
        self.optimizer = _sgd(list(self.net.parameters()), options.lr)

        self.train_iter = 0  # batches seen
        self.train_epoch = 0
        self.infinite_losses = 0
        self.skipped_steps = 0
        self.grad_norm = None  # of the last step before clipping; None if it was not finite
        self.seconds = Counter()  # data, forward, backward, update: whoever reports them clears them
        self._batches = iter(())
        self._skipped_in_a_row = 0
        self._gradients_are_spent = True

    def _build(self):
        options = self.options
        try:
            return self.task.build().to(options.torch_device).train()
        except (RuntimeError, MemoryError) as error:  # of torch's allocators
            raise UserError(
                f"a model of {options.hidden_layers} layers of {options.hidden_size} cannot be built "
                f"({str(error).splitlines()[0]}); lower --hidden-size or --hidden-layers"
            ) from error

    @property
    def lr(self):
        return self.optimizer.param_groups[0]["lr"]

    def train(self, n):
        """Forward and backward over the next n batches; their gradients add up until `update_model`.

        Each counts as 1/nsteps_update of a step. Returns the mean loss.
        """
        total = 0.0
        for _ in range(n):
            if self.train_iter % (self.steps_per_epoch * self.options.nsteps_update) == 0:
                self._start_epoch()
            with self._timed("data"):
                batch = next(self._batches)
            total += self._forward_backward(batch)
            self.train_iter += 1
        return total / n

    def _start_epoch(self, first=0):
        self.close()
        self.train_epoch = self.train_iter // (self.steps_per_epoch * self.options.nsteps_update)
        self._batches = self.task.batches(self.train_epoch, first)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.learning_rate(self.options.lr, self.train_epoch)

    def _forward_backward(self, batch):
        with self._timed("forward"):
            if self._gradients_are_spent:
                self.optimizer.zero_grad()
                self._gradients_are_spent = False
            loss, infinite = self.task.loss(self.net, batch)
        with self._timed("backward"):
            (loss / self.options.nsteps_update).backward()
        self.infinite_losses += infinite
        return loss.item()

    def update_model(self):
        """Clip the gradients and step; a gradient that is not finite is skipped and counted.

        The gradients stay readable until the next `train`, which clears them.
        """
        with self._timed("update"):
            norm = _clip(self.net.parameters(), self._longest)
            skipped = getattr(self.optimizer, "skipped", False) or not math.isfinite(norm)
            self.grad_norm = None if skipped else norm
            if skipped:
                self._skip_step()
            else:
                self.optimizer.step()
                self._skipped_in_a_row = 0
            self._gradients_are_spent = True

    def _skip_step(self):
        self.optimizer.zero_grad()
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"the gradients of {MAX_SKIPPED_IN_A_ROW} steps in a row were not finite (epoch {self.train_epoch}, "
                f"batch {self.train_iter - 1}); lower --lr or --max-grad-norm, or look for a broken recording"
            )

    def test(self, epoch):
        """Loss, WER and CER (for text: perplexity) over the validation data."""
        try:
            return {"epoch": epoch, **self.task.summarise(self._add_up(self.task.validate(self.net)))}
        finally:
            self.net.train()

    def state_dict(self):
        """What this rank has beside parameters and optimizer, and what its next batches depend on."""
        lists = {name: list(getattr(self, name)) for name in SPARSE_METRICS}
        on_cuda = self.options.torch_device.type == "cuda"
        return {
            **lists,
            **{name: getattr(self, name) for name in COUNTERS},
            "buffers": {name: buffer.detach() for name, buffer in self.net.named_buffers()},
            "task": self.task.state_dict(),
            "random": torch.get_rng_state(),
            "device_random": torch.cuda.get_rng_state() if on_cuda else None,
        }

    def load_state_dict(self, state, progress, is_exact=True):
        """Go on at that place of that epoch. What is not exact begins with batches and random numbers of its own."""
        for name in SPARSE_METRICS:
            setattr(self, name, list(state[name]))
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.train_iter = (progress.epoch * self.steps_per_epoch + progress.place) * self.options.nsteps_update
        if 0 < progress.place < self.steps_per_epoch:
            self._start_epoch(progress.place * self.options.nsteps_update)
        if is_exact:
            self.task.load_state_dict(state["task"])
            torch.set_rng_state(state["random"])
            if state["device_random"] is not None and self.options.torch_device.type == "cuda":
                torch.cuda.set_rng_state(state["device_random"])
        else:
            torch.manual_seed(self.options.seed + self.rank + self.size * progress.step)

    def update_optimizer(self, optimizer):
        """Use another optimizer from now on, such as a wrapper around the present one."""
        self.optimizer = optimizer

    def close(self):
        """Stop reading ahead."""
        if hasattr(self._batches, "close"):
            self._batches.close()
        self._batches = iter(())

    @property
    def _longest(self):
        """With momentum correction the averaged gradient is a velocity; what goes into it was clipped before."""
        return math.inf if self.options.corrects_momentum else self.options.max_grad_norm

    @contextmanager
    def _timed(self, stage):
        start = time.perf_counter()
        yield
        wait_for(self.options.torch_device)  # otherwise a device's work would count where it is waited for
        self.seconds[stage] += time.perf_counter() - start


def _sgd(parameters, lr):
    """SGD with Nesterov momentum, in one pass over the parameters where torch has it.

    Before 2.4 it takes `fused` for parameters on the CPU too, and fails in the first step.
    """
    fused = {"fused": True} if numbers(torch.__version__) >= FUSED_SINCE else {}
    return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, **fused)


@torch.no_grad()
def _clip(parameters, longest):
    """Scale the gradients down to a common norm of `longest`; those that are shorter are not even touched."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])).item()
    if norm > longest and math.isfinite(norm):
        for gradient in gradients:
            gradient *= longest / norm
    return norm


def _make_deterministic(seed):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    torch.use_deterministic_algorithms(True, warn_only=True)  # CTC on CUDA has no deterministic version
    torch.utils.deterministic.fill_uninitialized_memory = False  # it costs time, and we read nothing uninitialised
    torch.manual_seed(seed)
