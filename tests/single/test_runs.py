"""Reading runs: what is taken from them, and what is refused."""

import os
import re

import pytest

from made_runs import CONFIG, DENSE_BYTES, STEPS, epoch_end, iteration, records, step, write
from oktopk_training import runs
from oktopk_training.errors import UserError
from oktopk_training.runs import Run, figures_of, read_config, read_metrics


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "iter"},
        {"kind": []},
        [],
        iteration("one"),
        iteration(0, epoch=0.5),
        iteration(0, epoch=None),
        iteration(-1),
        iteration(True),
        iteration(0, loss="high"),
        iteration(10**400),
        iteration(0, loss=10**400),
        iteration(0, loss=float("nan")),
        iteration(0, t_comm="long"),
        {"kind": "val", "loss": 1.0},
        {"kind": "val", "epoch": 0, "loss": 1.0, "wer": "low"},
    ],
    ids=str,
)
def test_a_record_without_what_is_drawn_is_refused(record, tmp_path):
    run = write(tmp_path / "run", [iteration(0), record])
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: this line is not a metrics record"):
        read_metrics(run)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 100_000 + b"\n", ":2: this line is not a metrics record"),
        (b"\n", ":2: this line is not a metrics record"),
        (b'"\xff"\n', ": the file cannot be read (it is not UTF-8 text"),
    ],
    ids=["deep", "empty", "no text"],
)
def test_a_line_that_is_no_json_is_refused(line, reason, tmp_path):
    run = write(tmp_path / "run", [iteration(0)])
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(line)
    with pytest.raises(UserError, match=re.escape(f"metrics.jsonl{reason}")):
        read_metrics(run)


def test_what_would_hang_or_fill_the_memory_is_not_read(tmp_path, monkeypatch):
    run = write(tmp_path / "run", [iteration(0)])
    monkeypatch.setattr(runs, "MOST_METRICS", 10)
    with pytest.raises(UserError, match="more than 10 are not read"):
        read_metrics(run)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(UserError, match="not a regular file"):
        read_metrics(run)


def test_a_figure_beyond_measure_is_none(tmp_path):
    run = write(tmp_path / "run", [iteration(0, loss=1e101)])
    assert read_metrics(run)["iter"][0]["loss"] is None


def test_a_configuration_that_cannot_be_read_is_none(tmp_path):
    for number, text in enumerate(("", "[]", "{", '{"a": NaN}', "[" * 100_000)):
        run = tmp_path / str(number)
        run.mkdir()
        (run / "config.json").write_text(text)
        assert read_config(run) is None


def test_folders_that_are_no_run_are_told_apart(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: there is no such folder; name that of a run$"):
        Run.read(tmp_path / "nowhere")
    run = write(tmp_path / "runs" / "today", [step(0, "dense")])
    with pytest.raises(UserError, match=rf"runs is no run, but has some in it: name one of them, as {run}$"):
        Run.read(tmp_path / "runs")
    assert len(Run.read(run).steps) == 1


def test_figures_are_called_what_the_run_calls_them_and_otherwise_what_its_metrics_do():
    tested = [{"kind": "val", "epoch": 0, "loss": 3.0, "wer": None, "perplexity": 20.0}]
    assert figures_of({"figures": {"bleu": "BLEU"}}, tested) == {"bleu": "BLEU"}
    for config in (None, [], {}, {"figures": None}):
        assert figures_of(config, tested) == {"perplexity": "perplexity"}


def test_a_run_knows_its_epochs_its_sparse_phase_and_what_dense_steps_send(tmp_path):
    run = Run.read(write(tmp_path / "run", records(epochs=3)))
    assert run.moments[:2] == [1 / STEPS, 2 / STEPS]
    assert run.moments[STEPS - 1 :: STEPS] == [1, 2, 3]
    assert run.sparse_phases == [(1, 3)]
    assert run.dense_bytes == DENSE_BYTES
    assert run.of_validations("wer") == [(1, 0.5), (2, 0.25), (3, 0.5 / 3)]
    assert (run.method, run.ranks, run.summary) == ("oktopk", 2, None)


def test_an_epoch_that_was_broken_off_is_not_stretched(tmp_path):
    cut = [step(number, "dense") for number in range(STEPS + STEPS // 4)]
    cut[STEPS:STEPS] = epoch_end(0)
    assert Run.read(write(tmp_path / "run", cut)).moments[-1] == 1.25


def test_phases_that_alternate_are_told_apart_and_repeated_steps_count_once(tmp_path):
    rows = [step(number, phase) for number, phase in enumerate(["sparse", "dense", "sparse", "sparse"])]
    run = Run.read(write(tmp_path / "run", [step(1, "sparse"), *rows], config=None))
    assert [record["iter"] for record in run.steps] == [0, 1, 2, 3]
    assert run.sparse_phases == [(0, 0.25), (0.5, 1)]
    assert (run.method, run.ranks, run.options) == (None, None, {})


def test_without_dense_steps_what_they_would_send_follows_from_elements_and_ranks(tmp_path):
    run = Run.read(write(tmp_path / "run", records(epochs=1, dense_epochs=0), CONFIG))
    assert run.dense_bytes == 2 * 4 * 50_000 * (2 - 1) / 2
