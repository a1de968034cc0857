"""scripts/plot_bench.py: what it reads of a benchmark's file, and what it refuses."""

import json
import sys

import pytest

import plot_bench
from oktopk_training.errors import UserError

YARDSTICK = {"name": "mpi", "median_s": 0.08}
OKTOPK = {
    "name": "oktopk",
    "median_s": 0.07,
    "merge": 0.01,
    "compression": 0.04,
    "communication": 0.01,
    "demerge": 0.005,
}
FIGURES = {"ranks": 2, "elements": 3000, "density": 0.02, "wire": "auto", "shares_memory": True, "cores": 2}
FIGURES["rows"] = [YARDSTICK, OKTOPK]


def write(path, figures):
    path.write_text(figures if isinstance(figures, str) else json.dumps(figures))
    return path


def test_a_bar_is_the_stages_and_what_is_left():
    assert plot_bench.parts_of(YARDSTICK) == [0, 0, 80, 0, 0]
    assert plot_bench.parts_of(OKTOPK) == [10, 40, 10, 5, pytest.approx(5)]


def test_panels_are_drawn_side_by_side(tmp_path, monkeypatch, capsys):
    files = [write(tmp_path / "two.json", FIGURES), write(tmp_path / "lab.json", FIGURES | {"link_rate": "100mbit"})]
    monkeypatch.setattr(sys, "argv", ["plot_bench.py", *map(str, files), "--out", str(tmp_path / "drawn.png")])
    plot_bench.main()
    assert capsys.readouterr().out.strip() == str(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    panels = plot_bench.draw([plot_bench.read(file) for file in files]).axes
    assert [axes.get_title() for axes in panels] == [
        "2 ranks, n = 3,000, k = 60",
        "2 ranks, links of 0.1 Gbit/s, n = 3,000, k = 60",
    ]
    assert [text.get_text() for text in panels[0].texts] == ["1.00", "0.88"]
    assert [[text.get_text() for text in axes.get_yticklabels()] for axes in panels] == [["mpi", "oktopk"]] * 2


@pytest.mark.parametrize(
    "figures", ["", "[]", "{}", {"rows": []}, FIGURES | {"rows": [{"name": "mpi"}]}, FIGURES | {"rows": 3}]
)
def test_another_file_is_refused(figures, tmp_path):
    path = write(tmp_path / "other.json", figures)
    with pytest.raises(UserError, match=r"other\.json is not a file of bench_allreduce\.py --json"):
        plot_bench.read(path)
