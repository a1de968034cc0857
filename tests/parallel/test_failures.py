"""Whatever goes wrong on one rank: all end within seconds, the cause is said once, and the log of the run has it."""

import re

import pytest
from failures import LIMIT, run
from ranks import WORKERS, run_ranks

from corpora import make_corpus

SOON = 30  # seconds; most of it is the start of torch on a busy machine, where ranks had yet to come
LEFT = "rank 1 has left (its program ended)"
LATE = "rank 1 has not come to "


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=24, val=3)


@pytest.mark.parametrize(
    ("transport", "fault", "moment", "causes", "in_log"),
    [
        ("MPI", "raises", "before MPI", ["rank one's own trouble", "rank 1 has ended before the start of MPI"], None),
        ("MPI", "raises", "while torch is imported", ["rank one's own trouble"], None),
        ("MPI", "raises", "in compute", ["rank one's own trouble"], "rank 1: RuntimeError: rank one's own trouble"),
        ("MPI", "is stopped", "in the exchange", [LATE + "alltoallv"], LATE),
        ("MPI", "leaves", "in validation", [LEFT], LEFT),
        ("MPI", "Ctrl-C", "in compute", ["interrupted"], "interrupted by Ctrl-C"),
        ("MPI", "the audio goes", "in compute", ["wav"], "wav"),
        ("torch", "is stopped", "in the exchange", [LATE + "alltoallv"], LATE),
        ("torch", "leaves", "in a checkpoint", [LEFT], LEFT),
    ],
)
def test_a_fault_of_one_rank_ends_all(transport, fault, moment, causes, in_log, corpus, tmp_path):
    end = run(fault, moment, transport, corpus, tmp_path)
    assert end.status != 0
    assert end.seconds < SOON + (LIMIT if fault == "is stopped" else 0)
    assert end.orphans == []
    said = [line for line in end.cause() if not line.startswith("warning: ")]
    assert len(said) == len(causes), end.said
    for line, cause in zip(said, causes, strict=True):
        assert cause in line
    if in_log is not None:
        assert in_log in end.log[-1], end.log[-3:]
    else:
        assert end.log == []


def test_a_wait_below_the_limit_ends_nothing_and_one_that_has_no_end_does():
    """In a loop of one's own, without `-m mpi4py`; a step that all ranks skip is said once as well."""
    done = run_ranks(3, WORKERS / "waits.py", seconds=120, OKTOPK_WATCHDOG="10")
    assert done.returncode != 0
    for rank in range(3):
        assert f"step 4 of rank {rank}\n" in done.stdout, done.stderr
    assert "through" not in done.stdout
    assert done.stderr.count("a gradient was not finite; this step is skipped on all ranks") == 1
    patterns = [
        r"warning: rank 1 has not come to allreduce \d+ for \d s \(it does not answer\)",
        r"warning: rank 0 has not come to allreduce \d+ for \d s \(it was last seen between operations, after \d+\)",
        rf"error: {re.escape(LEFT)} while others wait in allreduce \d+: give all ranks the same number of steps",
    ]
    said = [line for line in done.stderr.splitlines() if re.match("warning: |error: ", line)]
    said = [line for line in said if "to the start of" not in line]  # a busy machine starts ranks far apart
    assert len(said) == len(patterns), done.stderr
    assert all(re.fullmatch(*pair) for pair in zip(patterns, said, strict=True)), said


def test_a_rank_without_memory_for_its_reducer_ends_all_with_a_sentence():
    """For the residual of the first sparse step."""
    done = run_ranks(2, WORKERS / "memory.py", 1.5, seconds=120)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: on rank 1: the reducer's buffers did not fit into memory (")
    assert "Traceback" not in done.stderr
    assert "through" not in done.stdout
