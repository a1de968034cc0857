"""Ranks over any transport: here, one of threads. And what ends a job of them."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from main_trainer import own_device
from oktopk.launchers import LostRanks
from oktopk_training import job
from oktopk_training.errors import SharedError, UserError
from oktopk_training.job import program
from oktopk_training.ranks import Ranks, alone

SECONDS = 20  # until a rank that others wait for counts as lost


class Threads:
    """The operations that `Ranks` needs, between threads."""

    def __init__(self, rank, size, table, meeting):
        self.rank, self.size, self._table, self._meeting = rank, size, table, meeting

    def versions(self):
        return {}

    def duplicate(self):
        return self

    def _exchange(self, buffer):
        assert buffer.dim() == 1
        self._table[self.rank] = buffer.clone()
        self._meeting.wait(SECONDS)
        everyone = list(self._table)
        self._meeting.wait(SECONDS)
        return everyone

    def allreduce(self, buffer, op="sum"):
        assert buffer.dtype in (torch.float32, torch.int64)
        assert op == "sum"
        buffer.copy_(sum(self._exchange(buffer)))

    def allgather(self, buffer):
        return torch.stack(self._exchange(buffer))

    def allgatherv(self, buffer, counts):
        everyone = self._exchange(buffer)
        assert [each.numel() for each in everyone] == counts
        return torch.cat(everyone)

    def bcast(self, buffer, root=0):
        buffer.copy_(self._exchange(buffer)[root])


def on_ranks(size, action):
    """What the action returns, or the error that it raises, on each of so many ranks."""
    table, meeting = [None] * size, threading.Barrier(size)

    def one(rank):
        try:
            return action(Ranks(Threads(rank, size, table, meeting)))
        except (UserError, SystemExit) as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_everyones_values_arrive_whatever_their_length(size):
    values = [{"rank": rank, "text": "é" * rank * 1000} for rank in range(size)]
    assert on_ranks(size, lambda ranks: ranks.everyones(values[ranks.rank])) == [values] * size


def test_places_on_a_node_follow_from_the_hosts_names(monkeypatch):
    names = {}
    monkeypatch.setattr("socket.gethostname", lambda: names[threading.get_ident()])
    monkeypatch.setattr("oktopk_training.ranks.cores", lambda: {0, 1, 2})

    class Named(Threads):
        def versions(self):
            names[threading.get_ident()] = f"node{self.rank % 2}"
            return {}

    table, meeting = [None] * 3, threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda rank: Ranks(Named(rank, 3, table, meeting)), range(3)))
    assert [(ranks.local_rank, ranks.local_size, ranks.cores) for ranks in found] == [(0, 2, 3), (0, 1, 3), (1, 2, 3)]
    assert found[1].hosts == ["node0", "node1", "node0"]


def test_an_error_or_an_end_of_one_rank_is_raised_on_all():
    def fail(ranks, error):
        def action():
            if ranks.rank == 1:
                raise error

        ranks.together(action)

    errors = on_ranks(3, lambda ranks: fail(ranks, UserError("no data")))
    assert [(type(error), str(error)) for error in errors] == [(SharedError, "on rank 1: no data")] * 3
    assert [error.code for error in on_ranks(3, lambda ranks: fail(ranks, SystemExit(0)))] == [0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_rank_gets_the_first_ones_model_whatever_its_dtype(dtype):
    def share(ranks):
        generator = torch.Generator().manual_seed(ranks.rank)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(dtype)
        for tensor in net.state_dict().values():
            tensor.copy_(torch.randint(0, 9, tensor.shape, generator=generator))
        net[0].weight.data = net[0].weight.data.t().contiguous().t()  # one that does not lie in order
        mine = [tensor.clone() for tensor in net.state_dict().values()]
        ranks.share_model(net)
        return mine, list(net.state_dict().values())

    shared = on_ranks(3, share)
    for _, got in shared:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, shared[0][0], strict=True))
    assert not torch.equal(shared[1][0][0], shared[0][0][0])


def test_statistics_are_averaged_whatever_their_dtype():
    def average(ranks):
        net = torch.nn.BatchNorm1d(2).to(torch.bfloat16)
        net.running_mean.fill_(ranks.rank)
        ranks.average_buffers(net)
        return net.running_mean.tolist()

    assert on_ranks(3, average) == [[1.0, 1.0]] * 3


def test_a_rank_without_the_first_ones_kind_of_device_is_named(monkeypatch):
    here = threading.local()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here.devices)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)

    def choose(ranks):
        here.devices = 0 if ranks.rank == 1 else 4
        return own_device("cuda", ranks)

    for error in on_ranks(2, choose):
        assert str(error).startswith("on rank 1: torch finds no CUDA device")
    assert own_device("cpu", alone()) == "cpu"


# ---- the end of a job


@pytest.fixture
def ended(monkeypatch):
    """What is done to the job of a rank 1 of 2 while a program runs; whether it is to speak when it fails."""
    done = []

    def abort(status, cause=None):
        done.append((status, cause))

    monkeypatch.setattr(job, "SECONDS_TO_SPEAK", 0)

    def run(error, may_speak=True):
        ranks = SimpleNamespace(
            rank=1,
            size=2,
            is_first=False,
            abort=abort,
            barrier=lambda: done.append("barrier"),
            may_speak=lambda: may_speak,
        )

        @program
        def main():
            job.enlist(ranks)
            raise error

        hook = sys.excepthook
        with pytest.raises(SystemExit) as met:
            main()
        assert sys.excepthook is hook
        return met.value.code, done

    return run


@pytest.mark.parametrize(
    ("error", "status", "done", "said"),
    [
        (UserError("no data"), 2, [(2, "no data")], "error: on rank 1: no data\n"),
        (SharedError("no data"), 2, ["barrier"], ""),
        (KeyboardInterrupt(), 130, [(130, "interrupted by Ctrl-C")], "\ninterrupted\n"),
        (LostRanks("rank 0 is gone"), 1, [(1, "rank 0 is gone")], "error: rank 0 is gone\n"),
        (LostRanks("rank 0 has said why", told=True), 1, [(1, None)], ""),
    ],
)
def test_what_ends_one_rank_ends_all(error, status, done, said, ended, capsys):
    """An abort returns only here."""
    assert ended(error) == (status, done)
    assert capsys.readouterr().err == said


def test_a_rank_that_meets_what_another_is_about_to_say_is_silent(ended, capsys):
    assert ended(UserError("no data"), may_speak=False) == (2, [(2, "no data")])
    assert capsys.readouterr().err == ""


def test_a_programs_own_error_keeps_its_traceback_and_ends_all(ended, capsys):
    error = RuntimeError("rank one's own trouble")
    assert ended(error) == (1, [(1, "RuntimeError: rank one's own trouble")])
    said = capsys.readouterr().err
    assert said.startswith("rank 1: Traceback")
    assert said.endswith("RuntimeError: rank one's own trouble\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 105. MiB for an array with shape (27569568,) and data type float32"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 110278272 bytes. Error code 12 (Cannot allocate memory)"
        ),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 106.00 MiB."),
    ],
)
def test_memory_that_is_not_there_is_said_in_a_sentence(error, ended, capsys):
    assert ended(error)[0] == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: on rank 1: ")
    assert "llocate 1" in line
    assert "enforce" not in line


def test_one_rank_alone_ends_as_any_program(capsys):
    @program
    def main():
        job.enlist(alone())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main()
    assert capsys.readouterr().err == ""
