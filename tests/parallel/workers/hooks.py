"""DDP with `sparse_hook` on this many ranks: prints what each case found, as a JSON object.

torchrun --standalone --nproc-per-node 3 hooks.py CASE [CASE …]
"""

import io
import json
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from ddp_training import CLASSES, INPUTS, LAYOUTS, WIDTH, Training, flat, loss_of, net
from groups import nodes
from power_sgd import beside_power_sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from oktopk import DistributedOptimizer, SparseState, sparse_hook


def dense_equivalence():
    """The largest difference from DDP's own mean at density 1 after 20 steps, for each layout of buckets."""
    plain = Training(hook=False).run(20).parameters
    found = {}
    for layout in LAYOUTS:
        for per_bucket in (False, True):
            run = Training(layout=layout, density=1.0, warmup_iters=0, per_bucket=per_bucket).run(20)
            found[f"{layout} per_bucket={per_bucket}"] = (run.parameters - plain).abs().max().item()
    return found


def as_optimizer():
    """Whether a model trains through the hook as through `DistributedOptimizer`, to the bit."""
    same = {}
    for name in ("oktopk", "gtopk", "topkA", "topkSA", "gaussiank"):
        options = {"density": 0.02, "warmup_iters": 0}
        model = net()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), compression=name, **options)
        for step in range(12):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        ours = Training(compression=name, layout="view", **options).run(12)
        same[name] = torch.equal(ours.parameters, flat(model.parameters()))
        optimizer.stop()
        ours.state.close()
    return same


def summed(tensor):
    total = tensor.double()
    dist.all_reduce(total)
    return total


class Ledger:
    """What went into the reductions, what came out, and what is left: nothing may be lost."""

    def __init__(self, training):
        self.training, self.sent, self.came = training, 0.0, 0.0
        self.plain = net()

    def own_gradient(self, steps):
        self.plain.load_state_dict(self.training.model.state_dict())
        self.plain.zero_grad()
        for step in steps:
            loss_of(self.plain, step).backward()
        return flat([each.grad for each in self.plain.parameters()])

    def lost(self):
        total = self.sent - self.came - summed(self.training.residual())
        return (total.abs().max() / self.sent.abs().max()).item()


def conservation():
    """The part of the gradients that got lost through bucket rebuilds and no_sync; a few roundings."""
    found = {}
    for layout in LAYOUTS:
        for backwards in (1, 3) if layout != "static" else (1,):  # torch fails at no_sync with a static graph
            training = Training(layout=layout, density=0.02, warmup_iters=0)
            ledger = Ledger(training)
            for step in range(6):
                steps = range(step * backwards, (step + 1) * backwards)
                ledger.sent = ledger.sent + summed(ledger.own_gradient(steps))
                training.step(step, backwards)
                mean = flat([each.grad for each in training.model.parameters()])
                ledger.came = ledger.came + mean.double() * dist.get_world_size()
            found[f"{layout} backwards={backwards}"] = ledger.lost()
    return found


def join():
    """Rank 0 runs out of data first: is anything lost, is its own residual as it was, do all models agree?"""
    training = Training(density=0.02, warmup_iters=0)
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = came = torch.zeros_like(training.parameters).double()
    ledger, before = Ledger(training), None
    with training.ddp.join():
        for step in range(4 + 3 * (rank > 0)):
            sent = sent + ledger.own_gradient([step])
            training.step(step)
            came = came + flat([each.grad for each in training.model.parameters()]).double()
        if rank == 0:
            before = training.residual()
    came = came * size if rank == size - 1 else came * 0
    lost = summed(sent) - summed(came) - summed(training.residual())
    everyone = [torch.zeros_like(training.parameters) for _ in range(size)]
    dist.all_gather(everyone, training.parameters)
    return {
        "lost": (lost.abs().max() / summed(sent).abs().max()).item(),
        "kept": bool(before is not None and torch.equal(before, training.residual())),
        "agree": all(torch.equal(each, everyone[0]) for each in everyone),
    }


class LayerDrop(nn.Module):
    """Its middle layer is left out when `drops`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = (
            nn.Linear(INPUTS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, CLASSES),
        )
        self.drops = False

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        return self.last(hidden if self.drops else self.middle(hidden))


def layer_drop():
    """DDP drops the means of a parameter that no rank used: its residual must not have been sent."""
    training = Training(model=LayerDrop(), layout="unused", density=0.3, warmup_iters=0)
    residuals = []
    for step in range(5):
        training.model.drops = step in (2, 3) or (step == 4 and dist.get_rank() > 0)
        training.step(step)
        residuals.append(training.state.state_dict()["parameters"]["parameter.2"]["residual"].norm().item())
    return {"kept": residuals[1] == residuals[2] == residuals[3], "sent": residuals[4] != residuals[3]}


def state_on_some_ranks():
    """Ranks that have come to different places do not wait for each other: what each of them raises."""
    saved = Training(density=0.02, warmup_iters=3).run(5).state.state_dict()
    training = Training(density=0.02, warmup_iters=3)
    if dist.get_rank() != 2:
        training.state.load_state_dict(saved)
    try:
        training.step(5)
    except ValueError as error:
        return str(error)


def resume():
    """Saved and loaded by the one documented call each: the same as a run that went on."""
    whole = Training(density=0.02, warmup_iters=2).run(8).parameters
    first = Training(density=0.02, warmup_iters=2).run(5)
    file = io.BytesIO()
    parts = {"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict(), "ours": first.state}
    torch.save({**parts, "ours": first.state.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = Training(density=0.02, warmup_iters=2)
    second.model.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    second.state.load_state_dict(saved["ours"])
    return torch.equal(second.run(3, first=5).parameters, whole)


def overflow_of(training, scaler, bad, steps, leave_out=False):
    for step in range(steps):
        if leave_out and step == bad:
            continue
        training.optimizer.zero_grad()
        loss = loss_of(training.ddp, step)
        if step == bad and dist.get_rank() == 1:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
    return training.parameters, scaler.get_scale()


def scaler():
    """An overflow on one rank: the same as never having seen that batch, and a scale that backed off everywhere."""

    def run(leave_out):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        training = Training(density=0.02, warmup_iters=1, scaler=scaler)
        return overflow_of(training, scaler, 4, 8, leave_out)

    (seen, backed_off), (never, scale) = run(False), run(True)
    return {"same": torch.equal(seen, never), "scales": [scale, backed_off], "finite": bool(seen.isfinite().all())}


def mixed_dtypes():
    """A bfloat16 layer between float32 ones: buckets of both; residuals stay float32."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net()
            self.layers[2].to(torch.bfloat16)

        def forward(self, inputs):
            hidden = self.layers[1](self.layers[0](inputs)).bfloat16()
            return self.layers[4](self.layers[3](self.layers[2](hidden)).float())

    training = Training(model=Mixed(), density=0.05, warmup_iters=1).run(4)
    states = training.state.state_dict()["parameters"].values()
    return {
        "residuals": sorted({str(state["residual"].dtype) for state in states}),
        "finite": bool(training.parameters.isfinite().all()),
        "selected": training.state.last_step.selected_global == training.state.last_step.target_k,
    }


def float16():
    """The part that got lost, through both doors, of gradients as long as float16 has them."""
    found = {}
    for door in ("hook", "optimizer"):
        model = nn.ParameterList([nn.Parameter(torch.zeros(100, dtype=torch.float16))])
        slope = torch.full((100,), 30000.0, dtype=torch.float16)
        sent = came = torch.zeros(100, dtype=torch.float64)
        step, state_dict = _door(door, model)
        for _ in range(8):
            step(slope)
            sent = sent + slope.double() * dist.get_world_size()
            came = came + model[0].grad.double() * dist.get_world_size()
        (state,) = state_dict()["parameters"].values()
        lost = sent - came - summed(state["residual"])
        found[door] = (lost.abs().max() / sent.abs().max()).item()
    return found


def _door(door, model):
    """A step whose gradient is given, and the reducer's state."""
    options = {"density": 0.01, "warmup_iters": 0}
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    if door == "optimizer":
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), **options)
        module, state_dict = Product(model), lambda: optimizer.averager.state_dict()
    else:
        optimizer, module, state = sgd, DistributedDataParallel(Product(model)), SparseState(**options)
        module.register_comm_hook(state, sparse_hook)
        state_dict = state.state_dict

    def step(slope):
        optimizer.zero_grad()
        module(slope).backward()
        optimizer.step()

    return step, state_dict


class Product(nn.Module):
    def __init__(self, parameters):
        super().__init__()
        self.parameters_ = parameters

    def forward(self, slope):
        return (self.parameters_[0] * slope).sum()


def exclusion():
    """Biases by name, and small parameters by size, are the dense mean; the rest is sparse."""
    found = {}
    for how in ({"exclude": "*.bias"}, {"exclude_below": 1000}):
        model = net()
        plain = Training(hook=False, model=net()).run(1).model
        training = Training(model=model, density=0.02, warmup_iters=0, named_parameters=model.named_parameters(), **how)
        training.run(1)
        apart = {
            name: (mine.grad - theirs.grad).abs().max().item() < 1e-6
            for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True)
        }
        found[next(iter(how))] = sorted(name for name, dense in apart.items() if dense)
    return found


def compiled():
    """What becomes of torch.compile's three ways to treat DDP: "ok", or the sentence that refuses it."""
    found = {}
    for mode in ("ddp_optimizer", "no_optimization", "python_reducer"):
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = mode
        training = Training(density=1.0, warmup_iters=0, bucket_mb=25)  # torch compiles none below 1 MB
        training.ddp = torch.compile(training.ddp, backend="aot_eager")
        try:
            training.run(3)
            plain = Training(hook=False).run(3).parameters
            found[mode] = "ok" if (training.parameters - plain).abs().max() < 1e-6 else "other figures"
        except (TypeError, RuntimeError) as error:
            found[mode] = str(error)
    torch._dynamo.config.optimize_ddp = "ddp_optimizer"
    return found


CASES = {
    case.__name__: case
    for case in (
        *(dense_equivalence, as_optimizer, conservation, join, layer_drop, resume, scaler, mixed_dtypes, exclusion),
        *(compiled, beside_power_sgd, state_on_some_ranks, float16, nodes),
    )
}


def main():
    warnings.filterwarnings("ignore", message=".*find_unused_parameters.*")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = {name: CASES[name]() for name in sys.argv[1:]}
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
