"""A case of hooks.py: what PyTorch's powerSGD_hook keeps, and what ours does."""

import io
import warnings

import torch
from ddp_training import Training, flat, loss_of
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power


def of_kind(kind, state=None):
    """With our hook, or with PyTorch's powerSGD_hook: in one bucket, for with two it fails or hangs on Gloo."""
    training = Training(hook=kind == "ours", density=0.02, warmup_iters=2, lr=0.01, bucket_mb=25)
    if kind == "power":
        fresh = power.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
        training.state = state or fresh
        training.ddp.register_comm_hook(training.state, power.powerSGD_hook)
    elif state is not None:
        training.state.load_state_dict(state)
    return training


def saved(kind, training, weights_only):
    """Its state through a file; None if torch does not load it."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(training.state.state_dict() if kind == "ours" else training.state, file)
    file.seek(0)
    try:
        return torch.load(file, weights_only=weights_only)
    except Exception:  # noqa: BLE001 - whatever it is, it is not loaded
        return None


def finite_after_overflow(kind):
    training = of_kind(kind)
    for step in range(6):
        training.optimizer.zero_grad()
        loss = loss_of(training.ddp, step)
        (loss * torch.inf if step == 4 else loss).backward()
        if step != 4:
            training.optimizer.step()
    return bool(flat([each.grad for each in training.model.parameters()]).isfinite().all())


def resumed_exactly(kind):
    """Loaded with whatever it needs for that."""
    whole, first = of_kind(kind).run(8).parameters, of_kind(kind).run(5)
    second = of_kind(kind, saved(kind, first, weights_only=kind == "ours"))
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    return torch.equal(second.run(3, first=5).parameters, whole)


def beside_power_sgd():
    """Who keeps what."""
    return {
        kind: {
            "finite gradients after an overflow": finite_after_overflow(kind),
            "state loads with weights_only": saved(kind, of_kind(kind).run(4), weights_only=True) is not None,
            "resume to the bit": resumed_exactly(kind),
        }
        for kind in ("ours", "power")
    }
