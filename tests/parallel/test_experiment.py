"""scripts/experiment.py with real trainings of a tiny model on two ranks: broken off in a run, and taken up again."""

import csv
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from corpora import PROJECT, SMALL, make_corpus
from runs import records

PROGRAM = "scripts/experiment.py"
DENSE, SPARSE = "compressor=dense,seed=0", "compressor=oktopk,density=0.02,seed=0"
EPOCHS = 5
STEPS = 4  # of an epoch


class Experiment:
    """Each start is the same command."""

    def __init__(self, folder):
        self.out = folder / "out"
        corpus = make_corpus(folder / "corpus", train=32, val=3)
        varied = ("--vary", "compressor=dense,oktopk", "--vary", "density=0.02")
        length = ("--max-epochs", EPOCHS, "--val-interval", EPOCHS, "--warmup-iters", 3)
        words = (*varied, "--out", self.out, "--", *SMALL, "--data-dir", corpus, *length)
        self.command = [sys.executable, PROGRAM, *map(str, words)]

    def start(self):
        return subprocess.Popen(self.command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def steps(self, name):
        """How many are on record."""
        metrics = self.out / name / "metrics.jsonl"
        return metrics.read_text().count('"iter", ') if metrics.exists() else 0


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(experiment, its words, its status), ended by SIGTERM within the first run."""
    experiment = Experiment(tmp_path_factory.mktemp("experiment"))
    started = experiment.start()
    try:
        wait_until(lambda: experiment.steps(DENSE) >= 2)
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=60)
    finally:
        started.kill()
    return experiment, errors, started.returncode


@pytest.fixture(scope="module")
def finished(ended):
    experiment, *_ = ended
    steps = experiment.steps(DENSE)
    started = experiment.start()
    said, errors = started.communicate(timeout=120)
    return experiment, said, errors, started.returncode, steps


def test_an_experiment_that_is_ended_ends_its_run_with_a_checkpoint(ended):
    experiment, errors, status = ended
    assert status == 128 + signal.SIGTERM
    assert errors == "\nended early; the same command goes on from here\n"
    wait_until(lambda: not running(experiment.out))
    assert 2 <= experiment.steps(DENSE) < STEPS * EPOCHS
    assert list((experiment.out / DENSE / "checkpoints").glob("step-*"))


def test_the_same_command_goes_on_within_the_run(finished):
    experiment, said, errors, status, steps = finished
    assert status == 0, said + errors
    assert "seed=0: training" in said
    written = records(experiment.out / DENSE)
    (resumed,) = [record for record in written if record.get("name") == "resumed"]
    assert resumed["iter"] == steps
    assert [record["iter"] for record in written if record["kind"] == "iter"] == list(range(STEPS * EPOCHS))


def test_every_cell_is_trained_with_its_options_and_stands_in_the_table(finished):
    experiment, said, *_ = finished
    table = (experiment.out / "table.md").read_text()
    assert table in said
    assert [line.split("|")[1:3] for line in table.splitlines()[2:]] == [[" dense ", "  "], [" oktopk ", " 0.02 "]]
    for name, compressor in ((DENSE, "dense"), (SPARSE, "oktopk")):
        config = json.loads((experiment.out / name / "config.json").read_text())
        options = config["options"]
        assert (options["compressor"], options["compression"], options["warmup_iters"]) == (compressor, True, 3)
        assert config["ranks"] == 2
    with open(experiment.out / "runs.csv", newline="") as file:
        dense, sparse = csv.DictReader(file)
    assert 0 < float(sparse["bytes_per_step"]) < float(dense["bytes_per_step"])
    assert float(sparse["entries_of_k"]) == pytest.approx(1)
    assert (experiment.out / "report.html").exists()


def running(folder):
    """Processes with this folder in their command line."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def wait_until(holds, seconds=120):
    end, moment = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < end, "it never came"
        moment.wait(0.05)
