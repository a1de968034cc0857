"""Averages on the pretend device, on this many ranks, and says what came of it.

argv: the part to run. Prints a JSON object of rank 0's:
results   {case: where the device's results first differ from the CPU's on any rank, or null}
costs     {case: figures of one step, past the first ones}
stages    {case: what a step took, by stage, where the device is slow}
staging   what a communicator did with a buffer on the device, where its transport takes it there and where not
threads   [the threads that were started]
device    figures of the device itself, of which it is known what they have to be
"""

import json
import sys
import threading
import time

import torch
from mpi4py import MPI

import pretend_device
from oktopk import DistributedOptimizer, GradientAverager, Settings, compressors
from oktopk.testing.gradients import gradient
from oktopk.transports.alone import Alone

COMM = MPI.COMM_WORLD
NAMES = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
CASES = {
    **{name: (name, {}) for name in NAMES},
    "oktopk, reuse": ("oktopk", {"threshold": "reuse"}),
    "oktopk, momentum": ("oktopk", {"momentum": 0.9}),
    "oktopk, nesterov": ("oktopk", {"momentum": 0.9, "nesterov": True}),
    "oktopk, gaps": ("oktopk", {"wire": "gaps"}),
    "gtopk, gaps16": ("gtopk", {"wire": "gaps16"}),
    "oktopk, gaps16": ("oktopk", {"wire": "gaps16"}),
    "none, momentum": ("none", {"momentum": 0.9}),
}
KINDS = ("normal", "layered", "few_nonzeros", "one_region", "extremes", "ties_and_cancellation", "sudden")
KINDS = KINDS[COMM.size % 3 :: 3]  # one, two and three ranks have all of them together
SMALL, STEPS = 1000, 4
LARGE, DENSITY, STEADY = 200_000, 0.02, 9  # sparse steps after which thresholds have settled
FLOAT32 = 4  # bytes
SECONDS_EACH = 0.02


def averager_of(case, n, device, **options):
    name, more = CASES[case]
    parameter = torch.nn.Parameter(torch.zeros(n, device=device))
    return GradientAverager([("p", parameter)], name, Settings(density=DENSITY, **more | options))


# ---- the same results


def first_difference(case, kind):
    """Where the device's means and residuals are not the CPU's, in a dense step and in sparse ones; or None."""
    options = {"warmup_iters": 1, "threshold_period": 2, "region_period": 2}
    averagers = [averager_of(case, SMALL, device, **options) for device in ("cpu", pretend_device.NAME)]
    found = []
    for step in range(STEPS):
        own = torch.from_numpy(gradient(kind, SMALL, COMM.size, COMM.rank, step))
        states = []
        for averager in averagers:
            averager.hand_in("p", own.to(averager.device))
            report = averager.average()
            kept = averager.state_dict()["parameters"]["p"]
            kept = {key: bits(value) for key, value in kept.items() if isinstance(value, torch.Tensor)}
            states.append({"mean": bits(averager.result("p")), **kept, "count": report.selected_local})
        found += [f"{kind}, step {step}: {key}" for key in states[0] if states[0][key] != states[1][key]]
    for averager in averagers:
        averager.close()
    return first(found)


def bits(tensor):
    return tensor.cpu().numpy().tobytes()


def results():
    return {case: first(COMM.allreduce([first(first_difference(case, kind) for kind in KINDS)])) for case in CASES}


def first(findings):
    return next(filter(None, list(findings)), None)


# ---- what they cost


def costs():
    return {case: costs_of(case) for case in CASES}


def costs_of(case):
    averager = averager_of(case, LARGE, pretend_device.NAME, warmup_iters=0)
    generator = torch.Generator().manual_seed(COMM.rank)
    largest = 0
    for _ in range(STEADY + 1):
        averager.hand_in("p", torch.randn(LARGE, generator=generator).to(averager.device))
        with pretend_device.counting() as found:
            averager.average()
        largest = max(largest, found.largest)
    averager.close()
    return {
        "buffers": found.bytes / LARGE / FLOAT32,
        "launches": found.launches.total(),
        "views": found.views.total(),
        "synchronisations": found.synchronisations.total(),
        "waits": found.waits,
        "largest": largest / LARGE / FLOAT32,
    }


# ---- how long their stages take


def stages():
    return {
        f"{case}, {'timed' if timed else 'not timed'}": seconds_of(case, timed)
        for case in ("oktopk, momentum", "none, momentum")
        for timed in (True, False)
    } | {"seconds each": SECONDS_EACH}


def seconds_of(case, timed):
    """Where each launch takes long: a step's seconds by stage, its launches, and what is left to wait for after it."""
    averager = averager_of(case, SMALL, pretend_device.NAME, warmup_iters=0, timed=timed)
    with pretend_device.slowly(SECONDS_EACH), pretend_device.counting() as found:
        averager.view("p").normal_()
        averager.average()
        torch.pretend.synchronize()
        before, waits, start = found.launches.total(), found.waits, time.perf_counter()
        report = averager.average()
        return {
            "all": time.perf_counter() - start,
            "stages": report.seconds,
            "launches": found.launches.total() - before,
            "waits": found.waits - waits,
            "left": pretend_device.pending(),
        }


# ---- where the transport takes buffers


class Looking(Alone):
    """Sees where the buffers are that it gets."""

    takes_all = False

    def home(self, device):
        return device if self.takes_all else super().home(device)

    def _allreduce(self, buffer, op):
        self.seen = buffer.device.type
        buffer.add_(1)


def staging():
    found = {}
    for takes_all in (True, False):
        comm, buffer = Looking(), torch.ones(SMALL, device=pretend_device.NAME)
        comm.takes_all = takes_all
        with pretend_device.slowly(SECONDS_EACH), pretend_device.counting() as costs:
            buffer.add_(1)
            comm.allreduce(buffer)
        found[comm.seen] = {
            "values": buffer.unique().tolist(),
            "copies": dict(costs.synchronisations),
            **{key: getattr(comm.total(), key) for key in ("seconds", "to_host", "to_device")},
        }
    return found | {"seconds each": SECONDS_EACH}


# ---- and besides


def threads():
    before = set(threading.enumerate())
    for device in ("cpu", pretend_device.NAME):
        model = torch.nn.Linear(10, 10).to(device)
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), warmup_iters=1
        )
        for _ in range(3):
            model(torch.ones(1, 10, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        during = set(threading.enumerate())
        optimizer.stop()
    return [thread.name for thread in during - before]


def refusal(action):
    try:
        action()
    except (RuntimeError, TypeError) as error:
        return type(error).__name__
    return None


def device_itself():
    host = torch.zeros(SMALL)
    host[:4] = -1
    with pretend_device.counting() as found:
        here = host.to(pretend_device.NAME)
        places = here.abs().nonzero().squeeze(1)
        here[places].tolist()
        here.add_(here)
        here.zero_()
        here[0].item()
        torch.pretend.synchronize()
    return {
        "refusals": [refusal(lambda: here.mul_(host)), refusal(here.numpy), refusal(lambda: torch.cat((here, host)))],
        "a number meets it": (torch.tensor([1.0, 2.0]).to(pretend_device.NAME) * torch.tensor(3.0)).tolist(),
        "new memory": torch.empty(3, device=pretend_device.NAME).isnan().tolist(),
        "launches": found.launches,
        "views": found.views.total(),
        "synchronisations": found.synchronisations,
        "bytes": found.bytes_of,
        "largest": found.largest,
        "waits": found.waits,
    }


def main():
    pretend_device.attach()
    found = {
        "results": results,
        "costs": costs,
        "stages": stages,
        "staging": staging,
        "threads": threads,
        "device": device_itself,
    }[sys.argv[1]]()
    if COMM.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
