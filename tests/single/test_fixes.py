"""docs/fixes.md tells the truth about tests and files; and the faults that no other test of a program can hold."""

import ast
import re

import pytest

from corpora import PROJECT, make_corpus
from oktopk_training.options import parse_options

FIXES = (PROJECT / "docs" / "fixes.md").read_text()
SOURCES = sorted(path for folder in ("LSTM", "scripts") for path in (PROJECT / folder).rglob("*.py"))


def held_by():
    """(test file, test) for each test that the tables name."""
    named = []
    for row in FIXES.splitlines():
        if row.startswith("| ") and "`test_" in row:
            file = None
            for word in re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1]):
                if word.endswith(".py"):
                    file = word
                else:
                    named.append((file, word))
    return sorted(set(named))


@pytest.mark.parametrize(("file", "name"), held_by())
def test_the_tests_that_hold_the_fixes_are_there(file, name):
    assert f"def {name}(" in (PROJECT / "tests" / file).read_text()


def test_every_fault_has_its_test():
    rows = [row for row in FIXES.splitlines() if row.startswith("| ") and not row.startswith(("| symptom", "| ---"))]
    assert len(rows) > 25
    assert [row for row in rows if "`test_" not in row.rsplit(" | ", 1)[1]] == []


def test_the_files_and_functions_that_cure_are_there():
    """What looks like a file in the third column is one, and holds the names that follow it."""
    for row in FIXES.splitlines():
        if not row.startswith("| ") or row.startswith(("| symptom", "| ---")):
            continue
        text = None
        for word in re.findall(r"`([^`]+)`", row.split(" | ")[2]):
            if re.fullmatch(r"[\w/]+\.(py|sh|toml)", word):
                (path,) = [path for path in (PROJECT / "LSTM" / word, PROJECT / word) if path.is_file()]
                text = path.read_text()
            elif text and re.fullmatch(r"\w+", word):
                assert re.search(rf"\b{word}\b", text), (word, row)


def calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_nothing_sleeps(path):
    assert "sleep" not in calls(path)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_no_program_speaks_of_accuracy(path):
    assert "accuracy" not in path.read_text().lower()


def test_the_trainers_learning_rate_is_a_hundredth(tmp_path):
    corpus = make_corpus(tmp_path, train=1, val=1)
    assert parse_options(["--device", "cpu", "--data-dir", str(corpus)]).lr == 0.01


def test_deprecation_warnings_are_errors():
    settings = (PROJECT / "pyproject.toml").read_text()
    assert '"error::DeprecationWarning"' in settings
    assert '"error::FutureWarning"' in settings
