"""The examples of docs/examples run as their texts say, and sparse training sends less than dense."""

import re

import pytest
from ranks import ROOT, run_ranks, run_torch_ranks

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
LINE = re.compile(r"^(\w+) ([\d.]+)%: loss ([\d.]+), .*?([\d.]+) kB a step$")


@pytest.mark.parametrize(
    ("name", "launch", "amount"),
    [("gpt_ddp.py", run_torch_ranks, 20), ("digits_loop.py", run_torch_ranks, 1), ("digits_loop.py", run_ranks, 1)],
)
def test_an_example_trains_densely_and_sparsely(name, launch, amount):
    done = launch(2, ROOT / "docs" / "examples" / name, amount)
    assert done.returncode == 0, done.stderr[-4000:]
    runs = [LINE.match(line).groups() for line in done.stdout.splitlines()]
    assert [run[:2] for run in runs] == [("dense", "100.0"), ("oktopk", "2.0"), ("oktopk", "0.5")]
    sent = [float(run[3]) for run in runs]
    assert sent[0] > 2 * sent[1] > 2 * sent[2] > 0


@pytest.mark.parametrize(
    ("name", "launch", "amounts"),
    [("digits_loop.py", run_ranks, (1, 2)), ("with_accelerate.py", run_torch_ranks, (3, 5))],
)
def test_an_example_that_was_ended_goes_on_to_the_same_end(name, launch, amounts, tmp_path):
    last, said = amounts[-1], []
    for amount, folder in ((amounts[0], "ended"), (last, "ended"), (last, "whole")):
        done = launch(2, ROOT / "docs" / "examples" / name, amount, tmp_path / folder)
        assert done.returncode == 0, done.stderr[-4000:]
        said.append(done.stdout)
    assert said[0] != said[1] == said[2]


@pytest.mark.parametrize("name", ["with_accelerate.py", "with_lightning.py"])
def test_the_hook_works_under_other_peoples_trainers(name):
    done = run_torch_ranks(2, ROOT / "docs" / "examples" / name)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "sparse step, 20 entries" in done.stdout


def test_the_worked_example_is_what_its_page_says():
    done = run_ranks(3, ROOT / "docs" / "examples" / "worked_example.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"```\n{done.stdout}```" in (ROOT / "docs" / "how_it_works.md").read_text()


def test_the_compressor_of_the_guide_keeps_the_laws():
    done = run_ranks(3, ROOT / "docs" / "examples" / "ternary.py")
    assert done.stdout == "ternary keeps every law in 26 cases on 3 ranks\n", done.stderr[-4000:]
    body = (ROOT / "docs" / "examples" / "ternary.py").read_text().split("class Ternary")[1].split("\n\n\n")[0]
    assert f"class Ternary{body}\n```" in (ROOT / "docs" / "adding_a_compressor.md").read_text()


def test_the_laws_are_held_by_name_too():
    def of(*names):
        return run_ranks(3, "-m", "oktopk.testing", *names)

    done = of("oktopk", "gaussiank")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        f"{name} keeps every law in 26 cases on 3 ranks" for name in ("oktopk", "gaussiank")
    ]
    wrong = of("topkZ")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: there is no compressor 'topkZ'; there are none, topkA, ")


def test_examples_are_short():
    assert EXAMPLES
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 60
