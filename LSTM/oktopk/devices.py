"""Where tensors are, and how long work there takes."""

import math
import time
from contextlib import contextmanager

import torch


def on_cpu(device):
    return torch.device(device).type == "cpu"


def wait_for(device):
    """Until all that was launched on the device is done."""
    module = getattr(torch, torch.device(device).type, None)
    if not on_cpu(device) and hasattr(module, "synchronize"):
        module.synchronize()


def use(device):
    """Make it this thread's current one."""
    module = getattr(torch, torch.device(device).type, None)
    if not on_cpu(device) and hasattr(module, "set_device"):
        module.set_device(device)


class Stopwatch:
    """Seconds of one stage after another. Launches return at once: on a device, time is known only by waiting."""

    def __init__(self, device, timed):
        self._device, self._known = device, timed or on_cpu(device)
        self.lap()

    def lap(self):
        """Seconds since the last lap; NaN where nobody asked for true times."""
        if not self._known:
            return math.nan
        wait_for(self._device)
        now = time.perf_counter()
        seconds, self._last = now - getattr(self, "_last", now), now
        return seconds


@contextmanager
def unsorted_scatters():
    """In deterministic mode torch sorts what it scatters. Our indices are unique: any order gives the same bits."""
    was, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if not was:
        yield
        return
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warns)
