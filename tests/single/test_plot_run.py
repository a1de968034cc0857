"""plot_run.py on runs that are finished, still going, missing or broken."""

import os

import pytest

from corpora import run_program
from made_runs import iteration, write
from plot_run import draw

PNG = b"\x89PNG\r\n\x1a\n"
PLOT = "scripts/plot_run.py"
FIGURES = {"wer": "WER", "cer": "CER"}


def test_a_finished_run_is_drawn(tmp_path):
    records = [iteration(n, n // 40, 100 / (n + 1), "dense" if n < 60 else "sparse") for n in range(120)]
    records += [
        {"kind": "val", "epoch": epoch, "loss": 3.0, "wer": 1.0, "wer_mean": 1.0, "cer": 0.5} for epoch in (0, 2)
    ]
    run = write(tmp_path / "run", records)
    result = run_program(PLOT, run)
    assert result.returncode == 0, result.stderr
    assert (run / "run.png").read_bytes().startswith(PNG)
    assert result.stdout.strip() == str(run / "run.png")


def test_a_run_that_is_still_going_is_drawn_as_far_as_it_is(tmp_path):
    run = write(tmp_path / "run", [iteration(0), iteration(1, loss=None)], tail='{"kind": "iter", "it')
    result = run_program(PLOT, run, "--out", tmp_path / "picture.png")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


def test_an_epoch_of_no_steps_is_drawn(tmp_path):
    run = write(tmp_path / "run", [iteration(0), iteration(0, epoch=1), iteration(1, epoch=3)])
    result = run_program(PLOT, run)
    assert result.returncode == 0, result.stderr


def test_a_validation_without_a_loss_is_drawn(tmp_path):
    steps = [iteration(n) for n in range(3)]
    draw({"iter": steps, "epoch": [], "val": [{"kind": "val", "epoch": 0, "wer": 0.5}], "event": []}, "run", FIGURES)


@pytest.mark.parametrize("case", ["missing", "empty", "broken", "foreign", "unwritable"])
def test_a_run_that_cannot_be_drawn_is_refused(case, tmp_path):
    run, out, part = tmp_path / "run", tmp_path / "picture.png", "metrics.jsonl"
    if case == "missing":
        part = "run: there is no such folder"
    elif case == "empty":
        write(run, [])
    elif case == "broken":
        write(run, [iteration(0)], tail="not json\n")
        part = "metrics.jsonl:2:"
    elif case == "foreign":
        write(run, [{"kind": "something"}])
        part = "metrics.jsonl:1:"
    elif case == "unwritable":
        write(run, [iteration(0)])
        out = tmp_path / "no" / "picture.png"
        part = "picture.png"
    before = sorted(os.listdir(tmp_path))
    result = run_program(PLOT, run, "--out", out)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert sorted(os.listdir(tmp_path)) == before


def test_what_was_sent_has_a_panel_of_its_own_where_anything_was():
    steps = [iteration(n, loss=2.0) for n in range(4)]
    validation = {"kind": "val", "epoch": 0, "loss": 3.0, "wer": 0.25, "cer": 0.125}
    alone = draw({"iter": steps, "val": [validation]}, "one rank", FIGURES)
    assert [axes.get_ylabel() for axes in alone.axes] == ["loss", "learning rate", "validation"]
    several = draw(
        {"iter": [{**step, "bytes_sent": 8000} for step in steps], "val": [validation]}, "two ranks", FIGURES
    )
    assert several.axes[-1].get_ylabel() == "sent per step, kB"
    assert list(several.axes[-1].lines[0].get_ydata()) == [8, 8, 8, 8]
    assert [text.get_text() for text in several.axes[2].get_legend().get_texts()] == [
        "WER, 0.250 at the end",
        "CER, 0.125 at the end",
    ]
