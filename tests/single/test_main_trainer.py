"""main_trainer.py as its users run it, in one process: what a run does and what it leaves behind."""

import json
import math
import shutil

import mpi4py
import numpy as np
import pytest
import soundfile
import torch

from corpora import PROJECT, SMALL, TRAINER, make_corpus, run_program, tone, train
from main_trainer import main
from oktopk_training.recorded import read_recorded
from oktopk_training.saved_models import read_model
from oktopk_training.tasks.speech.task import SpeechTask

TIMES = ("time", "t_iter", "t_data", "t_compute", "t_select", "t_comm", "t_apply", "ms_per_step_dense")
ITERATION = [
    *("kind", "iter", "epoch", "phase", "skipped", "loss", "lr", "grad_norm", "sparsity", "compression_ratio"),
    *("communication_size", "target_k", "selected_local", "selected_global", "bytes_sent", "bytes_received"),
    *("t_iter", "t_data", "t_compute", "t_select", "t_comm", "t_apply"),
]
EPOCH = [
    *("kind", "epoch", "loss", "avg_sparsity", "avg_compression_ratio", "avg_communication_size"),
    *("skipped_steps", "time"),
]


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def untimed(run):
    return [{key: value for key, value in record.items() if key not in TIMES} for record in metrics(run)]


# ---- what a run leaves behind


def test_metrics_have_the_keys_of_the_contract(finished):
    run, _ = finished
    *records, summary = metrics(run)
    assert [record["kind"] for record in records] == ["iter"] * 3 + ["epoch", "val"] + ["iter"] * 3 + ["epoch", "val"]
    assert summary["name"] == "summary"
    assert summary["steps_dense"] == 6
    assert summary["bytes_per_step_dense"] == 0
    assert summary["avg_sparsity"] is summary["ms_per_step_sparse"] is None
    assert summary["wer"] == records[-1]["wer"]
    for record in records:
        expected = {"iter": ITERATION, "epoch": EPOCH, "val": ["kind", "epoch", "loss", "wer", "wer_mean", "cer"]}
        assert list(record) == expected[record["kind"]]
    steps = [record for record in records if record["kind"] == "iter"]
    assert [record["iter"] for record in steps] == list(range(6))
    assert [record["epoch"] for record in steps] == [0, 0, 0, 1, 1, 1]
    for record in steps:
        assert record["phase"] == "dense"
        assert record["sparsity"] is record["compression_ratio"] is record["communication_size"] is None
        assert record["t_iter"] >= record["t_data"] + record["t_compute"] + record["t_apply"] > 0
    epoch = records[3]
    assert epoch["loss"] == pytest.approx(np.mean([record["loss"] for record in steps[:3]]))


def test_config_names_every_option_and_version(finished):
    run, _ = finished
    config = json.loads((run / "config.json").read_text())
    assert config["options"]["lr"] == 0.01
    assert config["options"]["hidden_size"] == 16
    assert config["options"]["max_grad_norm"] == 400
    assert config["options"]["run_dir"] == str(run)
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["mpi4py"] == mpi4py.__version__
    assert config["versions"]["mpi_library"]
    assert config["ranks"] == 1
    assert len(config["hosts"]) == 1


def test_the_log_says_what_happened_and_never_calls_wer_accuracy(finished):
    run, result = finished
    assert "12 training and 4 validation utterances" in result.stdout
    assert "3 steps an epoch, 6 steps in 2 epochs" in result.stdout
    assert "validation after epoch 1: loss" in result.stdout
    assert "WER" in result.stdout
    assert "CER" in result.stdout
    assert "accuracy" not in result.stdout.lower()
    assert result.stderr == ""
    for line in result.stdout.splitlines():
        assert line in (run / "train.log").read_text()


def test_tensorboard_and_models_are_there(finished):
    run, _ = finished
    (events,) = (run / "tensorboard").iterdir()
    assert b"iter/loss" in events.read_bytes()
    assert b"gradient/output.weight" in events.read_bytes()
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["best.pt", "last.pt", "step-00000003", "step-00000006"]


def test_evaluate_repeats_the_figures_of_the_last_validation(finished, corpus):
    run, _ = finished
    last = [record for record in metrics(run) if record["kind"] == "val"][-1]
    result = run_program(
        "scripts/evaluate.py", run / "checkpoints" / "last.pt", corpus / "an4_val_manifest.csv", "--pairs", "2"
    )
    assert result.returncode == 0, result.stderr
    assert f"WER {last['wer']:.4f}" in result.stdout
    assert f"CER {last['cer']:.4f}" in result.stdout
    assert f"loss {last['loss']:.4f}" in result.stdout
    assert result.stdout.count("reference ") == result.stdout.count("hypothesis ") == 2


def test_the_same_seed_twice_gives_the_same_metrics_but_for_times(finished, corpus, tmp_path):
    run, _ = finished
    recording = ("--record-gradients", 1)  # which changes nothing
    assert train(corpus, tmp_path / "again", "--max-epochs", "2", *recording).returncode == 0
    written = read_recorded(tmp_path / "again" / "gradients", 0)
    norms = [record["grad_norm"] for record in metrics(tmp_path / "again") if record["kind"] == "iter"]
    assert [float(each.double().norm()) for each in written] == pytest.approx(norms[1:4], rel=1e-5)  # of float32 sums
    assert untimed(tmp_path / "again") == untimed(run)


def test_a_saved_model_is_where_pretraining_starts(finished, corpus, tmp_path):
    run, _ = finished
    model = run / "checkpoints" / "last.pt"
    result = train(corpus, tmp_path / "on", "--max-epochs", "1", "--pretrain", model)
    assert result.returncode == 0, result.stderr
    assert metrics(tmp_path / "on")[0]["loss"] < metrics(run)[0]["loss"] / 2


@pytest.mark.parametrize(
    ("program", "folder"),
    [
        (TRAINER, "."),
        ("main_trainer.py", "LSTM"),
        (("-m", "mpi4py", TRAINER), "."),
        (("-m", "mpi4py", "main_trainer.py"), "LSTM"),
    ],
)
def test_it_runs_from_both_folders_and_through_mpi4py(program, folder, text_corpus, tmp_path):
    arguments = ["--dnn", "lstm", *SMALL, "--max_epochs", 1, "--data_dir", text_corpus, f"--run_dir={tmp_path / 'run'}"]
    result = run_program(program, *arguments, cwd=PROJECT / folder)
    assert result.returncode == 0, result.stderr
    (validation,) = [record for record in metrics(tmp_path / "run") if record["kind"] == "val"]
    assert validation["perplexity"] > 1
    assert validation["wer"] is None


def test_one_rank_needs_no_mpi(text_corpus, tmp_path, without_mpi):
    arguments = ["--dnn", "lstm", *SMALL, "--max-epochs", 1, "--data-dir", text_corpus, "--run-dir", tmp_path / "run"]
    result = run_program(TRAINER, *arguments, environment=without_mpi)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["versions"]["mpi4py"] is None


def test_a_relative_data_folder_is_found_at_the_top_level_from_inside_lstm(tmp_path):
    """`./audio_data` from inside LSTM/: a copy of the program, so that the project's own data stay out of it."""
    shutil.copytree(PROJECT / "LSTM", tmp_path / "LSTM", ignore=shutil.ignore_patterns("__pycache__"))
    make_corpus(tmp_path / "audio_data", train=4, val=2)
    arguments = [*SMALL, "--data_dir", "./audio_data", "--max_epochs", 1]
    result = run_program("main_trainer.py", *arguments, cwd=tmp_path / "LSTM")
    assert result.returncode == 0, result.stderr
    (run,) = (tmp_path / "runs" / "lstman4-an4-16x2-lr0.01").iterdir()
    assert metrics(run)


@pytest.mark.parametrize("spoilt", [{0}, {0, 1}])
def test_a_model_whose_validation_loss_is_not_finite_is_never_the_best(spoilt, corpus, tmp_path, monkeypatch, capsys):
    validate, epochs = SpeechTask.validate, iter(range(2))

    def spoil(task, net):
        totals = validate(task, net)
        return totals | {"loss": math.nan} if next(epochs) in spoilt else totals

    monkeypatch.setattr(SpeechTask, "validate", spoil)
    main([*SMALL, "--data-dir", str(corpus), "--run-dir", str(tmp_path), "--max-epochs", "2", "--val-interval", "1"])
    out = capsys.readouterr().out
    assert out.count("the validation loss is not finite") == len(spoilt)
    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.pt"))
    if len(spoilt) == 2:
        assert saved == ["last.pt"]
        assert "there is no best model" in out
    else:
        assert read_model(tmp_path / "checkpoints" / "best.pt")["epoch"] == 1


# ---- input that is handled


def test_other_rates_and_stereo_are_handled_and_said_once(tmp_path):
    folder = make_corpus(tmp_path / "data", train=4, val=2)
    soundfile.write(folder / "train00.wav", np.stack([tone(0.8, rate=8_000)] * 2, axis=1), 8_000)
    soundfile.write(folder / "train01.wav", tone(0.8, rate=22_050), 22_050)
    result = train(folder, tmp_path / "run", "--max-epochs", 2)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("2 files are not at 16000 Hz") == 1
    assert result.stdout.count("1 files have several channels") == 1


def test_lower_case_and_blank_lines_are_accepted(tmp_path):
    folder = make_corpus(tmp_path / "data", train=4, val=2)
    (folder / "train00.txt").write_text("  enter   o'clock \n")
    manifest = folder / "an4_train_manifest.csv"
    manifest.write_text(manifest.read_text() + "\n\n")
    assert train(folder, tmp_path / "run", "--max-epochs", 1).returncode == 0


def test_noise_changes_what_is_learnt(corpus, tmp_path):
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise" / "hum.wav", tone(2.0, 60), 16_000)
    noisy = ["--noise-dir", tmp_path / "noise", "--noise-prob", 1]
    assert train(corpus, tmp_path / "quiet", "--max-epochs", 1).returncode == 0
    assert train(corpus, tmp_path / "noisy", "--max-epochs", 1, *noisy).returncode == 0
    assert metrics(tmp_path / "quiet")[0]["loss"] != metrics(tmp_path / "noisy")[0]["loss"]


REAL = PROJECT.parent / "shared" / "an4_real"


@pytest.mark.skipif(not REAL.is_dir(), reason="needs real AN4 utterances in ../shared/an4_real")
def test_real_an4_utterances_are_learnt_from(tmp_path):
    for part, name in (("train", "train"), ("test", "val")):
        lines = []
        for line in (REAL / f"{part}.tsv").read_text().splitlines():
            sound, transcript = line.split("\t")
            (tmp_path / sound).parent.mkdir(exist_ok=True)
            (tmp_path / sound).with_suffix(".txt").write_text(transcript)
            shutil.copy(REAL / sound, tmp_path / sound)
            lines.append(f"{sound},{sound.removesuffix('.wav')}.txt\n")
        (tmp_path / f"an4_{name}_manifest.csv").write_text("".join(lines))
    result = train(tmp_path, tmp_path / "run", "--max-epochs", 4)
    assert result.returncode == 0, result.stderr
    assert "30 training and 10 validation utterances" in result.stdout
    losses = [record["loss"] for record in metrics(tmp_path / "run") if record["kind"] == "epoch"]
    assert losses[-1] < losses[0] / 2
