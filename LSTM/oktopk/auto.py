"""Which reduction is the fastest here, found by trying: the compressor "auto".

Tried are a dense mean and Ok-Topk in its forms that lose nothing: each wire on which values stay whole, and, where
hosts have several ranks each, a dense sum within a host before it. Each is tried on a random gradient of the model's
own parameters, over the link that training will use; nothing of the model is touched.
"""

import time
from dataclasses import replace
from typing import NamedTuple

import torch

from .nodes import ranks_by_host
from .wire import AUTO, lossless

PATTERN = 1 << 20  # values of a random gradient, again and again: to make each anew would take longer than to reduce it
TRIES = 5
VARIED = ("wire", "hierarchical")  # of the settings
ENOUGH_SECONDS = 5.0  # of one form: a slow one is not tried as often
MARGIN = 0.9  # of the dense time, at least so much less than which sparse has to take: it delays what it does not send


class Form(NamedTuple):
    """A way to reduce, and how long the slowest rank took for it in each try."""

    name: str
    compression: str
    settings: object
    seconds: tuple = ()

    @property
    def least(self):
        """What else goes on on a machine only ever adds to that."""
        return min(self.seconds)

    def __str__(self):
        return f"{self.name} {self.least * 1e3:.1f} to {max(self.seconds) * 1e3:.1f} ms"


class Choice(NamedTuple):
    compression: str
    settings: object
    reason: str

    def state_dict(self):
        return {"compression": self.compression, **{name: getattr(self.settings, name) for name in VARIED}}

    def of_state(self, state):
        """What was chosen then, and not what would be now: a run goes on as it was."""
        varied = {name: state[name] for name in VARIED}
        return Choice(state["compression"], replace(self.settings, **varied), "as before")


def fastest(make_averager, names, settings, communicator, device="cpu"):
    """The form to train with. `make_averager(compression, settings)` gives one for parameters of these names.

    All ranks call it alike, and get the same answer.
    """
    dense, *others = forms(settings, communicator, device)
    if communicator.size == 1:
        return Choice(dense.compression, dense.settings, "dense, for one rank has nobody to send anything to")
    dense, *others = (
        each._replace(seconds=_seconds(make_averager, names, each, communicator)) for each in (dense, *others)
    )
    best = min(others, key=lambda form: form.least)
    chosen = best if best.least < MARGIN * dense.least else dense
    rule = f"least counts, and sparse is to be below {MARGIN} of dense"
    reason = f"{chosen.name}, of what a reduction takes here ({rule}): {', '.join(map(str, (dense, *others)))}"
    return Choice(chosen.compression, chosen.settings, reason)


def forms(settings, communicator, device):
    """The dense one first. What the settings ask for by name is not varied."""
    yield Form("dense", "dense", settings)
    names = lossless(device) if settings.wire == AUTO else [settings.wire]
    hosts = len(ranks_by_host(communicator))
    nested = settings.hierarchical or (communicator.has_parts and 1 < hosts < communicator.size)
    for name in names:
        form = Form(f"oktopk over the wire {name}", "oktopk", replace(settings, wire=name))
        if not settings.hierarchical:
            yield form
        if nested:
            settings_of_nodes = replace(form.settings, hierarchical=True)
            yield form._replace(name=f"{form.name}, hierarchical", settings=settings_of_nodes)


def _seconds(make_averager, names, form, communicator):
    """Of a few reductions that follow a first one, which finds its thresholds."""
    averager = make_averager(form.compression, replace(form.settings, warmup_iters=0, ramp_iters=0))
    pattern = torch.randn(PATTERN, generator=torch.Generator().manual_seed(communicator.rank)).to(averager.device)
    taken = []
    while len(taken) <= TRIES and sum(taken[1:]) < ENOUGH_SECONDS:
        for name in names:
            for part in averager.view(name).view(-1).split(PATTERN):
                part.copy_(pattern[: part.numel()])
        _longest(0.0, communicator)  # nobody starts before all have come
        start = time.perf_counter()
        averager.average()
        taken.append(_longest(time.perf_counter() - start, communicator))
    averager.close()
    return tuple(taken[1:])


def _longest(seconds, communicator):
    """Of all ranks."""
    longest = torch.tensor([seconds], dtype=torch.float64)
    communicator.allreduce(longest, op="max")
    return longest.item()
