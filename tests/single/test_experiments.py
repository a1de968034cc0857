"""scripts/experiment.py without its trainings: which runs it plans, what it refuses, goes on with, and ends in."""

import csv
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import experiment
from corpora import PROJECT
from experiments import outcomes, running, tables
from experiments.plan import plan
from made_runs import CONFIG, epoch_end, step, write
from oktopk_training.errors import UserError
from oktopk_training.files import make_folder
from report import MOST_RUNS

TRAINED = ["--max-epochs=3", "--val-interval=1"]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The trainer's parser looks for the data's folder."""
    (tmp_path / "audio_data").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def sigterm_as_before():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def planned(seeds=1, given=(), **varied):
    return plan({name: value.split(",") for name, value in varied.items()}, seeds, [*TRAINED, *given], list)


def names(runs):
    return [run.name for run in runs]


# ---- the plan


def test_every_combination_has_a_run_with_every_seed_and_those_of_a_seed_come_together():
    assert names(planned(2, lr="0.1,0.2", batch_size="4")) == [
        "lr=0.1,batch_size=4,seed=0",
        "lr=0.2,batch_size=4,seed=0",
        "lr=0.1,batch_size=4,seed=1",
        "lr=0.2,batch_size=4,seed=1",
    ]
    (only,) = planned(lr="0.3")
    assert (only.options.lr, only.options.seed, only.epochs) == (0.3, 0, 3)


def test_an_option_that_makes_no_difference_to_a_run_makes_no_other_run():
    runs = planned(compression="True", compressor="dense,gaussiank,oktopk", density="0.1,0.2", sigma_scale="2,3")
    assert [name.partition(",")[2] for name in names(runs)] == [
        "compressor=dense,seed=0",
        *(f"compressor=gaussiank,density={d},sigma_scale={s},seed=0" for d in (0.1, 0.2) for s in (2, 3)),
        *(f"compressor=oktopk,density={d},seed=0" for d in (0.1, 0.2)),
    ]


def test_a_dense_run_has_no_ramp():
    runs = planned(compression="True", compressor="dense,oktopk", ramp_iters="0,100")
    assert [run.values.get("ramp_iters") for run in runs] == [None, "0", "100"]


def test_a_run_is_not_told_what_makes_no_difference_to_it():
    dense, oktopk = planned(compression="True", compressor="dense,oktopk", momentum_correction="True")
    assert ["--momentum-correction=True" in run.words for run in (dense, oktopk)] == [False, True]
    assert [bool(run.options.momentum_correction) for run in (dense, oktopk)] == [False, True]


@pytest.mark.parametrize(
    ("given", "varied", "count"),
    [
        (["--compression"], {"compressor": "dense,none"}, 1),
        (["--compression"], {"compressor": "topkSA,topkDSA,topkA"}, 2),
        (["--compression"], {"density": "0.01,1e-2,0.010"}, 1),
        ([], {"compressor": "topkA,oktopk", "density": "0.1,0.2"}, 1),
        (["--compression"], {"compressor": "oktopk,topkA", "region_period": "8,9"}, 3),
        (["--compression"], {"compressor": "oktopk,topkAopt", "threshold": "exact,reuse"}, 3),
        (["--compression"], {"threshold": "exact,reuse", "threshold_period": "8,9"}, 3),
        ([], {"momentum_correction": "True,False"}, 1),
        (["--compression"], {"momentum_correction": "True,False"}, 2),
        ([], {"ranks_per_node": "1,2"}, 1),
    ],
)
def test_words_that_mean_the_same_run_make_one(given, varied, count):
    assert len(planned(given=given, **varied)) == count


@pytest.mark.parametrize(
    ("given", "varied", "said"),
    [
        ([], {"densty": "0.1"}, "LSTM/main_trainer.py would refuse this: unrecognized arguments: --densty=0.1"),
        ([], {"density": "0.1,2"}, "argument --density: expected a share above 0 and at most 1, found '2'"),
        (["--data-dir=nowhere"], {}, "there is no folder"),
        ([], {"seed": "1,2"}, "--seed: give --seeds N"),
        (["--run_dir=x"], {}, "--run-dir: give --out FOLDER"),
        (["--nworkers", "4"], {}, "in front of the command: nworkers=4"),
        (["--lr", "0.1"], {"lr": "0.1,0.2"}, "--lr is varied and given behind -- as well"),
        ([], {"pretrain": "a/b,a-b"}, "two runs would have the folder pretrain=a-b,seed=0"),
        ([], {"pretrain": "a" * 300}, "a name longer than 255 bytes"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(given, varied, said):
    with pytest.raises(UserError) as error:
        planned(given=given, **varied)
    assert said in str(error.value)


@pytest.mark.parametrize("word", ["lr", "lr=", "=1", "lr=1,,2"])
def test_a_variation_without_a_name_or_a_value_is_refused(word, capsys, monkeypatch):
    assert run_experiment(monkeypatch, "--vary", word) == 2
    assert capsys.readouterr().err == (
        f"error: argument --vary: expected NAME=VALUE,VALUE,..., found {word!r}; --help lists the options\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is nothing to compare: give --vary NAME=VALUE,..., or --seeds N"),
        (("--vary", "lr=0.1", "--max-epochs", "3"), "--max-epochs is no option of this; those of LSTM/main_trainer.py"),
    ],
)
def test_what_is_no_experiment_is_refused(words, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["experiment.py", *words])
    with pytest.raises(SystemExit) as ended:
        experiment.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


# ---- an experiment whose trainings are made by hand


def run_experiment(monkeypatch, *words, train=None):
    """The status of scripts/experiment.py in tmp_path."""
    monkeypatch.setattr(sys, "argv", ["experiment.py", "--out", "out", *map(str, words), "--", *TRAINED])
    monkeypatch.setattr(running, "words_of", list)
    monkeypatch.setattr(running, "train", train or (lambda *_: pytest.fail("nothing was to be trained")))
    try:
        experiment.main()
    except SystemExit as end:
        return end.code
    return 0


class Trainer:
    """Writes the runs that it is asked for, each better with a higher learning rate, and notes their names."""

    def __init__(self, fails=()):
        self.trained, self.fails = [], fails

    def __call__(self, run, folder):
        self.trained.append(run.name)
        if run.name in self.fails:
            folder.mkdir(parents=True)
            (folder / running.OUTPUT).write_text("begins\n\nerror: no luck\n")
            return 3
        write(folder, records_of(run), {**CONFIG, "options": run.options.flat()})
        return 0


def records_of(run, epochs=None, **figures):
    made = []
    for epoch in range(epochs or run.epochs):
        made += [step(2 * epoch + place, "sparse" if epoch else "dense") | {"epoch": epoch} for place in range(2)]
        average, validation = epoch_end(epoch)
        wer = (0.8 + run.seed / 10) / (epoch + 1) - run.options.lr
        made += [average | {"time": 60.0}, validation | {"wer": wer} | figures]
    return made


def test_an_experiment_ends_in_a_table_a_line_for_each_run_and_a_report(capsys, monkeypatch, tmp_path):
    trainer = Trainer()
    assert run_experiment(monkeypatch, "--vary", "lr=0.12,0.01", "--seeds", 2, train=trainer) == 0
    said = capsys.readouterr().out
    assert "2 cells, 4 runs" in said
    assert "12 epochs; how long they take is said after the first run" in said
    assert "left to train: 9 epochs, about 9 min" in said
    table = (tmp_path / "out" / "table.md").read_text()
    assert table in said
    assert table.splitlines() == [
        "| lr | seeds | WER | CER | validation loss | epochs to WER 0.3 | entries / k | sent per step, kB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 0.12 | 2 | 0.163 ± 0.024 | 0.083 ± 0.000 | 3.000 ± 0.000 | 2.08 | 1.000 ± 0.000 | 16 |",
        "| 0.01 | 2 | 0.273 ± 0.024 | 0.083 ± 0.000 | 3.000 ± 0.000 | 2.8 | 1.000 ± 0.000 | 16 |",
    ]
    with open(tmp_path / "out" / "runs.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["lr"], line["seed"], line["state"], line["folder"]) for line in lines] == [
        (lr, str(seed), "finished", f"lr={lr},seed={seed}") for seed in (0, 1) for lr in ("0.12", "0.01")
    ]
    assert float(lines[0]["wer"]) == pytest.approx(0.8 / 3 - 0.12)
    page = (tmp_path / "out" / "report.html").read_text().replace("<wbr>", "")
    assert all(f">{name}<" in page for name in trainer.trained)
    assert "Means over seeds" in page
    assert "0.163 ± 0.024" in page


@pytest.mark.parametrize("ended", [False, True])
def test_two_experiments_are_not_at_work_in_one_folder(ended, capsys, monkeypatch, tmp_path):
    with experiment.alone_in(make_folder(tmp_path / "out")) if not ended else nullcontext():
        status = run_experiment(monkeypatch, "--vary", "lr=0.1", train=Trainer())
    assert status == (0 if ended else 2)
    said = "" if ended else f"error: another experiment is at work in {tmp_path / 'out'}: wait for it, or choose"
    assert capsys.readouterr().err.startswith(said)
    assert (tmp_path / "out" / "table.md").exists() == ended


def test_what_cannot_be_read_is_no_run_that_has_not_begun(capsys, monkeypatch, tmp_path):
    assert run_experiment(monkeypatch, "--vary", "lr=0.1", train=Trainer()) == 0
    run = tmp_path / "out" / "lr=0.1,seed=0"
    (run / "config.json").write_text('{"options": {')
    assert run_experiment(monkeypatch, "--vary", "lr=0.1") == 2
    assert f"{run} holds a run whose config.json does not say with which options" in capsys.readouterr().err
    with open(run / "metrics.jsonl", "a") as metrics:
        metrics.write("garbage\n")
    assert run_experiment(monkeypatch, "--vary", "lr=0.1") == 2
    assert "this line is not a metrics record" in capsys.readouterr().err


def test_a_run_whose_folder_cannot_be_made_leaves_the_others_alone(capsys, monkeypatch, tmp_path):
    train = Trainer()

    def without_room(run, folder):
        if run.options.lr == 0.1:
            raise UserError("cannot make the folder")
        return train(run, folder)

    assert run_experiment(monkeypatch, "--vary", "lr=0.1,0.2", train=without_room) == 1
    assert "lr=0.1,seed=0 failed: cannot make the folder\n" in capsys.readouterr().out
    assert train.trained == ["lr=0.2,seed=0"]


def test_variables_that_would_have_the_job_script_train_nothing_are_not_passed_on(monkeypatch):
    monkeypatch.setenv("program", "foo")
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("nworkers", "3")
    surroundings = running._job([])["env"]
    assert (surroundings.get("DRY_RUN"), surroundings.get("program"), surroundings["nworkers"]) == (None, None, "3")


def test_what_is_finished_is_not_trained_again_and_more_values_are_added(monkeypatch):
    first, second = Trainer(), Trainer()
    assert run_experiment(monkeypatch, "--vary", "lr=0.1", train=first) == 0
    assert run_experiment(monkeypatch, "--vary", "lr=0.1") == 0
    assert run_experiment(monkeypatch, "--vary", "lr=0.1,0.2", "--seeds", 2, train=second) == 0
    assert second.trained == ["lr=0.2,seed=0", "lr=0.1,seed=1", "lr=0.2,seed=1"]


def test_a_run_that_fails_is_told_and_the_others_are_trained(capsys, monkeypatch, tmp_path):
    trainer = Trainer(fails=["lr=0.1,seed=0"])
    assert run_experiment(monkeypatch, "--vary", "lr=0.1,0.2", "--seeds", 2, train=trainer) == 1
    assert len(trainer.trained) == 4
    said = capsys.readouterr().out
    assert "lr=0.1,seed=0 failed: it ended with status 3\n    begins\n    error: no luck\n" in said
    assert "| 0.1 | 1 of 2 | 0.200 |" in said
    assert "lr=0.1,seed=0" not in (tmp_path / "out" / "report.html").read_text()
    again = Trainer()
    (tmp_path / "out" / "lr=0.1,seed=0" / running.OUTPUT).unlink()
    (tmp_path / "out" / "lr=0.1,seed=0").rmdir()
    assert run_experiment(monkeypatch, "--vary", "lr=0.1,0.2", "--seeds", 2, train=again) == 0
    assert again.trained == ["lr=0.1,seed=0"]


def test_where_every_run_fails_there_is_a_table_all_the_same(monkeypatch, tmp_path):
    assert run_experiment(monkeypatch, train=Trainer(fails=["seed=0"])) == 1
    assert (tmp_path / "out" / "table.md").read_text().splitlines()[-1].startswith("| 0 of 1 |")


def test_a_run_that_diverged_has_failed(capsys, monkeypatch, tmp_path):
    (run,) = planned(lr="0.1")
    write(tmp_path / "out" / run.name, records_of(run, loss=None), {**CONFIG, "options": run.options.flat()})
    assert run_experiment(monkeypatch, "--vary", "lr=0.1") == 1
    assert "lr=0.1,seed=0 failed: diverged: its validation loss is no number after 3 epochs" in capsys.readouterr().out


def test_a_run_that_never_became_sparse_is_said_to_be_none_of_its_compressor(capsys, monkeypatch):
    def train(run, folder):
        dense = [each | ({"phase": "dense"} if each["kind"] == "iter" else {}) for each in records_of(run)]
        write(folder, [each | {"target_k": None} for each in dense], {**CONFIG, "options": run.options.flat()})
        return 0

    assert run_experiment(monkeypatch, "--vary", "compression=True", "--vary", "compressor=oktopk", train=train) == 0
    assert "warning: compression=True,compressor=oktopk,seed=0 sent nothing sparse" in capsys.readouterr().out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_ended_says_how_to_go_on(how, capsys, monkeypatch):
    def train(*_):
        signal.raise_signal(how)

    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)
    try:
        assert run_experiment(monkeypatch, train=train) == 128 + how
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert "ended early; the same command goes on from here\n" in capsys.readouterr().err


def test_the_plan_alone_trains_nothing_and_leaves_nothing(capsys, monkeypatch, tmp_path):
    assert run_experiment(monkeypatch, "--plan", "--vary", "lr=0.1,0.2") == 0
    assert "lr=0.2,seed=0: 3 epochs\nleft to train: 6 epochs" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_plan_says_how_far_runs_have_come_and_how_long_the_rest_takes(capsys, monkeypatch, tmp_path):
    begun, _ = planned(lr="0.1,0.2")
    write(tmp_path / "out" / begun.name, records_of(begun, 2), {**CONFIG, "options": begun.options.flat()})
    assert run_experiment(monkeypatch, "--plan", "--vary", "lr=0.1,0.2") == 0
    said = capsys.readouterr().out
    assert "lr=0.1,seed=0: 2 of 3 epochs are done\n" in said
    assert "left to train: 4 epochs, about 4 min" in said


@pytest.mark.parametrize(("seconds", "said"), [(42, "42 s"), (600, "10 min"), (7500, "2 h 5 min")])
def test_times_are_said_as_people_say_them(seconds, said):
    assert experiment._duration(seconds) == said


def test_more_runs_than_a_report_tells_apart_are_reported_as_far_as_it_does(capsys, monkeypatch):
    rates = ",".join(f"0.{number}" for number in range(100, 101 + MOST_RUNS))
    assert run_experiment(monkeypatch, "--vary", f"lr={rates}", train=Trainer()) == 0
    assert f"the report has the first {MOST_RUNS} runs" in capsys.readouterr().out


# ---- runs that are there


def found(tmp_path, run, epochs=3, **options):
    config = {**CONFIG, "options": {**run.options.flat(), **options}}
    return outcomes.read(write(tmp_path / "run", records_of(run, epochs), config))


def test_a_run_of_before_an_option_came_is_taken_for_one_with_its_default(tmp_path):
    (run,) = planned()
    before = found(tmp_path, run)
    for name in ("ramp_iters", "overlap"):
        del before.options[name]
    outcomes.refuse_another(before, run)


def test_runs_with_other_options_are_not_mixed(tmp_path):
    (run,) = planned()
    with pytest.raises(UserError, match=r"holds a run with other options \(--batch-size 5, not 8\); choose another"):
        outcomes.refuse_another(found(tmp_path, run, batch_size=5), run)


def test_what_steps_do_not_depend_on_may_be_another(tmp_path):
    (run,) = planned()
    outcomes.refuse_another(found(tmp_path, run, max_epochs=30, trace=True, checkpoint_interval="1m"), run)
    outcomes.refuse_another(None, run)


def test_what_auto_stands_for_is_found_out_by_the_run(tmp_path):
    (run,) = planned(compression="True", compressor="auto")
    assert run.values["compressor"] == "auto"
    outcomes.refuse_another(found(tmp_path / "same", run, compressor="oktopk", wire="gaps"), run)
    with pytest.raises(UserError, match=r"--density 0\.5"):
        outcomes.refuse_another(found(tmp_path / "another", run, compressor="oktopk", density=0.5), run)


def test_a_longer_run_serves_where_it_was_validated(tmp_path):
    (run,) = planned()
    longer = found(tmp_path, run, 7)
    outcomes.refuse_another(longer, run)
    outcome = outcomes.outcome_of(longer, run, 0.3)
    assert outcome.figures["wer"] == pytest.approx(0.8 / 3 - 0.01)
    assert [epochs for epochs, _ in outcome.curve] == [1, 2, 3]
    longer.validations.pop(2)
    with pytest.raises(UserError, match="7 epochs that was not validated after 3"):
        outcomes.refuse_another(longer, run)


def test_a_run_without_a_whole_step_is_none_yet(tmp_path):
    assert outcomes.read(tmp_path / "nowhere") is None
    assert outcomes.read(write(tmp_path / "run", [])) is None


@pytest.mark.parametrize(
    ("curve", "epochs"),
    [
        ([(2, 0.9), (4, 0.5), (6, 0.1)], 5),
        ([(2, 0.9), (4, 0.3), (6, 0.1)], 4),
        ([(4, 0.2), (8, 0.1)], 4),
        ([(2, 0.9), (4, None), (6, 0.1)], 6),
        ([(2, 0.9), (4, 0.4)], None),
    ],
)
def test_the_target_is_reached_where_a_line_through_the_validations_meets_it(curve, epochs, tmp_path):
    (run,) = planned()
    reached = found(tmp_path, run)
    reached.validations[:] = [{"epoch": after - 1, "wer": wer, "cer": 0.1, "loss": 1.0} for after, wer in curve]
    run = replace(run, options=replace(run.options, max_epochs=curve[-1][0]))
    assert outcomes.outcome_of(reached, run, 0.3).reached == (epochs and pytest.approx(epochs))


def test_seeds_that_never_came_to_the_target_are_counted():
    (run,) = planned()
    labels, figures = {"wer": "WER", "loss": "loss"}, {"wer": 0.5, "loss": 1.0}
    came = [outcomes.Outcome(run, None, labels, figures, at, None, None, [(1, 0.5)]) for at in (4, 8, None)]
    head, (row,) = tables.table_of(came, [], 0.3)
    assert dict(zip(head, row, strict=True))["epochs to WER 0.3"] == "6 (2 of 3 seeds)"


# ---- the training that it started


STUB = """
import sys
from pathlib import Path
from types import SimpleNamespace
from experiments import running
running.JOB_SCRIPT = Path("job.sh").absolute()
running.train(SimpleNamespace(words=["word"]), Path("run"))
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_however_an_experiment_ends_its_training_is_told_to(how, tmp_path):
    """SIGTERM, for which a training leaves a checkpoint; of Ctrl-C it hears nothing itself."""
    (tmp_path / "job.sh").write_text(
        "trap 'echo told; exit 143' TERM\ntrap 'echo interrupted' INT\necho begun\nfor ((;;)); do sleep 0.05; done\n"
    )
    signals = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code = f"{signals}import sys; sys.path.insert(0, {str(PROJECT / 'scripts')!r}){STUB}"
    running_one = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    output = Path("run") / running.OUTPUT
    try:
        wait_until(lambda: output.exists() and "begun" in output.read_text())
        running_one.send_signal(how)
        running_one.wait(timeout=30)
        wait_until(lambda: output.read_text() == "begun\ntold\n")
    finally:
        running_one.kill()


def wait_until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
