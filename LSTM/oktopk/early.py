"""Dense sums that begin while backward still goes on, so that the network works beside the processor.

1. Merged gradients are cut into buckets, from their ends: backward makes the gradients of the last layers first.
2. Backward's hooks say which gradients are there. A bucket leaves once all of its own are, and those before it have
   left: so all ranks sum the same buckets in the same order, whatever came first on each.
3. A thread measures each bucket and sums it. Between the first bucket and `finish` the communicator is its alone.
4. `finish` sends the buckets that are left, and waits.

What backward has done may not be changed any more before the means are there, nor added to: that is refused.
"""

import math
import queue
import threading
import time

import torch

from .devices import on_cpu

BUCKET = 1 << 20  # elements, 4 MiB: few enough messages to cost nothing, small enough for the last to end soon
_OF_THE_WHOLE = ("norm_clip", "momentum", "velocity_clip")  # what a rank does to its gradient before it leaves


def can_sum_early(settings, communicator, device):
    """Whether the dense steps of such a reducer can. On a device a hook comes before the gradient is computed."""
    plain = not settings.hierarchical and not any(getattr(settings, each) for each in _OF_THE_WHOLE)
    can = communicator.size > 1 and communicator.serves_threads and on_cpu(device)
    return bool(settings.overlap and plain and can)


class EarlySums:
    """Those of one step; `reducers` are all of an averager's.

    `before` is the traffic before the first of them. Once they have ended, `norm` is that of the rank's own gradient,
    and `hidden` says for how many seconds of theirs nobody waited.
    """

    def __init__(self, reducers, communicator):
        self.before, self.norm, self.hidden = communicator.total(), None, 0.0
        self._communicator = communicator
        self._buckets = [bucket for reducer in reversed(reducers) for bucket in _buckets_of(reducer)]
        self._place = {name: place for place, bucket in enumerate(self._buckets) for name in bucket.missing}
        self._left, self._tasks, self._error, self._seconds = 0, queue.SimpleQueue(), None, 0.0
        self._thread = threading.Thread(target=self._run, name="oktopk sums", daemon=True)
        self._thread.start()

    def note(self, name):
        """This parameter's gradient is there, in its place."""
        missing = self._buckets[self._place[name]].missing
        if name not in missing:
            raise RuntimeError(
                f"backward came twice to {name} in one step, whose gradient may be with the other ranks already: set "
                "optimizer.local = True for all but the last backward of a step, or leave overlap out"
            )
        missing.remove(name)
        while self._left < len(self._buckets) and not self._buckets[self._left].missing:
            self._send()

    def finish(self):
        """Wait for all sums."""
        if self.norm is not None:
            return self
        began = time.perf_counter()
        while self._left < len(self._buckets):
            self._send()
        self._tasks.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        self.norm = math.hypot(*(bucket.norm for bucket in self._buckets))
        self.hidden = max(0.0, self._seconds - (time.perf_counter() - began))
        return self

    def _send(self):
        self._tasks.put(self._buckets[self._left])
        self._left += 1

    @torch.no_grad()
    def _run(self):
        """The thread."""
        try:
            while (bucket := self._tasks.get()) is not None:
                began = self._communicator.total().seconds
                bucket.sum(self._communicator)
                self._seconds += self._communicator.total().seconds - began
        except Exception as error:  # noqa: BLE001 - for the one that waits
            self._error = error


class _Bucket:
    """Neighbours in a merged gradient; `missing` are the names of those that are not there yet."""

    def __init__(self, reducer, names, begin, end):
        self.missing, self.norm = set(names), 0.0
        self._part, self._ops = reducer.merged.gradient[begin:end], reducer.ops
        self._subject = reducer.merged.name, "dense"

    def sum(self, communicator):
        self.norm = self._ops.norm(self._part)
        communicator.whole.subject = self._subject
        communicator.allreduce(self._part, op="mean")
        communicator.whole.subject = None


def _buckets_of(reducer):
    """From the end of the gradient to its beginning."""
    views, names = reducer.merged.views, []
    end = begin = reducer.merged.size
    first = next(iter(views))
    for name, view in reversed(views.items()):
        begin -= view.numel()
        names.append(name)
        if end - begin >= BUCKET or name == first:
            yield _Bucket(reducer, names, begin, end)
            end, names = begin, []
