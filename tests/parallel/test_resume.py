"""Ranks that are killed, and the job that goes on: on as many with the same bits, on others with all residuals."""

import signal

import pytest
from chaos import start
from ranks import findings_of, run_ranks, run_torch_ranks

from corpora import make_corpus
from runs import differences_of, newest_checkpoint, records

SECONDS = 120
ROUNDING = 1e-6  # of a sum of float32 residuals
OPTIONS = ("--hidden-size", "16", "--hidden-layers", "1", "--batch-size", "2", "--device", "cpu", "--val-interval", "1")
RESUMED = (
    "--compression",
    "--warmup-iters",
    "3",
    "--checkpoint-interval",
    "3",
    "--max-epochs",
    "3",
    "--resume",
    "auto",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=20, val=3)


def started(run, corpus, *more, plan=None, ranks=2, launch=run_ranks):
    options = (*OPTIONS, *RESUMED, "--data-dir", corpus, *more)
    return start(plan, run, options, ranks, launch, seconds=SECONDS)


def ended(run, corpus, *more, **how):
    done = started(run, corpus, *more, **how)
    assert done.returncode == 0, done.stderr
    return done


def killed(rank, moment, call, part=0.5, number=signal.SIGKILL):
    return {"rank": rank, "moment": moment, "call": call, "part": part, "number": number}


@pytest.mark.parametrize(
    ("launch", "more", "plans"),
    [
        (
            run_ranks,
            ("--compressor", "oktopk", "--momentum-correction"),
            [killed(0, "exchange", 6), killed(1, "checkpoint", 2), killed(0, "validation", 1)],
        ),
        (run_torch_ranks, ("--compressor", "gtopk"), [killed(1, "compute", 8)]),
    ],
    ids=["MPI", "Gloo"],
)
def test_a_job_whose_ranks_were_killed_goes_on_with_the_same_bits(launch, more, plans, corpus, tmp_path):
    ended(tmp_path / "whole", corpus, *more, launch=launch)
    for plan in plans:
        assert started(tmp_path / "killed", corpus, *more, plan=plan, launch=launch).returncode != 0
    ended(tmp_path / "killed", corpus, *more, launch=launch)
    assert len([record for record in records(tmp_path / "killed") if record.get("name") == "resumed"]) >= 1
    assert list(differences_of(tmp_path / "killed", tmp_path / "whole")) == []


def test_sigterm_of_one_rank_ends_all_with_a_whole_checkpoint(corpus, tmp_path):
    plan = killed(1, "compute", 4, number=signal.SIGTERM)
    done = started(tmp_path / "run", corpus, plan=plan)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout.count("ended by SIGTERM after step 4: the checkpoint of step 4 holds all of it") == 1
    assert {path.name for path in newest_checkpoint(tmp_path / "run").iterdir()} == {
        "whole.json", "common.pt", "rank-0.pt", "rank-1.pt",
    }  # fmt: skip
    assert "Traceback" not in done.stderr


def test_four_ranks_go_on_as_two_and_these_as_three_and_no_residual_is_lost(corpus, tmp_path):
    run = tmp_path / "run"
    for epochs, ranks, before, then in ((2, 4, None, 2), (4, 2, 4, 3), (6, 3, 2, None)):
        done = ended(run, corpus, "--max-epochs", epochs, ranks=ranks)
        if before:
            assert f"saved by {before} ranks and taken up by {ranks}: residuals are shared out" in done.stdout
        if then:
            found = findings_of(then, "shares.py", run / "checkpoints")
            assert found["saved by"] == found["ranks"] == ranks
            assert found["difference"] < ROUNDING
    steps = [record for record in records(run) if record["kind"] == "iter"]
    assert [step["iter"] for step in steps] == list(range(2 * 2 + 2 * 5 + 2 * 3))
    assert {step["phase"] for step in steps[3:]} == {"sparse"}
    losses = [record["loss"] for record in records(run) if record["kind"] == "epoch"]
    assert losses[-1] < losses[0] / 2
