"""scripts/predict.py: costs that stand in files are found again, and what is predicted follows from them."""

import json
import sys

import pytest

import predict
from oktopk_training.errors import UserError

N, ELEMENT, ENTRY = 1_000_000, 2e-9, 3e-8  # seconds


def write(path, ranks=2, density=0.02, names=predict.NAMES, **more):
    """A file of the benchmark, of a machine with these costs."""
    task = predict.Task(N, ranks, max(1, int(N * density)), 8)
    rows = []
    for name in names:
        seconds = ELEMENT * N + ENTRY * predict.volume(name, task).entries
        rows.append({"name": name, "merge": seconds / 4, "compression": seconds / 2, "demerge": seconds / 4})
        rows[-1]["median_s"] = 2 * seconds
    record = {"wire": "auto", "shares_memory": True, "elements": N, "ranks": ranks, "density": density, "cores": 8}
    path.write_text(json.dumps({**record, "rows": rows, **more}))
    return path


def test_costs_are_found_again(tmp_path):
    files = [predict.read(write(tmp_path / f"{density}.json", density=density)) for density in (0.005, 0.02)]
    for name in predict.NAMES[1:]:
        costs = predict.fitted(name, files)
        assert costs.element == pytest.approx(ELEMENT)
        assert costs.entry == pytest.approx(ENTRY)


def test_what_is_predicted_is_worked_out_by_hand():
    task = predict.Task(1000, 4, 10, 5)
    seconds = predict.predicted("topkA", task, predict.Costs(1e-3, 1e-2), bytes_a_second=1e3, latency=0.5)
    assert seconds == pytest.approx(1.0 + 40 * 1e-2 + 4 * 0.5 + predict.FRAMES * 10 * 3 * 5 / 1e3)


def test_ok_topk_sends_hardly_more_on_many_ranks_and_gathering_all_of_it():
    few, many = (predict.Task(N, ranks, N // 50, 5) for ranks in (2, 1024))
    assert predict.volume("oktopk", many).bytes < 2.1 * predict.volume("oktopk", few).bytes
    assert predict.volume("topkA", many).bytes == pytest.approx(1023 * predict.volume("topkA", few).bytes)
    assert predict.volume("topkSA", many).bytes < predict.volume("dense", many).bytes


def test_it_prints_its_tables_and_draws(tmp_path, monkeypatch, capsys):
    files = [write(tmp_path / f"{density}.json", density=density) for density in (0.005, 0.02)]
    lab = write(tmp_path / "lab.json", ranks=4)
    words = [*files, "--check", f"100mbit:{lab}", "--out", tmp_path / "drawn.png"]
    monkeypatch.setattr(sys, "argv", ["predict.py", *map(str, words)])
    predict.main()
    said = capsys.readouterr().out
    assert "| 0.1 Gbit/s | 4 | oktopk |" in said
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name in ("cores", "ranks", "elements") for value in (0, None, "2", -1, 1.5, [])),
        *({"density": value} for value in (-1, 0, 2, "x", None)),
        *({"rows": rows} for rows in ([], 3, [{}], [{"name": "x", "median_s": 0}], [{"name": "x", "median_s": "1"}])),
        {"rows": [{"name": "dense", "median_s": 1}]},
        {"rows": [{"name": "dense", "median_s": 1, "merge": "x", "compression": 1, "demerge": 1}]},
        {"rows": [{"name": ["x"], "median_s": 1}]},
        *({"rows": [{"name": "mpi", "median_s": 1, "communication": value}]} for value in ("x", [1], -1, 1e308)),
        *({name: 10**400} for name in ("elements", "ranks")),
        {"rows": [{"name": "mpi", "median_s": 10**400}]},
        {"wire": []},
        *({"link_rate": value} for value in ("fast", 3, [])),
    ],
    ids=str,
)
def test_figures_that_cannot_be_are_refused(wrong, tmp_path):
    path = write(tmp_path / "wrong.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(UserError, match=r"wrong\.json is not a file of bench_allreduce\.py --json \(.+\); measure"):
        predict.read(path)


def test_a_link_of_no_rate_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["predict.py", "any.json", "--check", "0gbit:any.json"])
    with pytest.raises(SystemExit):
        predict.main()
    assert "argument --check: expected a rate and a file, as 1gbit:lab.json, found '0gbit:any.json'" in (
        capsys.readouterr().err
    )


def test_a_file_of_other_links_is_refused(tmp_path, monkeypatch, capsys):
    files = [str(write(tmp_path / f"{density}.json", density=density)) for density in (0.005, 0.02)]
    lab = write(tmp_path / "lab.json", link_rate="100mbit")
    monkeypatch.setattr(sys, "argv", ["predict.py", *files, "--check", f"1gbit:{lab}"])
    with pytest.raises(SystemExit):
        predict.main()
    assert f"--check: {lab} was measured on links of 0.1 Gbit/s, not of 1\n" in capsys.readouterr().err


def test_files_that_do_not_say_enough_are_refused(tmp_path):
    once = [predict.read(write(tmp_path / "once.json"))]
    with pytest.raises(UserError, match="oktopk: give files of two densities that have it"):
        predict.fitted("oktopk", once)
    (tmp_path / "other.json").write_text('{"rows": 1}')
    with pytest.raises(UserError, match="is not a file of bench_allreduce"):
        predict.read(tmp_path / "other.json")
