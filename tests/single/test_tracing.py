"""Traces: what is kept, on which clock, in which files, and what it says of cases worked out by hand."""

import json
import os
import threading
import time

import pytest
import torch
from test_communicator import on_ranks

from oktopk.transports.alone import Alone
from oktopk_training import tracing
from oktopk_training.errors import UserError
from oktopk_training.step import Step
from oktopk_training.trace_analysis import Analysis
from oktopk_training.trace_files import DROPPED, STEP, Record, read_trace, write_trace

NASTY = "</script><script>alert(1)</script>"


def record(rank, operation="allreduce", number=1, start=0.0, seconds=1.0, **more):
    about = {"iteration": 0, "phase": "dense", "gradient": "all", "dtype": "float32", "sent": 100, "received": 100}
    about |= {"elements_in": 25, "elements_out": 25, "start": start, "seconds": seconds}
    return Record(rank, "reduction", operation, number, **{**about, **more})


def step(rank, iteration, start, seconds, phase="dense"):
    return Record(rank, "", STEP, iteration=iteration, phase=phase, start=start, seconds=seconds)


# ---- analyses, worked out by hand


@pytest.fixture
def three_ranks():
    """One dense step of 10 s on ranks 0, 1 and 2. They come to an allreduce at 2, 5 and 4 s and leave it at 6 s.

    Then rank 0 broadcasts from 8 s to 9 s, to rank 1, who came at 7 s, and to rank 2, who came at 8.5 s.
    """
    return [
        *(step(rank, 0, 0.0, 10.0) for rank in range(3)),
        *(record(rank, start=start, seconds=6.0 - start) for rank, start in enumerate((2.0, 5.0, 4.0))),
        record(0, "bcast", 2, 8.0, 1.0, peer=0, sent=100, received=0),
        record(1, "bcast", 2, 7.0, 2.0, peer=0, sent=0),
        record(2, "bcast", 2, 8.5, 0.5, peer=0, sent=0),
    ]


def test_all_wait_for_the_last_that_comes_and_in_a_broadcast_for_its_root(three_ranks):
    waits = Analysis.of(three_ranks).waited_for("dense")
    assert waits == {(0, 1): 3.0, (2, 1): 1.0, (1, 0): 1.0}


def test_a_step_is_work_and_waiting_and_transfer(three_ranks):
    shares = Analysis.of(three_ranks).shares()
    assert [shares["dense", rank].waiting for rank in range(3)] == [3, 1, 1]
    assert [shares["dense", rank].transfer for rank in range(3)] == [2, 2, 1.5]
    assert [shares["dense", rank].work for rank in range(3)] == [5, 7, 7.5]
    assert [shares["dense", rank].communication for rank in range(3)] == [0.5, 0.3, 0.25]
    assert [Analysis.of(three_ranks).communication_by_step(rank) for rank in (0, 2)] == [[(0, 0.5)], [(0, 0.25)]]


def test_imbalance_is_the_most_over_the_mean(three_ranks):
    analysis = Analysis.of(three_ranks)
    assert analysis.imbalance("dense", "sent") == pytest.approx(200 / (400 / 3))
    assert analysis.imbalance("dense", "work") == pytest.approx(7.5 / 6.5)
    assert analysis.imbalance("sparse", "sent") is None


def test_bandwidth_is_of_the_time_that_was_not_waiting(three_ranks):
    costs = Analysis.of(three_ranks).costs()
    assert costs["dense", "allreduce"] == (1, 100, 7 / 3, 4 / 3, 300 / 3)
    calls, sent, seconds, waited, bandwidth = costs["dense", "bcast"]
    assert (calls, sent, seconds, waited) == pytest.approx((1, 100 / 3, 3.5 / 3, 1 / 3))
    assert bandwidth == pytest.approx(300 / 2.5)


def test_a_receive_waits_for_its_send_and_phases_are_apart():
    records = [
        *(step(rank, iteration, 10.0 * iteration, 10.0, "sparse") for rank in (0, 1) for iteration in (0, 1)),
        record(0, "send", 0, 3.0, 0.5, peer=1, received=0, iteration=0),
        record(1, "receive", 0, 1.0, 2.5, peer=0, sent=0, iteration=0),
        record(0, "send", 0, 12.0, 0.5, peer=1, received=0, iteration=1),
        record(1, "receive", 0, 12.5, 0.25, peer=0, sent=0, iteration=1),
        record(0, "allreduce", 9, 25.0, 1.0, iteration=None),
    ]
    analysis = Analysis.of(records)
    assert analysis.phases() == ["sparse"]
    assert analysis.waited_for("sparse") == {(1, 0): 1.0}  # 2 s in one of two steps
    assert analysis.costs()["sparse", "receive"].bandwidth == 200 / 0.75
    assert ("sparse", "allreduce") not in analysis.costs()


def test_nobody_is_said_to_wait_where_records_were_dropped(three_ranks):
    kept = [each for each in three_ranks if (each.rank, each.operation) != (1, "allreduce")]
    analysis = Analysis.of([*kept, record(1, DROPPED, 1)])
    assert analysis.waited_for("dense") == {(1, 0): 1.0}
    assert analysis.dropped == {1: 1}


# ---- keeping


def test_what_is_heard_within_a_step_is_its_own_and_the_middle_is_dropped():
    comm = Alone()
    tracer = tracing.Tracer(0, {"reduction": comm}, most=6)
    for number in range(5):
        comm.allreduce(torch.zeros(1))  # before the step: a validation's, say
        tracer.begin_step()
        comm.subject = ("all", "dense")
        comm.allgatherv(torch.zeros(number), [number])
        comm.subject = None
        tracer.end_step(Step(number, 0, t_iter=0.25))
    *kept, dropped = tracer.records()
    assert [(each.operation, each.iteration) for each in kept] == [
        *(("allreduce", None), ("allgatherv", 0), (STEP, 0)),
        *(("allreduce", None), ("allgatherv", 4), (STEP, 4)),
    ]
    assert (dropped.operation, dropped.number) == (DROPPED, 9)
    gathered = kept[4]
    assert (gathered.gradient, gathered.phase, gathered.dtype) == ("all", "dense", "float32")
    assert (gathered.elements_in, gathered.elements_out, gathered.split_out) == (4, 4, (4,))
    assert (kept[3].gradient, kept[3].phase, kept[3].number) == (None, None, 9)


def test_untraced_nothing_is_heard():
    class Ranks:
        communicators = {"control": Alone()}  # noqa: RUF012

    with tracing.tracing(False, Ranks, None) as tracer:
        assert Ranks.communicators["control"].recorder is None
        tracer.begin_step()
        tracer.end_step(None)


# ---- clocks


def test_a_moment_comes_to_the_clock_of_rank_0_as_their_difference_changes():
    before, after = (1_000_000_000, 400_000_000), (3_000_000_000, 500_000_000)  # 0.4 s ahead at 1 s, 0.5 s at 3 s
    assert tracing.on_clock_of_first(1.0, before, after) == pytest.approx(0.6)
    assert tracing.on_clock_of_first(2.0, before, after) == pytest.approx(1.55)
    assert tracing.on_clock_of_first(3.0, before, after) == pytest.approx(2.5)
    assert tracing.on_clock_of_first(5.0, (0, 0), (0, 0)) == 5.0


def test_pings_find_by_how_much_another_clock_is_ahead(monkeypatch):
    ahead, true = threading.local(), time.perf_counter_ns
    monkeypatch.setattr(time, "perf_counter_ns", lambda: true() + getattr(ahead, "by", 0))

    def run(comm):
        ahead.by = comm.rank * 7_000_000_000
        return tracing.ping(comm)

    (found, *others) = on_ranks(3, run)
    assert others == [None, None]
    assert [offset for _, offset in found] == pytest.approx([0, 7e9, 14e9], abs=50e6)


# ---- files


def many():
    split = {"split_in": (3, 4), "split_out": (5, 6), "gradient": NASTY}
    return [
        step(0, 7, 1.0, 2.0, "sparse"),
        record(0, "alltoallv", 3, 1.25, 0.5, iteration=7, phase="sparse", **split),
        record(1, "send", 3, 1.25, 0.5, peer=0, phase=None, gradient=None, iteration=None),
        record(1, DROPPED, 12, 0.0, 0.0),
    ]


def test_a_trace_is_read_as_it_was_written(tmp_path):
    write_trace(tmp_path, many(), ["one", "two"])
    assert read_trace(tmp_path) == many()
    assert read_trace(tmp_path / "nowhere") == []


def test_what_a_run_traced_before_it_was_ended_is_kept(caplog, tmp_path):
    first, then = (step(0, number, number, 1.0) for number in (3, 4))
    with caplog.at_level("INFO", "oktopk"):
        for each in (first, then):
            tracing._write(tmp_path, [each], ["host"])
    assert [each.iteration for each in read_trace(tmp_path)] == [4]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("trace.before-4.csv", "trace.before-4.json", "trace.csv", "trace.json"),
    ]
    assert f"what was traced before this is in {tmp_path / 'trace.before-4.json'}" in caplog.text


def test_the_timeline_is_in_the_trace_event_format_with_kinetos_names(tmp_path):
    write_trace(tmp_path, many(), ["one", "two"])
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["droppedRecords"] == {"1": 12}
    assert trace["distributedInfo"] == {"world_size": 2, "hosts": ["one", "two"]}
    step_event, swap, send = (event for event in trace["traceEvents"] if event["ph"] == "X")
    assert (step_event["name"], step_event["ts"], step_event["dur"]) == ("step 7", 0, 2e6)
    assert (swap["name"], swap["pid"], swap["ts"], swap["dur"]) == ("alltoallv", 0, 250_000, 500_000)
    assert swap["tid"] != step_event["tid"]
    assert {
        **{"Collective name": "alltoallv", "dtype": "float32", "In msg nelems": 25, "Out msg nelems": 25, "Rank": 0},
        **{"In split size": [3, 4], "Out split size": [5, 6], "Group size": 2, "Process Group Name": "reduction"},
        **{"Process Group Ranks": [0, 1], "Seq": 3, "iteration": 7, "phase": "sparse", "merged gradient": NASTY},
    }.items() <= swap["args"].items()
    assert (send["args"]["Src Rank"], send["args"]["Dst Rank"]) == (1, 0)


@pytest.mark.parametrize(
    ("place", "content"),
    [(0, "-1"), (0, "9" * 30), (3, "x"), (13, "-4"), (15, "nan"), (16, "inf"), (16, "-1"), (11, "a")],
)
def test_a_table_that_is_no_trace_is_refused(place, content, tmp_path):
    write_trace(tmp_path, many(), ["one", "two"])
    head, first, *rest = (tmp_path / "trace.csv").read_text().splitlines()
    cells = first.split(",")
    cells[place] = content
    (tmp_path / "trace.csv").write_text("\n".join([head, ",".join(cells), *rest]))
    with pytest.raises(UserError, match="no trace of a run"):
        read_trace(tmp_path)


def test_what_would_hang_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "trace.csv")
    with pytest.raises(UserError, match="not a regular file"):
        read_trace(tmp_path)
