"""The oldest Python and torch: older ones are refused with a sentence, and every place promises the same."""

import platform
import sys

import pytest
import torch

from corpora import PROJECT, TRAINER, run_program
from dl_trainer import _sgd
from oktopk_training.job import begin
from oktopk_training.versions import OLDEST_PYTHON, OLDEST_TORCH, dotted, numbers


def test_an_older_python_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.14")
    with pytest.raises(SystemExit) as ended:
        begin()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: this is Python 3.10.14, and 3.11 or newer is needed")


@pytest.mark.parametrize("program", [TRAINER, "scripts/evaluate.py"])
def test_an_older_torch_is_one_sentence_before_it_is_imported(program, tmp_path):
    (tmp_path / "torch-2.2.1.dist-info").mkdir()
    (tmp_path / "torch-2.2.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.2.1\n")
    (tmp_path / "torch.py").write_text("raise ImportError('imported')\n")
    result = run_program(program, environment={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: this is PyTorch 2.2.1, and 2.3 or newer is needed")


def test_versions_are_compared_as_numbers():
    assert [numbers(version) for version in ("2.10.0+cu128", "2.4.0a0+git1", "3.11")] == [
        (2, 10, 0),
        (2, 4, 0),
        (3, 11),
    ]


@pytest.mark.parametrize(("version", "fused"), [("2.3.1+cpu", False), ("2.4.0", True), ("2.10.0+cu128", True)])
def test_the_step_is_fused_only_where_torch_can_do_it_on_the_cpu(version, fused, monkeypatch):
    """Older ones take it when the optimizer is made, and fail in its step."""
    monkeypatch.setattr(torch, "__version__", version)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = _sgd([parameter], 0.1)
    assert bool(optimizer.param_groups[0]["fused"]) == fused
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert (parameter < 1).all()


def test_the_promise_is_the_same_everywhere():
    python = dotted(OLDEST_PYTHON)
    assert f"Python ({python} to " in (PROJECT / "README.md").read_text()
    assert f"PyTorch {dotted(OLDEST_TORCH)} to " in (PROJECT / "README.md").read_text()
    assert f"sys.version_info < {OLDEST_PYTHON}" in (PROJECT / "scripts" / "setup.sh").read_text()
    assert f'"py{python.replace(".", "")}"' in (PROJECT / "pyproject.toml").read_text()
    requirements = (PROJECT / "requirements.txt").read_text()
    assert f"# Python {python} to " in requirements
    assert f"\ntorch>={dotted(OLDEST_TORCH)}\n" in requirements
