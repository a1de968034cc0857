"""scripts/plot_bench.py: what it reads of a benchmark's file, and what it refuses."""

import json
import sys

import pytest

import plot_bench
from oktopk_training.errors import UserError

YARDSTICK = {"name": "mpi", "median_s": 0.08, "ratio": 1.0}
OKTOPK = {"name": "oktopk", "median_s": 0.07, "ratio": 0.875, "merge": 0.01, "compression": 0.04, "demerge": 0.005}
FIGURES = {"ranks": 2, "elements": 3000, "density": 0.02, "rows": [YARDSTICK, OKTOPK | {"communication": 0.01}]}


def write(path, figures):
    path.write_text(figures if isinstance(figures, str) else json.dumps(figures))
    return path


def test_a_bar_is_the_stages_and_what_is_left(tmp_path):
    title, (yardstick, oktopk) = plot_bench.read(write(tmp_path / "two.json", FIGURES))
    assert title == "2 ranks, n = 3,000, density 0.02"
    assert yardstick == ("mpi", [0, 0, 80, 0, 0], 80, 1)
    assert oktopk == ("oktopk", [10, 40, 10, 5, pytest.approx(5)], pytest.approx(70), 0.875)


def test_panels_are_drawn_side_by_side(tmp_path, monkeypatch, capsys):
    files = [write(tmp_path / name, FIGURES) for name in ("two.json", "four.json")]
    monkeypatch.setattr(sys, "argv", ["plot_bench.py", *map(str, files), "--out", str(tmp_path / "drawn.png")])
    plot_bench.main()
    assert capsys.readouterr().out.strip() == str(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    panels = plot_bench.draw([plot_bench.read(file) for file in files]).axes
    assert [[text.get_text() for text in axes.get_yticklabels()] for axes in panels] == [["mpi", "oktopk"]] * 2


@pytest.mark.parametrize(
    "figures", ["", "[]", "{}", {"rows": []}, FIGURES | {"rows": [{"name": "mpi"}]}, FIGURES | {"rows": 3}]
)
def test_another_file_is_refused(figures, tmp_path):
    path = write(tmp_path / "other.json", figures)
    with pytest.raises(UserError, match=r"other\.json is no file of bench_allreduce\.py; make one with its --json"):
        plot_bench.read(path)
