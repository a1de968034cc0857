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
        env={**os.environ, **without_mpi},
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
@pytest.mark.parametrize("size", [800, 3_000, 20_000])
def test_a_full_disk_ends_a_run_with_one_sentence(size, corpus, tmp_path, without_mpi):
    """The sizes meet, in turn, config.json, the log and the models."""
    result = train_with_files_up_to(size, corpus, tmp_path / "run", without_mpi)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: cannot write ")
    assert "File too large" in line


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


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path):
    """What is reported is the line that failed, and not the closing of the file, which fails too."""
    (tmp_path / "train.log").symlink_to("/dev/full")
    start_logging()
    with pytest.raises(UserError, match=r"train\.log: No space left"), RunLog(tmp_path, {}, 1):
        log.info("a line")
    log.info("somebody else's line")  # the log has let go of the file


def test_train_log_ends_with_what_ended_the_run(tmp_path):
    start_logging()
    with pytest.raises(KeyError), RunLog(tmp_path, {}, 1):
        raise KeyError("a loop's own error")
    assert 'the run ended here: "a loop\'s own error"' in (tmp_path / "train.log").read_text().splitlines()[-1]


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
