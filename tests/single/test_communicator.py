"""What a communicator does around a transport: here, ranks are threads, or there is one alone."""

import queue
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from oktopk.communicator import Communicator, Traffic
from oktopk.transports.alone import Alone

SECONDS = 20  # until a rank that others wait for counts as lost
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4, 5])


class Meeting:
    """What the threads of one job share."""

    def __init__(self, size):
        self.size, self.shown, self.barrier = size, [None] * size, threading.Barrier(size)
        self.mail, self.parts = defaultdict(queue.Queue), {}


class Threads(Communicator):
    def __init__(self, rank, meeting):
        super().__init__(rank, meeting.size)
        self._meeting = meeting

    def _part(self, groups, mine):
        if mine is None:
            return None
        return Threads(mine.index(self.rank), self._meeting.parts.setdefault(tuple(mine), Meeting(len(mine))))

    def _show(self, what):
        """What every rank shows."""
        self._meeting.shown[self.rank] = what
        self._meeting.barrier.wait(SECONDS)
        everyone = list(self._meeting.shown)
        self._meeting.barrier.wait(SECONDS)
        return everyone

    def _allreduce(self, buffer, op):
        everyone = torch.stack(self._show(buffer.clone()))
        buffer.copy_({"sum": everyone.sum(0), "max": everyone.amax(0)}[op])

    def _bcast(self, buffer, root):
        buffer.copy_(self._show(buffer.clone())[root])

    def _allgatherv(self, buffer, counts):
        everyone = self._show(buffer)
        assert [each.numel() for each in everyone] == list(counts)
        return torch.cat(everyone)

    def _alltoallv(self, buffer, send_counts, receive_counts):
        parts = [each[self.rank] for each in self._show(buffer.split(send_counts))]
        assert [part.numel() for part in parts] == receive_counts
        return torch.cat(parts)

    def _send(self, buffer, destination):
        self._meeting.mail[self.rank, destination].put(buffer)

    def _receive(self, buffer, source):
        buffer.copy_(self._meeting.mail[source, self.rank].get(timeout=SECONDS))

    def duplicate(self):
        raise NotImplementedError

    def abort(self, status):
        raise NotImplementedError


def on_ranks(size, action):
    """What the action returns on each of so many ranks."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(action, [Threads(rank, meeting) for rank in range(size)]))


def bytes_of(size, action, name):
    """(sent, received) of each rank for one operation."""

    def run(comm):
        action(comm)
        assert set(comm.traffic) == {name}
        return comm.traffic[name].sent, comm.traffic[name].received

    return on_ranks(size, run)


# ---- what operations do


@SIZES
def test_allreduce_combines_in_place(size):
    def reduce(comm):
        buffers = {op: torch.tensor([1.0 + comm.rank, -2.0 * comm.rank]) for op in ("sum", "mean", "max")}
        for op, buffer in buffers.items():
            assert comm.allreduce(buffer, op=op) is None
        return buffers

    total = torch.tensor([size * (size + 1) / 2, -size * (size - 1.0)])
    for buffers in on_ranks(size, reduce):
        assert torch.equal(buffers["sum"], total)
        assert torch.allclose(buffers["mean"], total / size)
        assert buffers["max"].tolist() == [size, 0]


def test_allreduce_sums_if_it_is_not_told_otherwise():
    def reduce(comm):
        buffer = torch.tensor([2**62 - 1 + comm.rank])
        comm.allreduce(buffer)
        return buffer.item()

    assert on_ranks(2, reduce) == [2**63 - 1] * 2


@SIZES
@pytest.mark.parametrize("root", [0, -1])
def test_bcast_overwrites_with_the_roots(size, root):
    def cast(comm):
        buffer = torch.full((3,), comm.rank)
        comm.bcast(buffer, root=root % size)
        return buffer.tolist()

    assert on_ranks(size, cast) == [[root % size] * 3] * size


@SIZES
def test_gathers_hold_every_rank_in_its_order(size):
    def gather(comm):
        same = comm.allgather(torch.tensor([comm.rank, -comm.rank]))
        counts = list(range(size))
        return same.tolist(), comm.allgatherv(torch.full((comm.rank,), comm.rank), counts).tolist()

    for same, ragged in on_ranks(size, gather):
        assert same == [[rank, -rank] for rank in range(size)]
        assert ragged == [rank for rank in range(size) for _ in range(rank)]


@SIZES
def test_alltoall_transposes(size):
    """Rank r sends r·10 + s to rank s, s times over in the ragged form."""

    def swap(comm):
        equal = comm.alltoall(torch.tensor([comm.rank * 10 + to for to in range(size)]))
        outgoing = torch.tensor([comm.rank * 10 + to for to in range(size) for _ in range(to)], dtype=torch.int64)
        ragged = comm.alltoallv(outgoing, list(range(size)), [comm.rank] * size)
        return equal.tolist(), ragged.tolist()

    for rank, (equal, ragged) in enumerate(on_ranks(size, swap)):
        assert equal == [source * 10 + rank for source in range(size)]
        assert ragged == [source * 10 + rank for source in range(size) for _ in range(rank)]


def test_one_rank_sends_what_another_receives():
    def pass_on(comm):
        if comm.rank == 0:
            return comm.send(torch.tensor([1.5, 2.5]), 1)
        return comm.receive(2, torch.float32, 0).tolist()

    assert on_ranks(2, pass_on) == [None, [1.5, 2.5]]


# ---- bytes: those of the bandwidth-optimal form over this rank's link


@SIZES
def test_allreduce_counts_a_ring(size):
    """Each rank passes on all but its own share, twice."""
    each = 2 * 4 * 60 * (size - 1) // size
    assert bytes_of(size, lambda comm: comm.allreduce(torch.zeros(60)), "allreduce") == [(each, each)] * size


@pytest.mark.parametrize(
    ("size", "buffers_sent"),
    [(1, [0]), (2, [1, 0]), (3, [2, 0, 0]), (4, [2, 1, 0, 0]), (5, [3, 1, 0, 0, 0]), (8, [3, 2, 1, 1, 0, 0, 0, 0])],
)
@pytest.mark.parametrize("root", [0, 1])
def test_bcast_counts_a_binomial_tree(size, buffers_sent, root):
    found = bytes_of(size, lambda comm: comm.bcast(torch.zeros(10, dtype=torch.int64), root % size), "bcast")
    found = found[root % size :] + found[: root % size]  # from the root on
    assert [sent for sent, _ in found] == [80 * count for count in buffers_sent]
    assert [received for _, received in found] == [0] + [80] * (size - 1)


@SIZES
def test_allgatherv_counts_a_ring(size):
    """Everything but the own part arrives; all but what the next rank has is passed on."""
    counts = [3 + 2 * rank for rank in range(size)]

    def gather(comm):
        comm.allgatherv(torch.zeros(counts[comm.rank], dtype=torch.int32), counts)

    found = bytes_of(size, gather, "allgatherv")
    assert [received for _, received in found] == [4 * (sum(counts) - count) for count in counts]
    assert [sent for sent, _ in found] == [4 * (sum(counts) - counts[(rank + 1) % size]) for rank in range(size)]


@SIZES
def test_alltoallv_counts_what_does_not_stay(size):
    def swap(comm):
        leaving = [to + 1 for to in range(size)]
        comm.alltoallv(torch.zeros(sum(leaving)), leaving, [comm.rank + 1] * size)

    found = bytes_of(size, swap, "alltoallv")
    assert [sent for sent, _ in found] == [4 * (size * (size + 1) // 2 - (rank + 1)) for rank in range(size)]
    assert [received for _, received in found] == [4 * (rank + 1) * (size - 1) for rank in range(size)]


def test_messages_between_two_count_on_the_side_that_they_are_on():
    def pass_on(comm):
        if comm.rank == 0:
            comm.send(torch.zeros(3, dtype=torch.float64), 1)
        else:
            comm.receive(3, torch.float64, 0)
        return {name: (record.sent, record.received) for name, record in comm.traffic.items()}

    assert on_ranks(2, pass_on) == [{"send": (24, 0)}, {"receive": (0, 24)}]


def every_operation(comm):
    comm.allreduce(torch.ones(10), op="max")
    comm.bcast(torch.ones(10), root=0)
    comm.allgather(torch.ones(10))
    comm.allgatherv(torch.ones(10), [10] * comm.size)
    comm.alltoall(torch.ones(10 * comm.size))
    comm.alltoallv(torch.ones(10 * comm.size), [10] * comm.size, [10] * comm.size)


def test_one_rank_alone_sends_and_receives_nothing():
    comm = Alone()
    every_operation(comm)
    total = comm.total()
    assert (total.sent, total.received, total.calls) == (0, 0, 6)


# ---- recording and adding up


def test_a_recorder_hears_of_every_operation_once_it_is_done():
    def run(comm):
        heard = []
        comm.recorder = heard.append
        before = time.perf_counter()
        every_operation(comm)
        if comm.rank == 0:
            comm.send(torch.ones(2), 1)
        else:
            comm.receive(2, torch.float32, 0)
        return heard, before, time.perf_counter(), comm.traffic

    def expected(cast, message):
        gather = ("allgatherv", 40, 40, {"counts": [10, 10]})
        swap = ("alltoallv", 40, 40, {"to": [10, 10], "of": [10, 10]})
        reduce = ("allreduce", 40, 40, {"op": "max"})
        return [reduce, ("bcast", *cast, {"root": 0}), gather, gather, swap, swap, message]

    first, second = on_ranks(2, run)
    for (heard, *_), wanted in (
        (first, expected(cast=(40, 0), message=("send", 8, 0, {"to": 1}))),
        (second, expected(cast=(0, 40), message=("receive", 0, 8, {"of": 0}))),
    ):
        assert [(each.name, each.sent, each.received, each.details) for each in heard] == wanted
    for heard, before, after, traffic in (first, second):
        moments = [before, *(moment for each in heard for moment in (each.start, each.start + each.seconds)), after]
        assert moments == sorted(moments)
        for name, record in traffic.items():
            mine = [each for each in heard if each.name == name]
            assert record.calls == len(mine)
            assert record.seconds == pytest.approx(sum(each.seconds for each in mine))


def test_seconds_are_those_that_the_transport_took():
    class Slow(Alone):
        def _bcast(self, buffer, root):
            time.sleep(0.05)

    comm = Slow()
    comm.bcast(torch.ones(1))
    comm.allreduce(torch.ones(1))
    assert comm.traffic["bcast"].seconds >= 0.05
    assert comm.traffic["allreduce"].seconds < 0.05


def test_totals_are_sums_over_operations_and_differences_between_totals_are_steps():
    comm = Alone()
    comm.traffic["allreduce"] = Traffic(calls=2, sent=10, received=20, seconds=0.5)
    comm.traffic["copies"] = Traffic(to_host=0.25, to_device=0.125)
    before = comm.total()
    assert before == Traffic(2, 10, 20, 0.5, 0.25, 0.125)
    comm.traffic["send"].add(Traffic(calls=1, sent=7, seconds=1.0))
    assert comm.total().add(before, -1) == Traffic(calls=1, sent=7, seconds=1.0)
    assert before == Traffic(2, 10, 20, 0.5, 0.25, 0.125)


def test_on_the_host_nothing_is_copied():
    class Looking(Alone):
        def _bcast(self, buffer, root):
            self.seen = buffer.data_ptr()

    comm, buffer = Looking(), torch.ones(10)
    comm.bcast(buffer)
    assert comm.seen == buffer.data_ptr()
    every_operation(comm)
    assert "copies" not in comm.traffic
    assert (comm.total().to_host, comm.total().to_device) == (0, 0)


@pytest.mark.parametrize(("op", "expected"), [("sum", [6, 1, 6, 1]), ("mean", [3, 1, 3, 1])])
def test_what_is_combined_in_place_may_lie_scattered(op, expected):
    """And what lies between is left alone."""

    def reduce(comm):
        buffer = torch.ones(4)
        buffer[::2] = 2.0 + 2 * comm.rank
        comm.allreduce(buffer[::2], op=op)
        return buffer.tolist()

    assert on_ranks(2, reduce) == [expected] * 2


def test_a_rank_alone_has_nobody_to_send_to():
    with pytest.raises(ValueError, match="nobody to send to"):
        Alone().send(torch.ones(1), 0)
    with pytest.raises(ValueError, match="nobody to receive from"):
        Alone().receive(1, torch.float32, 0)
