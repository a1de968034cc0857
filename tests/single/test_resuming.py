"""Going on with a run where it was ended: from which checkpoint, with the same bits, and what is said if it differs."""

import fcntl
import json
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch

import main_trainer
from corpora import SMALL, make_text
from oktopk.tensor_files import read, write
from oktopk_training.resuming import interval_of
from oktopk_training.saved_models import read_model
from runs import differences_of, figures, files_up_to, newest_checkpoint, records

LENGTH, EPOCHS = 8, 3  # steps of an epoch, on the text of these tests
SPARSE = ("--compression", "--compressor", "oktopk", "--threshold", "reuse", "--warmup-iters", "4")
OPTIONS = ("--max-epochs", str(EPOCHS), "--val-interval", "2", "--checkpoint-interval", "5", *SPARSE)


@pytest.fixture
def train(text_corpus, monkeypatch, capsys):
    """Train in this process, and send it a signal after the given step; returns status, output and errors."""

    def run(folder, *more, sent=signal.SIGTERM, after=None):
        report = main_trainer.report_progress

        def reported(job, step):
            if step.iter == after:
                os.kill(os.getpid(), sent)
            report(job, step)

        words = ("--dnn", "lstm", "--dataset", "ptb", "--data-dir", text_corpus, *SMALL, "--batch-size", 2, *OPTIONS)
        words += ("--run-dir", folder) if folder else ()
        with monkeypatch.context() as patch:
            patch.setattr(main_trainer, "report_progress", reported)
            try:
                main_trainer.main([str(word) for word in (*words, *more)])
                status = 0
            except SystemExit as end:
                status = end.code
        said = capsys.readouterr()
        return SimpleNamespace(status=status, out=said.out, err=said.err)

    return run


@pytest.fixture
def go_on(train):
    """The same, which must come to its end."""

    def run(folder, *more, **ended):
        done = train(folder, "--resume", "auto", *more, **ended)
        assert done.status == 0, done.err
        return done

    return run


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Runs that several tests look at: made by the first of them."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def whole(once, train):
    """A run that nobody disturbed."""
    if not (once / "whole").exists():
        assert train(once / "whole").status == 0
    return once / "whole"


@pytest.fixture
def ended(once, train, tmp_path):
    """A copy of a run that SIGTERM has ended after step 11 of 24, in the middle of the second epoch."""
    if not (once / "ended").exists():
        done = train(once / "ended", after=11)
        assert done.status == 128 + signal.SIGTERM
        assert "ended by SIGTERM after step 12: the checkpoint of step 12 holds all of it" in done.out
    return shutil.copytree(once / "ended", tmp_path / "run")


def resumed(run):
    """The last event that says so."""
    return [record for record in records(run) if record.get("name") == "resumed"][-1]


def refused(done, *parts):
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert all(str(part) in line for part in parts), line


def steps_of(run):
    return [record["iter"] for record in records(run) if record["kind"] == "iter"]


def checkpoints_of(run):
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))


# ---- the same as if it had never ended


def test_a_run_that_goes_on_has_the_bits_of_one_that_never_ended(ended, whole, go_on):
    done = go_on(ended)
    assert "goes on from the checkpoint of step 12 (epoch 1): 12 steps are left" in done.out
    assert list(differences_of(ended, whole)) == []
    assert resumed(ended)["iter"] == 12
    assert resumed(ended)["changes"] == []
    assert done.err == ""


@pytest.mark.parametrize("after", [0, 4, 7, 8, 15, 23])
def test_it_may_end_after_any_step(after, whole, train, go_on, tmp_path):
    """In the warm-up, at a checkpoint, before a validation, behind it, at the end."""
    assert train(tmp_path / "run", after=after).status == 143
    go_on(tmp_path / "run")
    assert list(differences_of(tmp_path / "run", whole)) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--no-momentum-correction", "--wire", "joined"),
        ("--nsteps-update", "2", "--compressor", "topkAopt"),
        ("--compressor", "gaussiank", "--exclude", "*.bias", "--merge-size", "2000"),
        ("--compression", "False", "--hidden-layers", "3"),
    ],
    ids=" ".join,
)
def test_so_it_is_with_other_options(options, train, go_on, tmp_path):
    assert train(tmp_path / "whole", *options).status == 0
    assert train(tmp_path / "run", *options, after=5).status == 143
    go_on(tmp_path / "run", *options)
    assert list(differences_of(tmp_path / "run", tmp_path / "whole")) == []


def test_what_was_dense_stays_so_where_the_program_may_choose(train, go_on, tmp_path):
    train(tmp_path / "run", "--compression", False, after=11)
    done = go_on(tmp_path / "run", "--compressor", "auto")
    assert "--compressor auto: as in the run that goes on" in done.out
    assert {record["phase"] for record in records(tmp_path / "run") if record["kind"] == "iter"} == {"dense"}


def test_what_came_after_the_checkpoint_comes_again_once(ended, whole, go_on):
    """As after SIGKILL: metrics.jsonl is ahead of the newest checkpoint."""
    shutil.rmtree(newest_checkpoint(ended))
    assert steps_of(ended) == list(range(12))
    assert "goes on from the checkpoint of step 10" in go_on(ended).out
    assert steps_of(ended) == list(range(EPOCHS * LENGTH))
    assert figures(ended) == figures(whole)


def test_a_line_that_was_torn_goes_and_the_rest_can_be_read(ended, go_on):
    metrics = ended / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:1500])
    assert "is shorter than at the checkpoint: some records are lost" in go_on(ended).out
    assert resumed(ended)["iter"] == 12
    assert steps_of(ended)[-12:] == list(range(12, 24))


def test_a_checkpoint_that_is_refused_costs_no_records(ended, train):
    before = (ended / "metrics.jsonl").read_bytes()
    change(ended, *STRANGE["no progress"])
    assert train(None, "--resume", newest_checkpoint(ended)).status == 2
    assert (ended / "metrics.jsonl").read_bytes() == before


def test_checkpoints_without_records_are_a_run_all_the_same(ended, train):
    (ended / "metrics.jsonl").unlink()
    assert "already holds a run" in train(ended).err
    assert "goes on from the checkpoint of step 12" in train(ended, "--resume", "auto").out


def test_a_best_model_of_another_past_is_put_aside(whole, train, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    done = train(None, "--resume", run / "checkpoints" / "step-00000016", "--lr", "1")
    assert done.status == 0
    assert "best.pt is of epoch 2, which this run trains anew" in done.out
    assert read_model(run / "checkpoints" / "best.before.pt")["epoch"] == 2
    kept = read_model(run / "checkpoints" / "best.pt")["epoch"]
    assert f"best model: {run}/checkpoints/best.pt, after epoch {kept}:" in done.out


def test_a_finished_run_has_nothing_left_to_train_and_may_be_given_more_epochs(whole, go_on, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    assert "all 3 epochs are done: nothing is left to train" in go_on(run).out
    assert list(differences_of(run, whole)) == []
    go_on(run, "--max-epochs", 4)
    assert steps_of(run) == list(range(4 * LENGTH))
    assert json.loads((run / "config.json").read_text())["options"]["max_epochs"] == 4


# ---- when checkpoints are made


def test_checkpoints_are_made_at_intervals_and_validations_and_the_newest_are_kept(whole):
    assert checkpoints_of(whole) == [16, 20, 24]
    said = (whole / "train.log").read_text()
    made = [
        int(line.rsplit("step ", 1)[1].split(":")[0]) for line in said.splitlines() if "DEBUG checkpoint of" in line
    ]
    assert made == [5, 8, 10, 15, 16, 20, 24]
    assert "a checkpoint every 5 steps and at validations, the newest 3 kept; each takes about" in said
    assert "7 checkpoints took" in said


def test_sigusr1_asks_for_a_checkpoint_and_training_goes_on(train, whole, tmp_path):
    options = ("--checkpoint-interval", "60m", "--keep-checkpoints", 9)
    assert train(tmp_path / "run", *options, sent=signal.SIGUSR1, after=2).status == 0
    assert checkpoints_of(tmp_path / "run") == [3, 8, 16, 24]
    assert figures(tmp_path / "run") == figures(whole)


def test_signals_mean_what_they_did_before_once_a_run_is_over(whole):
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_intervals_are_steps_or_minutes(train, tmp_path, monkeypatch):
    assert [interval_of(word) for word in ("500", "15m")] == [(500, None), (None, 900.0)]
    monkeypatch.setattr("oktopk_training.resuming.MINUTE", 0.0)
    assert train(tmp_path / "run", "--checkpoint-interval", "15m", "--max-epochs", 1).status == 0
    assert checkpoints_of(tmp_path / "run") == [6, 7, 8]


def test_a_full_disk_costs_checkpoints_and_not_the_run(train, go_on, whole, tmp_path):
    """The last good one stays, and with room again, there are new ones."""
    size = (newest_checkpoint(whole) / "common.pt").stat().st_size
    assert train(tmp_path / "run", after=5).status == 143
    with files_up_to(size - 1000):
        done = go_on(tmp_path / "run", after=5)
    assert "no checkpoint could be written" in done.out
    assert "training goes on" in done.out
    assert max(checkpoints_of(tmp_path / "run")) == 6
    assert figures(tmp_path / "run") == figures(whole)
    go_on(tmp_path / "run")
    assert list(differences_of(tmp_path / "run", whole)) == []


# ---- which run, which checkpoint


def test_without_a_run_or_a_checkpoint_auto_begins_anew_and_says_so(train, go_on, whole, tmp_path):
    done = go_on(tmp_path / "run")
    assert "there is no whole checkpoint yet, so the run begins anew" in done.out
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "so the run begins anew" in go_on(tmp_path / "run").out
    assert (tmp_path / "run" / "metrics.jsonl.1").read_text() == before
    assert list(differences_of(tmp_path / "run", whole)) == []


def test_auto_without_a_folder_takes_the_newest_run_of_that_name(train, ended, whole, monkeypatch, tmp_path):
    runs, name = tmp_path / "runs", "lstm-ptb-16x2-lr0.01-oktopk-density0.02"
    monkeypatch.setattr(main_trainer, "runs_of", lambda name: runs / name)
    for copy, run in (("a", ended), ("b", whole)):
        shutil.copytree(run, runs / name / copy)
    os.utime(runs / name / "b" / "metrics.jsonl", (1, 1))
    assert train(None, "--resume", "auto").status == 0
    assert sorted(os.listdir(runs / name)) == ["a", "b"]
    assert list(differences_of(runs / name / "a", whole)) == []


def test_a_run_or_one_of_its_checkpoints_can_be_named(ended, train, whole):
    assert train(ended, "--resume", ended / "checkpoints" / "step-00000008").status == 0
    assert resumed(ended)["iter"] == 8
    assert list(differences_of(ended, whole)) == []
    assert train(ended, "--resume", ended).status == 0
    assert resumed(ended)["iter"] == 24


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_taken(ended, whole, go_on):
    part = newest_checkpoint(ended) / "rank-0.pt"
    part.write_bytes(part.read_bytes()[:-1000])
    done = go_on(ended)
    assert "step-00000012/rank-0.pt has another length than when it was written; the checkpoint before it" in done.out
    assert "goes on from the checkpoint of step 10" in done.out
    assert list(differences_of(ended, whole)) == []


# ---- what is refused, and what is said


def test_what_cannot_be_gone_on_from_is_refused(ended, train, tmp_path):
    (tmp_path / "none" / "checkpoints").mkdir(parents=True)
    refused(train(ended, "--resume", tmp_path / "none"), "--resume", "there is no whole checkpoint")
    refused(train(ended, "--resume", tmp_path / "nowhere"), "--resume", "nowhere")
    refused(train(ended, "--resume", ended / "checkpoints" / "step-00000099"), "--resume", "step-00000099")
    refused(train(tmp_path / "other", "--resume", ended), "leave --run-dir out")
    refused(train(ended), "already holds a run", "--resume")
    refused(train(ended, "--resume", "auto", "--hidden-size", 17), "hidden_size 16", "hidden_size 17")
    for path in (ended / "checkpoints").glob("step-*/rank-0.pt"):
        path.write_bytes(b"")
    refused(train(ended, "--resume", "auto"), "no checkpoint in", "rank-0.pt", "begin anew without --resume")


def test_a_run_that_is_still_going_on_is_left_alone(ended, train):
    before = (ended / "metrics.jsonl").read_bytes()
    with open(ended / "metrics.jsonl", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(train(ended, "--resume", "auto"), ended, "still going on")
        shutil.rmtree(ended / "checkpoints")
        refused(train(ended, "--resume", "auto"), ended, "still going on")
    assert (ended / "metrics.jsonl").read_bytes() == before


def test_options_and_data_that_lead_elsewhere_are_named(ended, go_on, tmp_path):
    make_text(tmp_path / "text", sentences=59)
    more = ("--seed", 3, "--density", 0.05, "--lr", 0.02, "--watchdog", 60, "--keep-checkpoints", 2)
    done = go_on(ended, *more, "--data-dir", tmp_path / "text")
    named = ["--lr is 0.02, and was 0.01", "--seed is 3, and was 0", "--density is 0.05, and was 0.02"]
    assert sorted(resumed(ended)["changes"]) == sorted([*named, "the data are not those of before"])
    for change in named:
        assert f"not the steps of a run that never ended: {change}" in done.out
    rates = [record["lr"] for record in records(ended) if record["kind"] == "iter"]
    assert rates == [0.01] * 12 + [0.02] * 12


def change(run, part, action):
    """Something in the newest checkpoint, under a seal that is in order."""
    folder = newest_checkpoint(run)
    index = json.loads((folder / "whole.json").read_text())
    content = read(folder / part)
    action(content)
    index["files"][part] = write(folder / part, content)
    (folder / "whole.json").write_text(json.dumps(index))


STRANGE = {
    "no options": ("common.pt", lambda common: common.pop("options")),
    "no weights": ("common.pt", lambda common: common.pop("parameters")),
    "another shape": ("common.pt", lambda common: common["parameters"].update({"decoder.bias": torch.zeros(3)})),
    "another momentum": (
        "common.pt",
        lambda common: common["optimizer"]["state"].update({0: {"momentum_buffer": torch.zeros(3)}}),
    ),
    "no progress": ("rank-0.pt", lambda own: own.pop("progress")),
    "an epoch of text": ("rank-0.pt", lambda own: own["progress"].update(epoch="one")),
    "a negative step": ("rank-0.pt", lambda own: own["progress"].update(step=-1)),
    "sums of text": ("rank-0.pt", lambda own: own["progress"]["tally"].update(stages={"data": "long"})),
    "no list": ("rank-0.pt", lambda own: own["trainer"].update(sparsities=3)),
    "random numbers of others": ("rank-0.pt", lambda own: own["trainer"].update(random=torch.zeros(3))),
    "a state of another text": ("rank-0.pt", lambda own: own["trainer"].update(task={"hidden": [torch.zeros(1)] * 2})),
    "a residual of another model": ("rank-0.pt", lambda own: own["oktopk"]["parameters"].update(more={})),
    "a share of another rank": ("rank-0.pt", lambda own: own["oktopk"].update(rank_and_size=(1, 2))),
    "nothing": ("rank-0.pt", lambda own: own.clear()),
}


def test_an_option_that_there_was_not_yet_is_no_change(ended, go_on):
    change(ended, "common.pt", lambda common: common["options"].pop("ramp_iters"))
    go_on(ended)
    assert resumed(ended)["changes"] == []


@pytest.mark.parametrize("fault", STRANGE)
def test_a_checkpoint_that_does_not_fit_is_refused(fault, ended, train):
    change(ended, *STRANGE[fault])
    refused(train(ended, "--resume", "auto"), "checkpoint of step 12")
