"""Ranks that stay in step although the code between them may not: how a fault on one rank is heard of on all.

Before each collective operation, and at the end of each step, ranks compare what they are about to do. One that has
failed says so there, where the others would have waited for it. Messages between two ranks cannot be compared like
that: a step that takes too long ends the job.
"""

import sys
import threading
from contextlib import contextmanager

import torch

from ..communicator import Communicator

CALLS = ("end of the step", "an exception", "allreduce", "bcast", "allgatherv", "alltoallv")
END, FAILED = CALLS[:2]


class Parted(RuntimeError):
    """The ranks are about to do different things."""


class Meeting(Communicator):
    """Another communicator, whose collectives first make sure that all ranks call the same."""

    def __init__(self, inner):
        super().__init__(inner.rank, inner.size)
        self._inner, self.parted, self.shares_memory = inner, None, inner.shares_memory

    def meet(self, call, *figures):
        """Go on if all ranks meet for the same call with the same figures; otherwise all of them are told."""
        if self.parted is None:
            mine = [CALLS.index(call), hash(figures)]  # of integers: the same in every process
            both = torch.tensor([*mine, *(-each for each in mine)])
            self._inner.allreduce(both, op="max")
            highest, lowest = both[:2].tolist(), (-both[2:]).tolist()
            if highest == lowest:
                return
            self.parted = f"{call}{figures or ''}"
        raise Parted(self.parted)

    def home(self, device):
        return self._inner.home(device)

    def duplicate(self):
        return Meeting(self._inner.duplicate())

    def _part(self, groups, mine):
        part = self._inner.part(groups)
        return None if part is None else Meeting(part)

    def abort(self, status):
        self._inner.abort(status)

    def _allreduce(self, buffer, op):
        self.meet("allreduce", buffer.numel(), buffer.element_size())
        self._inner.allreduce(buffer, op)

    def _bcast(self, buffer, root):
        self.meet("bcast", buffer.numel(), buffer.element_size(), root)
        self._inner.bcast(buffer, root)

    def _allgatherv(self, buffer, counts):
        self.meet("allgatherv", *counts, buffer.element_size())
        return self._inner.allgatherv(buffer, counts)

    def _alltoallv(self, buffer, send_counts, receive_counts):
        self.meet("alltoallv", buffer.element_size())
        return self._inner.alltoallv(buffer, send_counts, receive_counts)

    def _send(self, buffer, destination):
        self._inner.send(buffer, destination)

    def _receive(self, buffer, source):
        buffer.copy_(self._inner.receive(buffer.numel(), buffer.dtype, source, buffer.device))


@contextmanager
def patience(communicator, seconds, what):
    """End the job if this takes longer: some rank waits for a message that nobody sends."""

    def end():
        sys.stderr.write(f"rank {communicator.rank}: {what} takes more than {seconds} seconds; the job is ended\n")
        sys.stderr.flush()
        communicator.abort(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def texts_of_all(communicator, text):
    """What each rank says, on every rank."""
    mine = _bytes_of(text)
    lengths = communicator.allgather(torch.tensor([mine.numel()]))[:, 0].tolist()
    everyone = communicator.allgatherv(mine, lengths).split(lengths)
    return [bytes(each.tolist()).decode() for each in everyone]


def text_of_first(communicator, text):
    """What rank 0 says, on every rank."""
    mine = _bytes_of(text)
    length = torch.tensor([mine.numel()])
    communicator.bcast(length)
    if communicator.rank:
        mine = torch.empty(int(length), dtype=torch.uint8)
    if length:
        communicator.bcast(mine)
    return bytes(mine.tolist()).decode()


def _bytes_of(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)
