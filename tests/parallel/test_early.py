"""Dense sums that begin in backward: the same training, whatever backward makes where, and the same loud ends."""

from functools import cache

import pytest
from ranks import WORKERS, findings_of, run_ranks, run_torch_ranks
from test_training import arguments_for, records, train

from corpora import make_corpus

WAYS = (
    *("plain", "branches", "none on one rank", "two parts", "not finite", "merged", "excluded", "sparse never"),
    *("clipped", "taken up"),
)
NEVER_EARLY = ("clipped",)
LAUNCHES = [(1, run_ranks), (2, run_ranks), (3, run_ranks), (3, run_torch_ranks)]
SECONDS_TO_END = 60
ROUNDING = 1e-6  # of three summands, whose order may be another in a shorter message
found = cache(lambda ranks, launch: findings_of(ranks, "early.py", launch=launch))


@pytest.mark.parametrize(("ranks", "launch"), LAUNCHES)
@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_same(ranks, launch, way):
    here = found(ranks, launch)[way]
    assert here["difference"] <= (ROUNDING if ranks > 2 else 0)
    assert here["of norms"] <= ROUNDING
    assert here["alike"]
    plain, early = here["steps"]
    assert plain == early
    assert ["sparse" if way != "sparse never" else "dense", False] == plain[-1][:2]


@pytest.mark.parametrize(("ranks", "launch"), LAUNCHES[1:])
@pytest.mark.parametrize("way", WAYS)
def test_sums_come_in_buckets_but_where_the_whole_gradient_is_needed(ranks, launch, way):
    plain, early = found(ranks, launch)[way]["sums"]
    assert (early > plain) == (way not in NEVER_EARLY)


@pytest.mark.parametrize(("ranks", "launch"), LAUNCHES[1:])
def test_what_would_change_a_gradient_that_is_gone_is_refused(ranks, launch):
    twice, dropped = found(ranks, launch)["refused"]
    assert "set optimizer.local = True for all but the last backward of a step" in twice
    assert "the gradients were zeroed between backward and step" in dropped


@pytest.mark.parametrize("launch", [run_ranks, run_torch_ranks])
def test_a_rank_that_fails_while_others_wait_for_its_sums_ends_all(launch):
    done = launch(3, WORKERS / "early.py", "1", seconds=SECONDS_TO_END)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr


def test_the_program_trains_alike_and_counts_what_nobody_waited_for_nowhere(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", train=16, val=3)
    losses = {}
    for overlap in ("True", "False"):
        run = tmp_path / overlap
        more = ("--max-epochs", "3", "--compression", "--no-momentum-correction", "--warmup-iters", "4")
        more += ("--overlap", overlap, "--trace")
        done = train(2, corpus, run, *more)
        assert done.returncode == 0, done.stderr
        steps = records(run, "iter")
        losses[overlap] = [(step["loss"], step["grad_norm"], step["phase"]) for step in steps]
        assert all(0 <= step["t_comm"] <= step["t_iter"] for step in steps)
        assert "--overlap: no sum begins in backward" not in done.stdout + done.stderr
    assert losses["True"] == losses["False"]


def test_what_keeps_sums_from_beginning_early_is_said(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", train=16, val=3)
    done = train(2, corpus, tmp_path / "run", "--max-epochs", "1", "--compression", "--overlap")
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("--overlap: no sum begins in backward") == 1


def test_gradients_that_are_to_be_recorded_are_this_ranks_own(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", train=16, val=3)
    words = arguments_for(corpus, tmp_path / "run", "--overlap", "True", "--record-gradients", "0")
    done = run_ranks(1, "LSTM/main_trainer.py", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --overlap True sums gradients while they are made")
