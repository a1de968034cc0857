"""--trace under real mpiexec: four ranks, on clocks that are far apart, and what their trace holds of them."""

import json
from collections import defaultdict

import pytest
from ranks import findings_of, run_ranks

from corpora import PROJECT, SMALL, make_corpus
from oktopk_training.trace_analysis import Analysis
from oktopk_training.trace_files import DROPPED, STEP, read_trace

RANKS = 4
SLACK = 0.1  # seconds that a busy machine may hold a ping up
MORE = ("--max-epochs", "2", "--compression", "--compressor", "gtopk", "--warmup-iters", "1", "--merge-size", "3000")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=32, val=4)


def arguments_for(corpus, run, *more):
    return [*SMALL, "--data-dir", corpus, "--run-dir", run, *more]


def steps_of(run):
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "iter"]


@pytest.fixture(scope="module")
def traced(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "traced"
    return run, findings_of(RANKS, "tracing.py", *arguments_for(corpus, run, *MORE)), read_trace(run)


def test_bytes_and_calls_of_every_rank_are_those_that_its_communicators_count(traced):
    _, counted, trace = traced
    found = defaultdict(lambda: [0, 0, 0])
    for each in trace:
        if each.operation not in (STEP, DROPPED):
            sums = found[each.rank, each.communicator]
            for place, value in enumerate((1, each.sent, each.received)):
                sums[place] += value
    expected = {(rank, name): sums for rank, own in enumerate(counted) for name, sums in own.items() if sums[0]}
    assert dict(found) == expected
    assert {name for _, name in expected} == {"control", "reduction", "checkpoints"}


def test_bytes_of_a_step_are_those_of_its_metrics(traced):
    run, _, trace = traced
    for record in steps_of(run)[1:]:  # in the first, parameters are compared too
        own = [each for each in trace if (each.rank, each.iteration) == (0, record["iter"])]
        assert sum(each.sent for each in own if each.communicator == "reduction") == record["bytes_sent"] > 0
        reductions = [each for each in own if each.gradient is not None]
        assert {each.phase for each in reductions} == {record["phase"]}
        assert len({each.gradient for each in reductions}) > 1
    assert steps_of(run)[-1]["phase"] == "sparse"


def test_clocks_are_aligned_so_that_nobody_leaves_a_collective_before_all_have_come(traced):
    _, _, trace = traced
    together = defaultdict(list)
    for each in trace:
        if each.operation in ("allreduce", "allgatherv"):
            together[each.communicator, each.number].append(each)
    assert len(together) > 10
    for group in together.values():
        assert {each.rank for each in group} == set(range(RANKS))
        assert max(each.start for each in group) < min(each.end for each in group) + SLACK


def test_sends_and_receives_name_each_other_and_are_waited_for(traced):
    _, _, trace = traced
    sent = sorted((each.rank, each.peer, each.elements_in) for each in trace if each.operation == "send")
    received = sorted((each.peer, each.rank, each.elements_out) for each in trace if each.operation == "receive")
    assert sent == received
    assert sent
    analysis = Analysis.of(trace)
    assert analysis.phases() == ["dense", "sparse"]
    assert all(0 < share.communication < 1 for share in analysis.shares().values())
    assert sum(analysis.waited_for("sparse").values()) > 0


def test_the_timeline_holds_every_record_in_the_trace_event_format(traced):
    run, _, trace = traced
    timeline = json.loads((run / "trace.json").read_text())
    events = timeline["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all({"name", "pid", "tid", "ts", "args"} <= event.keys() for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(trace) - RANKS
    assert all(event["dur"] >= 0 <= event["ts"] and event["cat"] for event in spans)
    named = {
        (event["pid"], event["args"]["name"].split()[:2][-1]) for event in events if event["name"] == "process_name"
    }
    assert named == {(rank, str(rank)) for rank in range(RANKS)}
    assert timeline["droppedRecords"] == {str(rank): 0 for rank in range(RANKS)}


def test_without_trace_there_is_none_and_the_steps_are_the_same(traced, corpus, tmp_path):
    run, _, _ = traced
    done = run_ranks(RANKS, PROJECT / "LSTM" / "main_trainer.py", *arguments_for(corpus, tmp_path / "run", *MORE))
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "run").glob("trace*"))
    losses = [[record["loss"] for record in steps_of(each)] for each in (run, tmp_path / "run")]
    assert losses[0] == losses[1]
