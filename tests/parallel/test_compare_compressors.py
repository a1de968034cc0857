"""scripts/compare_compressors.py: real runs of a tiny model on two ranks, compared, broken off, taken up again."""

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from compare_compressors import Outcome, _options, draw, find_run, read_outcome, rows
from corpora import PROJECT, SMALL, make_corpus, run_program
from oktopk_training.errors import UserError

PROGRAM = "scripts/compare_compressors.py"
NAMES = ("dense", "oktopk")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=16, val=3)


def compare(out, corpus, *more, names=NAMES, environment=None):
    words = ["--compressors", *names, "--epochs", 2, "--warmup-iters", 1, "--out", out, *more]
    small = ("--hidden-size", 16, "--hidden-layers", 2, "--batch-size", 4, "--data-dir", corpus)
    return run_program(PROGRAM, *words, "--", *small, environment=environment)


@pytest.fixture(scope="module")
def comparison(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    return out, compare(out, corpus)


def test_every_compressor_is_trained_and_has_its_row(comparison):
    out, done = comparison
    assert done.returncode == 0, done.stderr
    table = (out / "comparison.md").read_text()
    assert table in done.stdout
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == ["`dense`", "`oktopk`"]
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    for name in NAMES:
        config = json.loads((out / f"{name}-seed0-2epochs" / "config.json").read_text())
        assert (config["options"]["compressor"], config["options"]["warmup_iters"], config["ranks"]) == (name, 1, 2)


def test_a_run_that_never_became_sparse_is_said_to_be_none_of_its_compressor(corpus, tmp_path):
    done = compare(tmp_path, corpus, "--warmup-iters", 100, names=("oktopk",))
    assert done.returncode == 0, done.stderr
    assert "warning: oktopk has sent nothing sparse yet" in done.stdout


def test_what_is_there_is_not_trained_again(comparison, corpus):
    out, first = comparison
    again = compare(out, corpus)
    assert again.returncode == 0, again.stderr
    assert "training for" in first.stdout
    assert "training for" not in again.stdout
    assert again.stdout.splitlines()[-9:] == first.stdout.splitlines()[-9:]


def test_a_run_that_fails_ends_the_comparison_and_keeps_what_is_finished(corpus, tmp_path):
    done = compare(tmp_path / "out", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: dense, seed 0: the run ended with status 2")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("change", ["option", "variable"])
def test_runs_with_other_options_are_not_mixed(change, comparison, corpus):
    out, _ = comparison
    if change == "option":
        done = compare(out, corpus, "--warmup-iters", 2)
    else:
        done = compare(out, corpus, environment={"density": "0.5"})
    assert done.returncode == 2
    assert "other options" in done.stderr


def test_what_a_comparison_sets_itself_is_refused(tmp_path):
    done = run_program(PROGRAM, "--out", tmp_path, "--", "--max_epochs=3")
    assert done.returncode == 2
    assert done.stderr == "error: --max_epochs=3 behind --: a comparison sets this option for its runs; leave it out\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_comparison_that_is_ended_ends_its_run(how, corpus, tmp_path):
    words = ["--compressors", "dense", "--epochs", 500, "--out", tmp_path, "--", "--data-dir", corpus, *SMALL]
    command = [sys.executable, PROGRAM, *map(str, words)]
    with heard(how):
        comparison = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "dense-seed0-500epochs.unfinished" / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
        comparison.send_signal(how)
        assert comparison.wait(timeout=60) == {signal.SIGTERM: 143, signal.SIGINT: 130}.get(how, -how)
        wait_until(lambda: not running(tmp_path))
    finally:
        comparison.kill()


@contextmanager
def heard(number):
    """Whoever started the tests (nohup, a shell's background) may have told all that they start not to heed it."""
    before = None if number == signal.SIGKILL else signal.signal(number, signal.default_int_handler)
    yield
    if before is not None:
        signal.signal(number, before)


def running(folder):
    """Processes with this folder in their command line."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def wait_until(holds, seconds=60):
    end, moment = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < end, "it never came"
        moment.wait(0.05)


def test_a_longer_run_serves_where_it_was_validated(tmp_path):
    for epochs in (6, 8, 20):
        folder = tmp_path / f"oktopk-seed1-{epochs}epochs"
        folder.mkdir()
        words = _options("oktopk", ["--seed", "1", "--max-epochs", str(epochs)])
        (folder / "config.json").write_text(json.dumps({"command": ["main_trainer.py", *words, "--run-dir", "x"]}))
    assert find_run(tmp_path, "oktopk", 1, 4, []).name == "oktopk-seed1-6epochs"
    assert find_run(tmp_path, "oktopk", 1, 12, []).name == "oktopk-seed1-20epochs"
    assert find_run(tmp_path, "oktopk", 1, 7, []) is None  # no run of more epochs was validated after the seventh
    assert find_run(tmp_path, "oktopk", 2, 4, []) is None
    (tmp_path / "topkA-seed1-4epochs").mkdir()
    with pytest.raises(UserError, match="no run that finished"):
        find_run(tmp_path, "topkA", 1, 4, [])


def test_of_a_longer_run_its_first_epochs_count(comparison):
    out, _ = comparison
    run = Path(out) / "oktopk-seed0-2epochs"
    both, first = read_outcome(run, 2), read_outcome(run, 1)
    assert [epoch for epoch, *_ in both.validations] == [1, 2]
    assert first.validations == both.validations[:1]
    assert both.selected == pytest.approx(1)
    assert 0 < both.sent < first.sent * 10
    with pytest.raises(UserError, match="not validated after 3 epochs"):
        read_outcome(run, 3)


def test_compressors_that_learn_alike_share_a_curve():
    one, other = ([Outcome([(4, wer, wer, 3.0)], 1.0, 2000.0)] for wer in (0.2, 0.4))
    (axes,) = draw({"gtopk": one, "topkA": other, "oktopk": one}).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["gtopk, oktopk", "topkA"]


def test_a_row_holds_the_mean_over_seeds_and_their_spread():
    runs = [Outcome([(4, wer, wer / 2, 3.0)], 1.0, 2000.0) for wer in (0.2, 0.4)]
    row = list(rows({"gtopk": runs}))[-1]
    assert row == "| `gtopk` | 2 | 0.300 (0.200 to 0.400) | 0.150 (0.100 to 0.200) | 3.00 | 1.00 | 2 |"
