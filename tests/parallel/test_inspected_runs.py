"""--inspect under real launchers: the bits of a run that nobody looks into, also where it goes back and goes on."""

import json

import pytest
from ranks import WORKERS, run_ranks, run_torch_ranks

from corpora import PROJECT, make_corpus
from oktopk_training.inspection_files import read_inspections
from runs import differences_of

OPTIONS = ("--hidden-size", "16", "--hidden-layers", "1", "--batch-size", "2", "--device", "cpu", "--compression")
MORE = ("--warmup-iters", "2", "--max-epochs", "1", "--checkpoint-interval", "2")
STEPS = 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=4 * STEPS, val=2)


def test_a_run_that_is_inspected_and_goes_on_has_the_bits_of_one_that_nobody_looks_into(corpus, tmp_path):
    """It goes on from step 4, with what it wrote in steps 4 and 5 still in its files."""
    plain, run = tmp_path / "plain", tmp_path / "run"
    words = [*OPTIONS, *MORE, "--data-dir", str(corpus), "--momentum-correction"]
    looked_at = [*words, "--inspect", "1"]
    starts = [
        [*words, "--run-dir", str(plain)],
        [*looked_at, "--run-dir", str(run)],
        [*looked_at, "--resume", str(run / "checkpoints" / "step-00000004")],
    ]
    done = run_ranks(2, WORKERS / "one_after_another.py", *map(json.dumps, starts))
    assert done.returncode == 0, done.stderr
    assert "ages of residual entries" in done.stdout.partition("goes on from the checkpoint")[2]
    assert not (plain / "inspections.jsonl").exists()
    assert list(differences_of(run, plain)) == []
    found = read_inspections(run)
    assert len((run / "inspections.jsonl").read_text().splitlines()) == len(found)
    assert [(each.iter, each.age_steps) for each in found] == [(0, None), (1, None), (2, 1), (3, 2), (4, 1), (5, 2)]


def test_under_torchrun_it_writes_what_the_ranks_have_together(corpus, tmp_path):
    done = run_torch_ranks(
        2, PROJECT / "LSTM" / "main_trainer.py", "--run-dir", tmp_path / "run", *OPTIONS, *MORE, "--data-dir", corpus,
        "--compressor", "gaussiank", "--inspect", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    dense, *sparse = read_inspections(tmp_path / "run")
    assert (dense.iter, dense.phase, [each.iter for each in sparse]) == (0, "dense", [2, 4])
    for each in sparse:
        assert 0 < each.overlap <= each.overlap_of_result <= 1
        elements = sum(of for _, of in each.selected.values())
        assert elements * 2 == sum(each.residual.counts) + each.residual.zeros  # of both ranks
