"""Options and their command line, both made of the same fields; and what the program knows of its tasks."""

import json
import shutil
from dataclasses import fields

import pytest

from corpora import PROJECT, run_program
from oktopk import Settings
from oktopk_training.command_line import offered
from oktopk_training.options import Options, parse_options
from oktopk_training.tasks import TASKS


@pytest.fixture
def parse(corpus):
    return lambda *words: parse_options(["--device", "cpu", "--data-dir", str(corpus), *words])


def test_what_is_not_given_has_the_defaults_of_the_library_and_of_the_task(parse):
    options = parse()
    assert options.settings == Settings()
    assert options.task == TASKS["lstman4"].Options()
    assert (options.hidden_size, options.hidden_layers, options.max_grad_norm) == (800, 5, 400)
    text = parse("--dnn", "lstm")
    assert (text.dataset, text.hidden_size, text.hidden_layers, text.max_grad_norm) == ("ptb", 1500, 2, 0.25)


def test_each_option_reaches_its_part(parse):
    options = parse("--density", "0.1", "--threshold_period=8", "--norm-clip", "3", "--seed", "0007", "--no-augment")
    assert (options.settings.density, options.settings.threshold_period, options.settings.norm_clip) == (0.1, 8, 3.0)
    assert (options.seed, options.task.augment) == (7, False)


@pytest.mark.parametrize(
    ("words", "value"),
    [([], False), (["--compression"], True), (["--compression", "True"], True), (["--compression=false"], False)],
)
def test_a_flag_stands_alone_or_has_a_value(words, value, parse):
    assert parse(*words).compression == value
    assert parse(*[word.replace("--compression", "--trace") for word in words]).trace == value


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], False),
        (["--compression"], True),
        (["--compression", "--compressor", "none"], False),
        (["--compression", "--no-momentum-correction"], False),
        (["--compression", "--momentum_correction", "False"], False),
        (["--momentum-correction"], True),
    ],
)
def test_momentum_is_corrected_where_steps_are_sparse_unless_it_is_said(words, value, parse):
    options = parse(*words)
    assert options.corrects_momentum == options.flat()["momentum_correction"] == value


def test_config_has_every_option_of_the_command_line_and_no_other(parse):
    flat = parse("--density", "0.1").flat()
    offered_ones = [each.name for part in (Options, Settings, TASKS["lstman4"].Options) for each in offered(part)]
    assert list(flat) == offered_ones
    assert flat["density"] == 0.1
    assert flat["data_dir"] == str(parse().data_dir)
    json.dumps(flat, allow_nan=False)


def test_help_has_every_option_once_with_its_default():
    lines = run_program("LSTM/main_trainer.py", "--help").stdout.splitlines()
    for part in (Options, Settings, *(task.Options for task in TASKS.values())):
        for each in fields(part):
            name = ("--no-" if each.default is True else "--") + each.name.replace("_", "-")
            entries = sum(line.startswith(f"  {name} ") for line in lines)
            assert entries == (1 if each.metadata.get("help") else 0), name
    text = " ".join(" ".join(lines).split())
    assert "--density X share of the gradient that is sent (default: 0.02)" in text
    assert "--hidden-size N units of a layer (default: 1500 for lstm, 800 for lstman4)" in text
    assert "--seed N of weights, order and augmentation (default: 0)" in text


TASK = """
from collections import Counter
from dataclasses import dataclass

import torch

from oktopk.fields import POSITIVE, option

from .task import Task, TaskOptions


class Net(torch.nn.Linear):
    def __init__(self, hidden_size, hidden_layers):
        super().__init__(hidden_size, 1)
        self.sizes = {"hidden_size": hidden_size, "hidden_layers": hidden_layers}


@dataclass(frozen=True)
class Own(TaskOptions):
    spread: float = option(1.0, POSITIVE, "of the numbers")


class Sums(Task):
    name, dataset, data_dir, data_source = "adder", "sums", ".", "there are none"
    hidden_size, hidden_layers, max_grad_norm = 4, 1, 10.0
    model, figures, headline, Options = Net, {"error": "largest error"}, "error", Own
    steps_per_epoch, size_of_data, fingerprint = 3, "as many sums as one likes", ""

    def build(self):
        return Net(self.options.hidden_size, self.options.hidden_layers)

    def batches(self, epoch, first=0):
        return (torch.randn(8, 4) * self.options.task.spread for _ in range(first, 3))

    def loss(self, net, batch):
        return (net(batch)[:, 0] - batch.sum(1)).square().mean(), 0

    def validate(self, net):
        return Counter(error=(net(torch.ones(1, 4)) - 4).abs().item())

    def summarise(self, totals):
        return {"loss": totals["error"], "error": totals["error"]}


TASK = Sums
"""


def test_a_task_is_one_new_file(tmp_path):
    shutil.copytree(PROJECT / "LSTM", tmp_path / "LSTM", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "LSTM" / "oktopk_training" / "tasks" / "sums.py").write_text(TASK)
    words = ("--dnn", "adder", "--dataset", "sums", "--spread", 2, "--max-epochs", 1, "--device", "cpu")
    result = run_program("main_trainer.py", *words, "--run-dir", tmp_path / "run", cwd=tmp_path / "LSTM")
    assert result.returncode == 0, result.stderr
    assert "largest error" in result.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["options"]["spread"], config["figures"]) == (2.0, {"error": "largest error"})
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (validation,) = [record for record in records if record["kind"] == "val"]
    assert list(validation) == ["kind", "epoch", "loss", "wer", "wer_mean", "cer", "error"]
    assert validation["wer"] is validation["wer_mean"] is validation["cer"] is None
    drawn = run_program("scripts/plot_run.py", tmp_path / "run")
    assert drawn.returncode == 0, drawn.stderr
