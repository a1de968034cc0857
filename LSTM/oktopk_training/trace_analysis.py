"""What a trace says: how much of a step is communication, what it moved and how fast, and who waited for whom.

An operation's seconds are waiting until those have come whom it cannot do without, and transfer from then on. All of a
collective's ranks wait for the last one that came; those of a bcast for its root, and a receive for its send.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from .trace_files import DROPPED, PHASES, STEP, Record


class Heard(NamedTuple):
    record: Record
    phase: str | None  # of the step that it belongs to
    waited: float  # seconds
    whom: int | None  # it waited for


class Costs(NamedTuple):
    """Of an operation in a phase: means over steps and ranks."""

    calls: float  # a step
    sent: float  # bytes a call
    seconds: float  # a call
    waited: float  # seconds a call
    bandwidth: float | None  # bytes a second, of the larger direction, while it was not waiting


class Share(NamedTuple):
    """Of a rank in a phase: mean seconds of a step, and bytes."""

    step: float
    waiting: float
    transfer: float
    sent: float

    @property
    def communication(self):
        return (self.waiting + self.transfer) / self.step if self.step else 0.0

    @property
    def work(self):
        return self.step - self.waiting - self.transfer


@dataclass
class Analysis:
    ranks: list
    steps: dict = field(default_factory=dict)  # (rank, iteration) -> record
    heard: list = field(default_factory=list)  # operations within steps
    dropped: Counter = field(default_factory=Counter)  # by rank

    @classmethod
    def of(cls, records):
        analysis = cls(sorted({record.rank for record in records}))
        operations = []
        for record in records:
            if record.operation == STEP:
                analysis.steps[record.rank, record.iteration] = record
            elif record.operation == DROPPED:
                analysis.dropped[record.rank] += record.number
            else:
                operations.append(record)
        waits = _waits(operations, len(analysis.ranks))
        for record in operations:
            step = analysis.steps.get((record.rank, record.iteration))
            if step is not None:
                analysis.heard.append(Heard(record, step.phase, *waits.get(id(record), (0.0, None))))
        return analysis

    def phases(self):
        return [phase for phase in PHASES if any(step.phase == phase for step in self.steps.values())]

    def costs(self):
        """(phase, operation) -> Costs."""
        steps = Counter(step.phase for step in self.steps.values())  # of all ranks
        groups = defaultdict(list)
        for each in self.heard:
            groups[each.phase, each.record.operation].append(each)
        return {key: _costs(group, steps[key[0]]) for key, group in sorted(groups.items())}

    def shares(self):
        """(phase, rank) -> Share."""
        steps, sums = defaultdict(list), defaultdict(lambda: [0.0, 0.0, 0])
        for (rank, _), step in self.steps.items():
            steps[step.phase, rank].append(step.seconds)
        for each in self.heard:
            total = sums[each.phase, each.record.rank]
            total[0] += each.waited
            total[1] += each.record.seconds - each.waited
            total[2] += each.record.sent
        return {
            key: Share(sum(seconds) / len(seconds), *(total / len(seconds) for total in sums[key]))
            for key, seconds in sorted(steps.items())
        }

    def imbalance(self, phase, of):
        """The most of any rank over the mean of all: 1 where all ranks have the same. `of` is a field of Share."""
        values = [getattr(share, of) for (its, _), share in self.shares().items() if its == phase]
        return max(values) * len(values) / sum(values) if values and sum(values) > 0 else None

    def waited_for(self, phase):
        """(who, for whom) -> mean seconds of a step."""
        steps = Counter(step.rank for step in self.steps.values() if step.phase == phase)
        waits = Counter()
        for each in self.heard:
            if each.phase == phase and each.whom is not None:
                waits[each.record.rank, each.whom] += each.waited / steps[each.record.rank]
        return dict(waits)

    def communication_by_step(self, rank):
        """(iteration, share of communication) in the order of iterations."""
        seconds = Counter()
        for each in self.heard:
            if each.record.rank == rank:
                seconds[each.record.iteration] += each.record.seconds
        mine = sorted((step.iteration, step.seconds) for (its, _), step in self.steps.items() if its == rank)
        return [(iteration, seconds[iteration] / length if length else None) for iteration, length in mine]


def _costs(group, steps):
    calls = len(group)
    waited, seconds = sum(each.waited for each in group), sum(each.record.seconds for each in group)
    moved = sum(max(each.record.sent, each.record.received) for each in group)
    transfer = seconds - waited
    sent = sum(each.record.sent for each in group)
    bandwidth = moved / transfer if moved and transfer > 0 else None
    return Costs(calls / steps, sent / calls, seconds / calls, waited / calls, bandwidth)


def _waits(operations, ranks):
    """The id of a record -> (seconds that it waited, for whom)."""
    collectives, sends, receives = defaultdict(list), defaultdict(list), defaultdict(list)
    for record in operations:
        if record.operation == "send":
            sends[record.communicator, record.rank, record.peer].append(record)
        elif record.operation == "receive":
            receives[record.communicator, record.peer, record.rank].append(record)
        else:
            collectives[record.communicator, record.number].append(record)
    waits = {}
    for together in collectives.values():
        if len(together) == ranks:
            needed = _needed(together)
            waits.update((id(record), _wait(record, needed)) for record in together)
    for pair, arrived in receives.items():
        if len(arrived) == len(sends[pair]):  # none of them was dropped
            waits.update((id(record), _wait(record, sent)) for record, sent in zip(arrived, sends[pair], strict=True))
    return waits


def _needed(together):
    """The record without which nobody comes away from a collective; None if the trace makes no sense there."""
    root = together[0].peer
    if root is not None:
        return next((record for record in together if record.rank == root), None)
    return max(together, key=lambda record: record.start)


def _wait(record, needed):
    if needed is None:
        return 0.0, None
    seconds = min(record.end, needed.start) - record.start
    return (seconds, needed.rank) if record.rank != needed.rank and seconds > 0 else (0.0, None)
