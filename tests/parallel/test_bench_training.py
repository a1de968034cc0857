"""Whole steps and whole trainings, ours beside PyTorch's own hooks."""

import json

import pytest
from ranks import ROOT, run_ranks, run_script

from corpora import make_corpus

TINY_MODEL = ("--hidden-size", 8, "--hidden-layers", 1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=24, val=3)


def test_training_is_timed_beside_torchs_own_hooks(corpus, tmp_path):
    words = ("--data-dir", corpus, "--hidden-size", 8, "--hidden-layers", 1, "--batch-size", 4, "--steps", 1)
    names = ["DDP", "DDP, bfloat16 hook", "DDP, PowerSGD rank 2", "dense", "oktopk", "oktopk, bfloat16"]
    program = ROOT / "scripts" / "bench_training.py"
    done = run_ranks(2, program, *words, "--methods", "|".join(names), "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stderr
    title, *table = done.stdout.splitlines()
    assert title.startswith("2 ranks, ")
    assert "step 5 of 5 of each" in done.stderr  # in more epochs than one, which has three
    assert [line.split(" | ")[0].strip("| ") for line in table[2:]] == names
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert all(row["seconds"] > 0 and row["bytes_on_link"] is None for row in rows)


def test_a_method_that_there_is_not_is_named(corpus):
    done = run_ranks(1, ROOT / "scripts" / "bench_training.py", "--data-dir", corpus, "--methods", "SGD")
    assert done.returncode == 2
    assert "error: --methods: there is no 'SGD'; there are DDP | DDP, float16 hook |" in done.stderr


@pytest.mark.parametrize(("target", "epochs"), [(2, 1), (1e-9, 2)])
def test_each_method_trains_until_the_target_or_the_last_epoch(target, epochs, corpus, tmp_path):
    names = ["DDP", "DDP, PowerSGD rank 1", "dense, overlapped", "oktopk", "oktopk, no momentum correction"]
    words = ("--data-dir", corpus, *TINY_MODEL, "--batch-size", 4, "--warmup-iters", 1, "--max-epochs", 2)
    program, out = ROOT / "scripts" / "time_to_target.py", ("--json", tmp_path / "f.json", "--out", tmp_path / "f.png")
    done = run_ranks(2, program, "--target", target, "--methods", "|".join(names), *words, *out)
    assert done.returncode == 0, done.stderr
    table = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[-len(names) :]]
    assert [row[0] for row in table] == names
    assert all((row[1] == "not reached") == (target < 1) for row in table)
    rows = json.loads((tmp_path / "f.json").read_text())["rows"]
    assert [len(row["curve"]) for row in rows] == [epochs] * len(names)
    assert {row["curve"][-1]["steps"] for row in rows} == {3 * epochs}
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_written_is_said_before_anything_is_trained(corpus, tmp_path):
    out = ("--json", tmp_path / "missing" / "f.json")
    done = run_ranks(1, ROOT / "scripts" / "time_to_target.py", "--target", 0.2, "--data-dir", corpus, *out)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "missing" in done.stderr


def test_a_step_is_timed_beside_bare_torch(corpus):
    done = run_script(ROOT / "scripts" / "bench_step.py", "--data-dir", corpus, "--steps", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("full model, batch 8, 1 steps, ")
    assert "start to first step" in done.stdout
