"""What a run does when its files cannot be written, and when two runs want the same folder."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from corpora import PROJECT, SMALL, TRAINER, run_program
from oktopk_training.board import Board
from oktopk_training.errors import UserError
from oktopk_training.run_layout import METRICS
from oktopk_training.run_log import RunLog, log, run_folder, start_logging

EPOCH = {"epoch": 0, "loss": 1.0}


def limited_to(size):
    """Files of this process end there, as if the disk were full."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def train_with_files_up_to(size, corpus, run, without_mpi):
    """Without MPI, whose shared memory counts as a file; None is no limit."""
    arguments = [*SMALL, "--data-dir", corpus, "--run-dir", run, "--max-epochs", 3]
    return subprocess.run(
        [sys.executable, TRAINER, *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **without_mpi},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=None if size is None else limited_to(size),
    )


@pytest.fixture(scope="module")
def compiled(corpus, tmp_path_factory, without_mpi):
    """The kernels are compiled and in numba's cache."""
    assert (
        train_with_files_up_to(None, corpus, tmp_path_factory.mktemp("compiled") / "run", without_mpi).returncode == 0
    )


@pytest.mark.usefixtures("compiled")
def test_a_full_disk_refuses_a_run_that_has_not_begun_and_costs_one_that_has_its_files_alone(
    corpus, tmp_path, without_mpi
):
    """The first size meets config.json; the others what a run writes while it trains."""
    result = train_with_files_up_to(800, corpus, tmp_path / "refused", without_mpi)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: cannot write ")
    assert "File too large" in line
    for size in (3_000, 20_000):
        run = tmp_path / str(size)
        result = train_with_files_up_to(size, corpus, run, without_mpi)
        assert (result.returncode, result.stderr) == (0, "")
        assert "epoch 2: loss" in result.stdout
        assert "there is no best model" in result.stdout
        for file in ("metrics.jsonl", "train.log", "tensorboard"):
            said = [line for line in result.stdout.splitlines() if line.startswith(str(run / file))]
            assert len(said) <= 1, said
            assert said or size > 3_000
        records = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
        assert records[0]["iter"] == 0, "no line is cut"


def test_a_run_needs_no_room_for_its_kernels(tmp_path, monkeypatch):
    """Where they cannot be cached, each process compiles its own."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); import numpy; from oktopk import kernels; "
        "print(kernels.count_at_least(numpy.ones(3, numpy.float32), numpy.int32(1)))"
    )
    result = run_program(("-c", script), environment={"PYTHONPATH": str(PROJECT / "LSTM")})
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "3"


def test_a_log_that_cannot_be_written_is_said_once(tmp_path, capsys):
    (tmp_path / "train.log").symlink_to("/dev/full")
    start_logging()
    with RunLog(tmp_path, {}, 1):
        for _ in range(3):
            log.info("a line")
    said = capsys.readouterr().out
    assert said.count("train.log: nothing more is written: ") == said.count("No space left") == 1
    assert said.count("a line") == 3


def test_records_that_find_no_room_are_lost_whole_and_later_ones_are_kept(tmp_path, capsys):
    start_logging()
    with RunLog(tmp_path, {}, 1) as run:
        run.epoch(**EPOCH)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / METRICS).stat().st_size + 50, hard))
        try:
            run.event("lost")
            run.epoch(**EPOCH)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        run.event("kept")
    records = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [record.get("name", record["kind"]) for record in records] == ["epoch", "lost", "kept"]
    assert capsys.readouterr().out.count("records are lost") == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("a loop's own error"), '"a loop\'s own error"'),
        (KeyboardInterrupt(), "interrupted by Ctrl-C"),
        (SystemExit(143), "by SIGTERM"),
        (SystemExit(2), "exit status 2"),
        (SystemExit(None), "exit status None"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_train_log_ends_with_what_ended_the_run(error, words, tmp_path):
    start_logging()
    with pytest.raises(type(error)), RunLog(tmp_path, {}, 1):
        raise error
    assert (tmp_path / "train.log").read_text().splitlines()[-1].endswith(f"the run ended here: {words}")


def test_without_room_for_tensorboard_the_run_goes_on(tmp_path, monkeypatch, caplog):
    board = Board(tmp_path)
    board.scalar("loss", 1.0, 0)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board._writer, "write_event", full)
    for step in range(50):
        board.scalar("loss", 1.0, step)
    board.close()
    assert caplog.text.count("No space left on device") == 1


def test_of_two_runs_told_the_same_folder_one_gets_it(tmp_path):
    start_logging(speaks=False)
    folder = tmp_path / "run"
    with run_folder(folder, "") as first, run_folder(folder, "") as second, RunLog(first, {}, 1) as run:
        run.epoch(**EPOCH)
        with pytest.raises(UserError, match="run already holds a run"):
            RunLog(second, {"other": True}, 1)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {}
    assert len((tmp_path / "run" / METRICS).read_text().splitlines()) == 1


def test_a_default_folder_that_nothing_came_into_is_taken_away_again(tmp_path, monkeypatch):
    monkeypatch.setattr("oktopk_training.run_log.PROJECT", tmp_path)
    with run_folder(None, "name") as folder:
        assert folder.parent == tmp_path / "runs" / "name"
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_two_default_folders_of_one_second_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr("oktopk_training.run_log.PROJECT", tmp_path)
    monkeypatch.setattr("oktopk_training.run_log.time.strftime", lambda _: "now")
    with run_folder(None, "name") as first, run_folder(None, "name") as second:
        assert (first.name, second.name) == ("now", "now-2")
    assert list(tmp_path.iterdir()) == []
