"""scripts/compare_on_links.py without its networks: what it plans, the table of what was measured, and its picture."""

import json
import sys

import pytest

import compare_on_links
from oktopk_training.errors import UserError

SECONDS = {"DDP": 2.0, "dense": 1.5, "oktopk": 0.5, "auto": 0.6}
CELL = ("small", 2, "100mbit")


def measure(folder, name, rows):
    (folder / name).write_text(json.dumps({"rows": rows}))


def paces(**choice):
    return [
        {"name": name, "seconds": SECONDS.get(name, 1.0), **({"choice": "oktopk"} if name == "auto" else {}), **choice}
        for name in compare_on_links.COMPARED
    ]


@pytest.fixture
def measured(tmp_path):
    """The paces of one cell, and three methods' learning: two came to the target, one did not."""
    measure(tmp_path, "pace-small-2x100mbit-0.json", paces())
    curve = [{"steps": 50, "wer": 0.4}, {"steps": 100, "wer": 0.1}]
    for name, points in {"oktopk": curve, "DDP, PowerSGD rank 1": curve, "DDP": curve[:1]}.items():
        path = f"learnt-small-2x10gbit-{name.replace(', ', '-').replace(' ', '-')}.json"
        measure(tmp_path, path, [{"name": name, "curve": points}])
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
    assert {cell[1:] for cell in cells if cell[0] == "learnt"} == {("small", hosts, "10gbit") for hosts in (2, 4)}
    for cell, methods in cells.items():
        chooses = {"auto"} if cell[0] == "learnt" else set()  # it learns as what it chose
        assert set(methods) == set(compare_on_links.COMPARED) - chooses
    assert all(len(methods) == len(set(methods)) for cell, methods in cells.items() if cell[1:3] != ("full", 4))
    assert {"DDP", "DDP, PowerSGD rank 4", "topkA", "oktopk, bfloat16", "auto"} <= set(compare_on_links.COMPARED)


def test_the_table_has_what_is_there_and_the_best_in_bold(measured):
    others = {"DDP": "30.0", "dense": "40.0", "oktopk": "**120.0**", "auto": "100.0"}
    assert compare_on_links.table(compare_on_links.read(measured)).splitlines() == [
        "| steps a minute | small, 2 hosts, 0.1 Gbit/s |",
        "| --- | --- |",
        *(f"| {name} | {others.get(name, '60.0')} |" for name in compare_on_links.COMPARED),
        "",
        "| minutes to WER 0.2 (steps) | small, 2 hosts, 0.1 Gbit/s |",
        "| --- | --- |",
        "| DDP | not in 1.7 |",
        "| DDP, PowerSGD rank 1 | 2.3 (83) |",
        "| oktopk | **1.6 (83)** |",
        "| auto | 1.7 (83) |",
    ]


def test_minutes_are_steps_at_the_pace_of_their_phase(measured):
    """59 steps of warm-up, as `dense` takes for them, or DDP where PowerSGD begins; the rest as the method does."""
    rows = compare_on_links.read(measured).minutes[CELL]
    seconds = {row["name"]: [point["seconds"] for point in row["curve"]] for row in rows}
    assert seconds == {
        "DDP": [50 * 2.0],
        "DDP, PowerSGD rank 1": [50 * 2.0, 59 * 2.0 + 41 * 1.0],
        "oktopk": [50 * 1.5, 59 * 1.5 + 41 * 0.5],
        "auto": [50 * 1.5, 59 * 1.5 + 41 * 0.6],
    }


def test_what_chose_to_be_dense_has_no_warm_up(measured):
    measure(measured, "pace-small-2x100mbit-0.json", paces(choice="dense"))
    measure(measured, "learnt-small-2x10gbit-dense.json", [{"name": "dense", "curve": [{"steps": 100, "wer": 0.1}]}])
    rows = compare_on_links.read(measured).minutes[CELL]
    (chose,) = (row["curve"] for row in rows if row["name"] == "auto")
    assert [point["seconds"] for point in chose] == [100 * SECONDS["auto"]]


def test_a_panel_for_each_cell_has_a_bar_for_each_method(measured):
    (axes,) = compare_on_links.draw(compare_on_links.read(measured).paces).axes
    assert axes.get_title() == "small, 2 hosts, 0.1 Gbit/s"
    assert [text.get_text() for text in axes.get_yticklabels()] == compare_on_links.COMPARED
    assert {text.get_text() for text in axes.texts} == {"120.0", "100.0", "60.0", "40.0", "30.0"}


def test_parts_of_a_cell_are_told_as_if_measured_together(tmp_path):
    """The machine was twice as fast in the second."""
    first, second = (each for each in compare_on_links.grid() if each.name.startswith("pace-full-4x1gbit"))
    for each, seconds in ((first, 8.0), (second, 4.0)):
        choice = {"auto": {"choice": "oktopk"}}
        rows = [{"name": name, "seconds": seconds, **choice.get(name, {})} for name in each.methods]
        measure(tmp_path, each.name, rows)
    (rows,) = compare_on_links.read(tmp_path).paces.values()
    assert {row["name"]: row["seconds"] for row in rows} == dict.fromkeys(compare_on_links.COMPARED, 8.0)
    assert len(rows) == len(compare_on_links.COMPARED)


def test_what_is_there_is_not_measured_again(measured, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["-", "--out", str(measured), "--only", "2x10gbit-oktopk.json"])
    compare_on_links.main()
    said = capsys.readouterr().out
    assert said.startswith("learnt-small-2x10gbit-oktopk.json: is there\n0 of 1 are to be made, in ")
    assert "| oktopk | **1.6 (83)** |" in said


def test_a_folder_without_a_measurement_takes_any_options(tmp_path, monkeypatch, capsys):
    """As one whose first measurement was ended."""
    (tmp_path / "options.json").write_text('["--batch-size", "9"]')
    monkeypatch.setattr(sys, "argv", ["-", "--out", str(tmp_path), "--plan", "--", "--batch-size", "4"])
    compare_on_links.main()
    assert "32 of 32 are to be made" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--only", "3x1gbit", "--plan"), "--only: no measurement's name has '3x1gbit'"),
        (("--plan", "--", "--methods=DDP"), "--methods=DDP: the grid has its own methods, steps, files and targets"),
        (
            ("--plan", "--", "--warmup_iters", "9"),
            "--warmup_iters: the grid has its own methods, steps, files and targets",
        ),
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
            ("learnt-small-2x10gbit-DDP.json", text)
            for text in (
                "",
                "[]",
                '{"rows": []}',
                '{"rows": [{"name": "DDP", "curve": []}]}',
                '{"rows": [{"name": "DDP", "curve": [{"steps": 0, "wer": 1}]}]}',
                '{"rows": [{"name": "DDP", "curve": [{"steps": 1, "seconds": 1}]}]}',
                '{"rows": [{"name": "oktopk", "curve": [{"steps": 1, "wer": 1}]}]}',
            )
        ),
        *(
            ("pace-small-4x1gbit-0.json", json.dumps({"rows": rows}))
            for rows in (
                *(paces(seconds=each) for each in (0, "x", None)),
                paces(choice="PowerSGD"),
                [{key: row[key] for key in ("name", "seconds")} for row in paces()],  # nobody knows what auto chose
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


@pytest.mark.parametrize("damage", [b"\xff", b"[", None])
def test_options_that_cannot_be_read_are_named(damage, tmp_path, monkeypatch, capsys):
    path = tmp_path / "options.json"
    measure(tmp_path, "pace-small-2x100mbit-0.json", paces())
    path.mkdir() if damage is None else path.write_bytes(damage)
    monkeypatch.setattr(sys, "argv", ["-", "--out", str(tmp_path), "--plan"])
    with pytest.raises(SystemExit) as ended:
        compare_on_links.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {path} cannot be read (")


def test_a_folder_in_place_of_a_measurement_is_named(tmp_path):
    (tmp_path / "pace-full-4x1gbit-0.json").mkdir()
    with pytest.raises(UserError, match="it is a folder"):
        compare_on_links.read(tmp_path)
