"""How ranks talk: one small interface of typed buffers. Counting, timing and recording are done here, once.

A transport is a `Communicator` with its own `_allreduce`, `_bcast`, `_allgatherv`, `_alltoallv`, `_send` and `_receive`
(see transports/). Those get buffers that lie where the transport takes them; copies to there and back are made here.
Arithmetic happens in allreduce alone, on float32, float64 and int64; everything else moves bytes.
"""

import abc
import math
import time
import weakref
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from . import watchdog
from .devices import on_cpu, wait_for
from .launchers import launched_ranks
from .places import At
from .starting import waited_for


@dataclass
class Traffic:
    """What operations have cost this rank so far."""

    calls: int = 0
    sent: int = 0  # bytes
    received: int = 0  # bytes
    seconds: float = 0.0  # the next two included
    to_host: float = 0.0
    to_device: float = 0.0

    def add(self, other, sign=1):
        for key, value in vars(other).items():
            setattr(self, key, getattr(self, key) + sign * value)
        return self


@dataclass(frozen=True)
class Operation:
    """One call, as a recorder hears of it. `start` is of time.perf_counter, `number` counts those of all ranks."""

    name: str
    sent: int
    received: int
    start: float
    seconds: float
    details: dict
    dtype: torch.dtype
    elements: int  # of the buffer on this rank
    number: int
    subject: tuple | None  # (merged gradient, phase); None outside a reduction


class Communicator(abc.ABC):
    """The operations that algorithms are written in. Every rank calls them in the same order.

    Buffers are one-dimensional torch tensors. Bytes are those that the bandwidth-optimal form of an operation moves
    over this rank's link: a ring for allreduce and allgatherv, a binomial tree for bcast. What stays on the rank is
    not counted. `recorder`, if set, is called with an `Operation` after each.
    """

    shares_memory = False  # all ranks have it in common: nothing goes over a network
    has_parts = True  # `part` works
    serves_threads = True  # others than the main one may call it, one at a time

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.at = At()  # the watchdog looks at it
        self.watchdog = None
        self.traffic = defaultdict(Traffic)  # by operation
        self.recorder = self.subject = None  # whoever reduces says what its operations are about
        self.whole = self  # what it is a part of: what this one does counts there

    # What algorithms call.

    def allreduce(self, buffer, op="sum"):
        """Combine ("sum", "mean" or "max") the ranks' buffers element by element, in place."""
        each = 2 * _bytes(buffer) * (self.size - 1) // self.size
        with self._measured("allreduce", each, each, buffer, op=op):
            there = self._leave(buffer)
            self._allreduce(there, "max" if op == "max" else "sum")
            self._return(there, buffer, 1 / self.size if op == "mean" else 1)

    def bcast(self, buffer, root=0):
        """Overwrite the buffer with root's."""
        place = (self.rank - root) % self.size
        rounds = math.ceil(math.log2(self.size))
        children = sum(1 for r in range(rounds) if place < 1 << r and place + (1 << r) < self.size)
        received = _bytes(buffer) if place else 0
        with self._measured("bcast", children * _bytes(buffer), received, buffer, root=root):
            there = self._leave(buffer)
            self._bcast(there, root)
            self._return(there, buffer)

    def allgather(self, buffer):
        """Everyone's buffer, all of one length: a tensor of shape (size, length)."""
        return self.allgatherv(buffer, [buffer.numel()] * self.size).view(self.size, buffer.numel())

    def allgatherv(self, buffer, counts):
        """Everyone's buffer one after another; counts[r] is the length of rank r's."""
        item, total = buffer.element_size(), sum(counts)
        sent = item * (total - counts[(self.rank + 1) % self.size])
        received = item * (total - counts[self.rank])
        with self._measured("allgatherv", sent, received, buffer, counts=counts):
            return self._arrive(self._allgatherv(self._leave(buffer), counts), buffer.device)

    def alltoall(self, buffer):
        """Send the r-th of `size` equal parts to rank r; get those that the ranks sent here, in the order of ranks."""
        counts = [buffer.numel() // self.size] * self.size
        return self.alltoallv(buffer, counts, counts)

    def alltoallv(self, buffer, send_counts, receive_counts):
        """Send the buffer's part r to rank r; get the parts that the ranks sent here, in the order of ranks."""
        item = buffer.element_size()
        sent = item * (sum(send_counts) - send_counts[self.rank])
        received = item * (sum(receive_counts) - receive_counts[self.rank])
        with self._measured("alltoallv", sent, received, buffer, to=send_counts, of=receive_counts):
            arrived = self._alltoallv(self._leave(buffer), send_counts, receive_counts)
            return self._arrive(arrived, buffer.device)

    def send(self, buffer, destination):
        """Send to one rank, which calls `receive`."""
        with self._measured("send", _bytes(buffer), 0, buffer, destination, to=destination):
            self._send(self._leave(buffer), destination)

    def receive(self, count, dtype, source, device="cpu"):
        """The `count` elements that `source` sent here."""
        buffer = torch.empty(count, dtype=dtype, device=self.home(torch.device(device)))
        with self._measured("receive", 0, _bytes(buffer), buffer, source, of=source):
            self._receive(buffer, source)
            return self._arrive(buffer, torch.device(device))

    def part(self, groups):
        """A communicator of those ranks in `groups`, lists without a rank in common, among which this one is, or None.

        All ranks call it. What the part does counts here.
        """
        with self._noted("part"):
            mine = next((group for group in groups if self.rank in group), None)
            part = self._part(groups, mine)
        if part is not None:
            part.whole, part.traffic = self.whole, self.traffic
        return part

    def total(self):
        """The sums over all operations."""
        total = Traffic()
        for each in self.traffic.values():
            total.add(each)
        return total

    # What a transport is.

    def home(self, device):
        """The device on which the transport takes tensors of this device: by default the host."""
        return torch.device("cpu")

    def versions(self):
        """What to note of the libraries behind it."""
        return {}

    @abc.abstractmethod
    def duplicate(self):
        """Another communicator of the same ranks, whose messages never meet those of this one. All ranks call it."""

    @abc.abstractmethod
    def _part(self, groups, mine):
        """See `part`; `mine` is this rank's group."""

    def tell_failure(self, cause):
        """Leave word for the others of what fails here: the first one's log has it, and who meets a `LostRanks`."""
        if self.watchdog is not None:
            self.watchdog.tell_first(self, cause)

    @abc.abstractmethod
    def abort(self, status):
        """End the processes of all ranks."""

    def may_speak(self):
        """Asked by a rank that fails: whether it is the first, so that what all of them meet is said once."""
        return self.watchdog is None or self.watchdog.may_speak(self)

    def close(self):  # noqa: B027 - most have nothing to give back
        """The last call, on all ranks: nothing is sent or received any more."""

    @abc.abstractmethod
    def _allreduce(self, buffer, op): ...

    @abc.abstractmethod
    def _bcast(self, buffer, root): ...

    @abc.abstractmethod
    def _allgatherv(self, buffer, counts): ...

    @abc.abstractmethod
    def _alltoallv(self, buffer, send_counts, receive_counts): ...

    @abc.abstractmethod
    def _send(self, buffer, destination): ...

    @abc.abstractmethod
    def _receive(self, buffer, source): ...

    def _begin(self, rank):
        """For a transport that can send now: who waits for others here is watched. `rank` is this one's among all."""
        if self.size > 1:
            mine = torch.frombuffer(bytearray(watchdog.record(rank)), dtype=torch.uint8)
            mine = mine.to(self.home(mine.device))
            everyones = self._allgatherv(mine, [mine.numel()] * self.size).cpu().split(mine.numel())
            self.watchdog = watchdog.watch(self, [bytes(each.tolist()) for each in everyones])

    @contextmanager
    def _noted(self, name):
        """For what all ranks do together and nobody measures."""
        self.at = at = At(self.at.number + 1, name)
        try:
            yield
        finally:
            self.at = At(at.number)

    # Measuring, and copies to where the transport takes buffers.

    @contextmanager
    def _measured(self, name, sent, received, buffer, partner=None, **details):
        if not on_cpu(buffer.device) and on_cpu(self.home(buffer.device)):
            wait_for(buffer.device)  # the copy to the host would, and its time is not that of what came before
        record, start = self.traffic[name], time.perf_counter()
        self.at = at = At(self.at.number + (partner is None), name, partner)
        try:
            yield
        finally:
            self.at = At(at.number)
        seconds = time.perf_counter() - start
        record.seconds += seconds
        record.calls += 1
        record.sent += sent
        record.received += received
        if self.whole.recorder is not None:
            about = buffer.dtype, buffer.numel(), at.number, self.whole.subject
            self.whole.recorder(Operation(name, sent, received, start, seconds, details, *about))

    def _leave(self, buffer):
        """The buffer where the transport takes it: itself, or a copy."""
        buffer = buffer.contiguous()
        if self.home(buffer.device).type == buffer.device.type:
            return buffer
        start = time.perf_counter()
        there = buffer.to(self.home(buffer.device), non_blocking=True)  # to the host: into pinned memory
        wait_for(buffer.device)
        self._note_copy(there.device, start)
        return there

    def _arrive(self, there, device):
        if there.device.type == device.type:
            return there
        start = time.perf_counter()
        here = there.to(device)
        self._note_copy(device, start)
        return here

    def _note_copy(self, destination, start):
        seconds, copies = time.perf_counter() - start, self.traffic["copies"]
        if on_cpu(destination):
            copies.to_host += seconds
        else:
            copies.to_device += seconds

    def _return(self, there, buffer, factor=1):
        """Bring home what the transport wrote, times the factor, where it was not written in place."""
        if there.data_ptr() != buffer.data_ptr():
            here = self._arrive(there, buffer.device).view(buffer.shape)
            torch.mul(here, factor, out=buffer) if factor != 1 else buffer.copy_(here)
        elif factor != 1:
            buffer.mul_(factor)


_first = []  # a weak reference to a communicator over all ranks


def connected(make, size):
    """The communicator of so many ranks that `make` gives; who waits there for others is watched too."""
    known = _first[0]() if _first else None
    if known is not None and known.size == size:
        with known._noted("connect"):
            return make()
    if size == 1 or size != launched_ranks():
        return make()
    with waited_for("the start of oktopk"):
        communicator = make()
    _first[:] = [weakref.ref(communicator)]
    return communicator


def offsets(counts):
    """Where each of the parts with these lengths begins, and where the last one ends."""
    return [0, *np.cumsum(counts, dtype=np.int64).tolist()]


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()
