"""--inspect under real launchers: the bits of a run that nobody looks into, also where it was killed and goes on."""

import json
import signal

import pytest
from chaos import start
from ranks import run_ranks, run_torch_ranks

from corpora import PROJECT, make_corpus
from oktopk_training.inspection_files import read_inspections
from runs import differences_of

OPTIONS = ("--hidden-size", "16", "--hidden-layers", "1", "--batch-size", "2", "--device", "cpu", "--compression")
MORE = ("--warmup-iters", "3", "--checkpoint-interval", "3", "--max-epochs", "2", "--resume", "auto")
STEPS = 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=20, val=3)


def test_a_run_that_is_inspected_killed_and_resumed_has_the_bits_of_one_that_nobody_touched(corpus, tmp_path):
    options = (*OPTIONS, *MORE, "--data-dir", corpus, "--momentum-correction")
    done = run_ranks(2, PROJECT / "LSTM" / "main_trainer.py", "--run-dir", tmp_path / "plain", *options)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "plain" / "inspections.jsonl").exists()
    plan = {"rank": 1, "moment": "compute", "call": 9, "part": 0.5, "number": signal.SIGKILL}
    looked_at = (*options, "--inspect", "1")
    assert start(plan, tmp_path / "run", looked_at, 2).returncode != 0
    before = (tmp_path / "run" / "inspections.jsonl").read_text().splitlines()
    done = start(None, tmp_path / "run", looked_at, 2)
    assert done.returncode == 0, done.stderr
    assert "ages of residual entries are counted anew" in done.stdout
    assert list(differences_of(tmp_path / "run", tmp_path / "plain")) == []
    after = (tmp_path / "run" / "inspections.jsonl").read_text().splitlines()
    assert [json.loads(line)["iter"] for line in after] == list(range(STEPS))
    assert after[:6] == before[:6]  # up to the checkpoint
    assert [each.age_steps for each in read_inspections(tmp_path / "run")[3:]] == [1, 2, 3, 1, 2, 3, 4]


def test_under_torchrun_it_writes_what_the_ranks_have_together(corpus, tmp_path):
    done = run_torch_ranks(
        2, PROJECT / "LSTM" / "main_trainer.py", "--run-dir", tmp_path / "run", *OPTIONS, "--data-dir", corpus,
        "--compressor", "gaussiank", "--warmup-iters", "2", "--max-epochs", "1", "--inspect", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    dense, *sparse = read_inspections(tmp_path / "run")
    assert (dense.iter, dense.phase, [each.iter for each in sparse]) == (0, "dense", [2, 4])
    for each in sparse:
        assert 0 < each.overlap <= each.overlap_of_result <= 1
        elements = sum(of for _, of in each.selected.values())
        assert elements * 2 == sum(each.residual.counts) + each.residual.zeros  # of both ranks
