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


def test_files_that_do_not_say_enough_are_refused(tmp_path):
    once = [predict.read(write(tmp_path / "once.json"))]
    with pytest.raises(UserError, match="oktopk: give files of two densities that have it"):
        predict.fitted("oktopk", once)
    (tmp_path / "other.json").write_text('{"rows": 1}')
    with pytest.raises(UserError, match="is not a file of bench_allreduce"):
        predict.read(tmp_path / "other.json")
