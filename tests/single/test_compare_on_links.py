"""scripts/compare_on_links.py without its networks: what it plans, the table of what was measured, and its picture."""

import json
import sys

import pytest

import compare_on_links
from oktopk_training.errors import UserError

SECONDS = {"DDP": 2.0, "oktopk": 0.5}
CELL = ("pace", "small", 2, "100mbit")


def measure(folder, name, rows):
    (folder / name).write_text(json.dumps({"rows": rows}))


@pytest.fixture
def measured(tmp_path):
    """One cell, and whole trainings of two methods: one came to the target, one did not."""
    paces = [{"name": name, "seconds": SECONDS.get(name, 1.0)} for name in compare_on_links.COMPARED]
    measure(tmp_path, "pace-small-2x100mbit-0.json", paces)
    curve = [{"steps": 50, "seconds": 60, "wer": 0.4}, {"steps": 100, "seconds": 120, "wer": 0.1}]
    there = {"name": "oktopk", "seconds_to_target": 100.0, "curve": curve}
    never = {"name": "DDP", "seconds_to_target": None, "curve": curve[:1]}
    measure(tmp_path, "target-small-2x100mbit-oktopk.json", [there])
    measure(tmp_path, "target-small-2x100mbit-DDP.json", [never])
    return tmp_path


def test_every_method_is_planned_in_every_cell():
    planned = list(compare_on_links.grid())
    assert len({each.name for each in planned}) == len(planned)
    cells = {}
    for each in planned:
        cells.setdefault((each.kind, each.model, each.hosts, each.rate), []).extend(each.methods)
    assert {(cell[1], cell[2], cell[3]) for cell in cells if cell[0] == "pace"} == {
        (model, hosts, rate) for model in ("small", "full") for hosts in (2, 4) for rate in ("100mbit", "1gbit")
    }
    assert {cell[1] for cell in cells if cell[0] == "target"} == {"small"}
    assert all(set(methods) == set(compare_on_links.COMPARED) for methods in cells.values())
    assert all(len(methods) == len(set(methods)) for cell, methods in cells.items() if cell[1:3] != ("full", 4))
    assert {"DDP", "DDP, PowerSGD rank 4", "topkA", "oktopk, bfloat16", "auto"} <= set(compare_on_links.COMPARED)


def test_the_table_has_what_is_there_and_the_best_in_bold(measured):
    assert compare_on_links.table(compare_on_links.read(measured)).splitlines() == [
        "| steps a minute | small, 2 hosts, 0.1 Gbit/s |",
        "| --- | --- |",
        "| DDP | 30.0 |",
        *(f"| {name} | 60.0 |" for name in compare_on_links.COMPARED[1:-3]),
        "| oktopk | **120.0** |",
        "| oktopk, bfloat16 | 60.0 |",
        "| auto | 60.0 |",
        "",
        "| minutes to WER 0.2 (steps) | small, 2 hosts, 0.1 Gbit/s |",
        "| --- | --- |",
        "| DDP | not in 1.0 |",
        "| oktopk | **1.7 (83)** |",
    ]


def test_a_panel_for_each_cell_has_a_bar_for_each_method(measured):
    (axes,) = compare_on_links.draw({CELL: compare_on_links.read(measured)[CELL]}).axes
    assert axes.get_title() == "small, 2 hosts, 0.1 Gbit/s"
    assert [text.get_text() for text in axes.get_yticklabels()] == compare_on_links.COMPARED
    assert {text.get_text() for text in axes.texts} == {"120.0", "60.0", "30.0"}


def test_parts_of_a_cell_are_told_as_if_measured_together(tmp_path):
    """The machine was twice as fast in the second."""
    first, second = (each for each in compare_on_links.grid() if each.name.startswith("pace-full-4x1gbit"))
    for each, seconds in ((first, 8.0), (second, 4.0)):
        measure(tmp_path, each.name, [{"name": name, "seconds": seconds} for name in each.methods])
    (rows,) = compare_on_links.read(tmp_path).values()
    assert {row["name"]: row["seconds"] for row in rows} == dict.fromkeys(compare_on_links.COMPARED, 8.0)
    assert len(rows) == len(compare_on_links.COMPARED)


def test_what_is_there_is_not_measured_again(measured, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["-", "--out", str(measured), "--only", "small-2x100mbit-oktopk.json"])
    compare_on_links.main()
    said = capsys.readouterr().out
    assert said.startswith("target-small-2x100mbit-oktopk.json: is there\n0 of 1 are to be made, in ")
    assert "| oktopk | **1.7 (83)** |" in said


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--only", "3x1gbit", "--plan"), "--only: no measurement's name has '3x1gbit'"),
        (("--plan", "--", "--methods=DDP"), "--methods=DDP: it is this that chooses the methods and their files"),
        (("--plan", "--", "--batch-size", "4"), "has measurements with other options ("),
        (("--only", "pace-small-2x100mbit-0"), "pace-small-2x100mbit-0.json is no measurement of this ('seconds'): "),
    ],
)
def test_what_cannot_be_made_or_read_is_named(words, error, tmp_path, monkeypatch, capsys):
    measure(tmp_path, "pace-small-2x100mbit-0.json", [{"name": name} for name in compare_on_links.COMPARED])
    (tmp_path / "options.json").write_text("[]")
    monkeypatch.setattr(sys, "argv", ["-", "--out", str(tmp_path), *words])
    with pytest.raises(SystemExit) as ended:
        compare_on_links.main()
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("target-small-2x1gbit-auto.json", text)
            for text in (
                "",
                "[]",
                '{"rows": []}',
                '{"rows": [{"name": "auto", "seconds_to_target": null, "curve": []}]}',
                '{"rows": [{"name": "auto", "seconds_to_target": 0, "curve": [{"steps": 1, "seconds": 1, "wer": 1}]}]}',
                '{"rows": [{"name": "auto", "seconds_to_target": 9, "curve": [{"steps": 1, "seconds": 1}]}]}',
                '{"rows": [{"name": "DDP", "seconds_to_target": 9, "curve": [{"steps": 1, "seconds": 1, "wer": 1}]}]}',
            )
        ),
        *(
            ("pace-small-4x1gbit-0.json", json.dumps({"rows": rows}))
            for rows in (
                *([{"name": name, "seconds": each} for name in compare_on_links.COMPARED] for each in (0, "x", None)),
                [{"name": ["DDP"], "seconds": 1}],
                [{"name": "DDP", "seconds": 1}],
            )
        ),
    ],
)
def test_what_is_damaged_is_named(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name} is no measurement of this \(.+\): delete it, and it is made anew"):
        compare_on_links.read(tmp_path)


def test_a_folder_in_place_of_a_measurement_is_named(tmp_path):
    (tmp_path / "pace-full-4x1gbit-0.json").mkdir()
    with pytest.raises(UserError, match="it is a folder"):
        compare_on_links.read(tmp_path)
