"""The reducer under real mpiexec: somebody else's loop, traffic, large indices, and what goes wrong on one rank."""

import math
from functools import cache

import pytest
from ranks import WORKERS, findings_of, run_ranks, run_torch_ranks

SECONDS_TO_END = 60  # a fault on one rank ends the job; without that the job would hang until the limit
IN_FOREIGN_LOOPS = ("oktopk", "gtopk", "dense")
EXACT_SPARSE = ("topkA2", "gtopk", "oktopk")


@cache
def foreign_loops(ranks):
    return findings_of(ranks, "foreign_loop.py", *IN_FOREIGN_LOOPS)


@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("name", IN_FOREIGN_LOOPS)
def test_a_loop_that_knows_only_the_contract_runs_unchanged(ranks, name):
    found = foreign_loops(ranks)[name]
    for way in found.values():
        assert way["same"], "the ranks' parameters differ"
        assert way["last"] < 0.5 * way["first"]
        chosen = [] if name == "dense" else [int(way["elements"] * 0.02)] * 12  # 140 steps, 128 of them warm-up
        assert way["sparsities"] == [1 - count / way["elements"] for count in chosen]
        assert way["ratios"] == [way["elements"] / count for count in chosen]
        assert way["sizes"] == [8 * count for count in chosen]
    assert found["reducer"]["counts"] == found["optimizer"]["counts"] == [140]
    assert found["reducer"]["parameters"] == found["optimizer"]["parameters"]


@pytest.mark.parametrize("launch", [run_ranks, run_torch_ranks])
def test_what_ranks_have_that_lead_no_node_any_more_is_handed_to_who_does(launch):
    found = findings_of(3, "leaders.py", launch=launch)
    for name, buffers in (("plain", "residual"), ("momentum", "residual velocity")):
        assert found[name]["loaded"] == [buffers] * 3
        assert found[name]["led"] == [buffers, "", buffers]
    assert found["plain"]["lost"] < 1e-5
    for told in found["momentum"]["velocities"]:
        kept, wrong = map(int, told.split())
        assert kept > 300  # of 500: a tenth was sent
        assert wrong == 0


@pytest.fixture(scope="module")
def volumes():
    return {ranks: findings_of(ranks, "volume.py", 200_000, 0.02, "oktopk,topkA,topkSA,gtopk") for ranks in (2, 4, 8)}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_traffic_keeps_to_each_algorithms_formula(volumes, ranks):
    """In words, as multiples of k; of oktopk, what finds its thresholds is counted too."""
    share, k = (ranks - 1) / ranks, 4000
    small = 40 * ranks / k  # counts and agreement: they do not grow with n
    rounds = math.ceil(math.log2(ranks))
    most = {
        "none": 2 * 50 * share,
        "topkA": 2 * (ranks - 1),
        "topkA2": 2 * (ranks - 1),
        "topkSA": 4 * ranks * share,
        "gtopk": 4 * rounds,
        "oktopk": 6 * share,
    }
    for name, bound in most.items():
        found = volumes[ranks][name]
        extra = 0 if name == "oktopk" else small
        assert max(found["sent"][1], found["received"][1]) <= bound + extra, name
    assert volumes[ranks]["topkA"]["received"][0] >= most["topkA"]  # all of it is needed: nothing is left uncounted


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_exact_algorithms_select_exactly_k_in_every_iteration(volumes, ranks):
    for name in EXACT_SPARSE:
        assert volumes[ranks][name]["selected"] == [1.0, 1.0], name


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_indices_above_2_to_24_arrive_exactly(volumes, ranks):
    expected = {str(1 + 2 * rank): 1.0 + rank for rank in range(ranks)} | {"1000": 10.0 * ranks}
    for name, found in volumes[ranks]["large"].items():
        assert found == pytest.approx(expected), name


@pytest.mark.parametrize("fault", ["thread", "main", "killed"])
def test_a_failure_on_one_rank_ends_the_job_on_all_and_says_why(fault):
    done = run_ranks(3, WORKERS / "faults.py", fault, seconds=SECONDS_TO_END)
    assert done.returncode != 0
    assert "through" not in done.stdout
    cause = {"thread": "ReducerError", "main": "rank one's own trouble", "killed": "KILLED"}[fault]
    said = (done.stderr + done.stdout).upper().count(cause.upper())
    assert said >= 1, done.stderr
    if fault != "killed":
        assert done.stderr.count("rank 1 failed, and ends the job on all ranks") == 1, done.stderr
        assert "rank 0 failed" not in done.stderr


@pytest.mark.parametrize("fault", ["thread", "main", "killed"])
def test_the_same_over_torch_distributed(fault):
    done = run_torch_ranks(3, WORKERS / "faults.py", fault, seconds=SECONDS_TO_END)
    assert done.returncode != 0
    assert "through" not in done.stdout
    if fault == "killed":  # torchrun may end the others before they have said it
        assert "rank 1 is gone" in done.stderr or "Signal 9 (SIGKILL) received by PID" in done.stderr
    else:
        assert {"thread": "no attribute 'choose'", "main": "rank one's own trouble"}[fault] in done.stderr
        assert "the reducer failed: rank 1: " in done.stderr, "the other ranks say whose fault it was"


def test_ranks_with_different_parameters_do_not_begin():
    done = run_ranks(3, WORKERS / "faults.py", "other model", seconds=SECONDS_TO_END)
    assert done.returncode != 0
    assert "rank 1 and rank 0 have different parameters" in done.stderr


def test_ranks_that_start_from_other_parameters_are_warned_of_once():
    done = run_ranks(3, WORKERS / "faults.py", "other values", seconds=SECONDS_TO_END)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rank 1 starts with other values of the parameters than rank 0") == 1
    assert "other values" not in run_ranks(3, WORKERS / "faults.py", "none", seconds=SECONDS_TO_END).stderr


def test_one_ranks_nan_is_skipped_by_all():
    done = run_ranks(3, WORKERS / "faults.py", "nan", seconds=SECONDS_TO_END)
    assert done.returncode == 0, done.stderr
    assert "through" in done.stdout
