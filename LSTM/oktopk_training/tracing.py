"""What is sent, and when: `--trace` writes down every communication operation of every rank.

1. Each rank hears of its operations from its communicators and keeps the first and the last of them.
2. Before and after, rank 0 pings the others. Of the quickest exchange, the middle on rank 0's clock is when the other
   has read its own; between the two, the difference of their clocks is taken to change evenly.
3. At the end rank 0 gets everything, puts it on its own clock and writes it into the run (trace_files.py).
"""

import logging
import pickle
import time
from collections import deque
from contextlib import contextmanager

import torch

from .errors import UserError
from .trace_files import DROPPED, STEP, Record, set_aside, write_trace

log = logging.getLogger("oktopk")

MOST = 100_000  # operations and steps that a rank keeps: about 40 MB, and more where their splits are long
MOST_IN_ALL = 500_000  # writing them takes rank 0 a minute, and the others wait for it
PINGS = 32
NANOSECONDS = 1e9


@contextmanager
def tracing(wanted, ranks, folder):
    """All ranks trace what they do in the block. An error in it leaves no trace: others may not be there any more."""
    if not wanted:
        yield NoTracer()
        return
    traced, wire = dict(ranks.communicators), ranks.new_communicator("clocks")
    before = ping(wire)
    tracer = Tracer(ranks.rank, traced, min(MOST, MOST_IN_ALL // ranks.size))
    ended = None
    try:
        yield tracer
    except SystemExit as end:  # all ranks were told to
        ended = end
    for communicator in traced.values():
        communicator.recorder = None
    records = gather(wire, tracer.records(), before, ping(wire))
    wire.close()
    ranks.together(lambda: _write(folder, records, ranks.hosts))
    if ended is not None:
        raise ended


class NoTracer:
    def begin_step(self):
        pass

    def end_step(self, step):
        pass


class Tracer:
    """One rank's operations and steps, as they end."""

    def __init__(self, rank, communicators, most):
        self._rank, self._heard, self._kept, self._began = rank, [], 0, 0.0
        self._most_first, self._first, self._last = most - most // 2, [], deque(maxlen=most // 2)
        for name, communicator in communicators.items():
            communicator.recorder = lambda operation, name=name: self._heard.append((name, operation))

    def begin_step(self):
        """What was heard of until now is of no step: of a validation or a checkpoint, say."""
        self._keep_heard(None)
        self._began = time.perf_counter()

    def end_step(self, step):
        self._keep_heard(step.iter)
        about = {"iteration": step.iter, "phase": step.phase, "start": self._began, "seconds": step.t_iter}
        self._keep(Record(self._rank, "", STEP, **about))

    def records(self):
        """Those that were kept, and one that says how many were not."""
        self._keep_heard(None)
        kept = [*self._first, *self._last]
        dropped = self._kept - len(kept)
        return [*kept, Record(self._rank, "", DROPPED, dropped)]

    def _keep_heard(self, iteration):
        for name, operation in self._heard:
            self._keep(_record(self._rank, name, operation, iteration))
        self._heard.clear()

    def _keep(self, record):
        self._kept += 1
        (self._first if len(self._first) < self._most_first else self._last).append(record)


def _record(rank, communicator, operation, iteration):
    name, details, count = operation.name, operation.details, operation.elements
    gradient, phase = operation.subject or (None, None)
    into = tuple(details["to"]) if name == "alltoallv" else ()
    out = tuple(details["of"]) if name == "alltoallv" else tuple(details.get("counts", ()))
    peer = {"bcast": "root", "send": "to", "receive": "of"}.get(name)
    return Record(
        *(rank, communicator, name, operation.number, iteration, phase, gradient),
        peer=details[peer] if peer else None,
        dtype=str(operation.dtype).removeprefix("torch."),
        elements_in=0 if name == "receive" else count,
        elements_out=0 if name == "send" else sum(out) if out else count,
        split_in=into,
        split_out=out,
        sent=operation.sent,
        received=operation.received,
        start=operation.start,
        seconds=operation.seconds,
    )


# ---- clocks


def ping(wire):
    """On rank 0, of each rank: (what its clock showed, by how much that was ahead of rank 0's). All ranks call it."""
    if wire.rank:
        for _ in range(PINGS):
            wire.receive(1, torch.int64, 0)
            wire.send(torch.tensor([time.perf_counter_ns()]), 0)
        return None
    return [(0, 0), *(_exchange(wire, rank) for rank in range(1, wire.size))]


def _exchange(wire, rank):
    tries = []
    for _ in range(PINGS):
        left = time.perf_counter_ns()
        wire.send(torch.tensor([left]), rank)
        there = wire.receive(1, torch.int64, rank).item()
        back = time.perf_counter_ns()
        tries.append((back - left, there, there - (left + back) // 2))
    return min(tries)[1:]


def on_clock_of_first(seconds, before, after):
    """A rank's moment on rank 0's clock."""
    (begin, ahead), (end, ahead_then) = before, after
    part = (seconds * NANOSECONDS - begin) / (end - begin) if end > begin else 0
    return seconds - (ahead + part * (ahead_then - ahead)) / NANOSECONDS


def _moved(record, before, after):
    if record.operation == DROPPED:
        return record
    return record._replace(start=on_clock_of_first(record.start, before, after))


def gather(wire, records, before, after):
    """On rank 0, the records of all ranks on its clock, in the order of their starts."""
    if wire.rank:
        pickled = torch.frombuffer(bytearray(pickle.dumps(records)), dtype=torch.uint8)
        wire.send(torch.tensor([pickled.numel()]), 0)
        wire.send(pickled, 0)
        return None
    for rank in range(1, wire.size):
        length = wire.receive(1, torch.int64, rank).item()
        theirs = pickle.loads(wire.receive(length, torch.uint8, rank).numpy().tobytes())
        clocks = before[rank], after[rank]
        records += [_moved(each, *clocks) for each in theirs]
    return sorted(records, key=lambda record: record.start)


def _write(folder, records, hosts):
    """A disk that is full costs the trace, and not the run."""
    if records is None:
        return
    try:
        aside = set_aside(folder, records)
        write_trace(folder, records, hosts)
    except UserError as error:
        log.warning("there is no trace: %s", error)
        return
    if aside:
        log.info("trace: what was traced before this is in %s", aside)
    log.info("trace: %d records of %d ranks, in %s", len(records) - len(hosts), len(hosts), folder)
    for each in records:
        if each.operation == DROPPED and each.number:
            log.warning("trace: rank %d dropped %d records from the middle of the run", each.rank, each.number)
