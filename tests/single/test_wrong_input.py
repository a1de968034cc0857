"""Wrong input to main_trainer.py: one sentence that names the thing, status 2, no traceback, nothing half-written."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import soundfile
import torch

import evaluate
from corpora import PROJECT, SMALL, TRAINER, make_corpus, run_program, tone, train
from main_trainer import main
from oktopk_training.errors import UserError
from oktopk_training.saved_models import build_model, read_model
from oktopk_training.tasks.speech.audio import Augmentation
from oktopk_training.tasks.speech.batches import read_batch
from oktopk_training.tasks.speech.manifest import load_manifest
from oktopk_training.tasks.speech.task import SpeechTask


def refused(result, *parts):
    """One line on stderr that has all the parts, status 2, no traceback."""
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert str(part) in line


def replace_line(manifest, number, line):
    lines = manifest.read_text().splitlines()
    lines[number - 1] = line
    manifest.write_text("\n".join(lines) + "\n")


def shorten(path, part):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


def flac_cut_short(folder):
    soundfile.write(folder / "long.flac", tone(2.0), 16_000)
    shorten(folder / "long.flac", 0.6)
    replace_line(folder / "an4_train_manifest.csv", 3, "long.flac,train02.txt")


def nothing_but(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def faulty_line(text):
    return lambda folder: replace_line(folder / "an4_train_manifest.csv", 3, text)


FAULTS = {
    "manifest missing": (
        lambda f: (f / "an4_val_manifest.csv").unlink(),
        ["an4_val_manifest.csv: there is no", "prepare_an4"],
    ),
    "manifest empty": (nothing_but("an4_train_manifest.csv", b""), ["an4_train_manifest.csv: the manifest is empty"]),
    "manifest not text": (nothing_but("an4_train_manifest.csv", b"\xff\xfe\xff"), ["cannot be read"]),
    "one field": (faulty_line("train02.wav"), ["an4_train_manifest.csv:3:", "`audio path,transcript path`"]),
    "three fields": (faulty_line("train02.wav,train02.txt,GO"), ["an4_train_manifest.csv:3:", "train02.txt,GO"]),
    "an empty field": (faulty_line("train02.wav,"), ["an4_train_manifest.csv:3:"]),
    "audio missing": (
        faulty_line("gone.wav,train02.txt"),
        ["_manifest.csv:3: there is no audio file", "gone.wav", "fix_man"],
    ),
    "audio empty": (nothing_but("train02.wav", b""), ["_manifest.csv:3:", "train02.wav is empty"]),
    "audio truncated": (lambda f: shorten(f / "train02.wav", 0.7), ["_manifest.csv:3:", "train02.wav is truncated"]),
    "flac truncated": (flac_cut_short, ["_manifest.csv:3:", "long.flac"]),
    "audio without samples": (
        lambda f: soundfile.write(f / "train02.wav", np.zeros(0), 16_000),
        ["_manifest.csv:3:", "train02.wav has no samples"],
    ),
    "not audio": (nothing_but("train02.wav", b"hello" * 99), ["_manifest.csv:3:", "train02.wav is not audio"]),
    "transcript missing": (
        faulty_line("train02.wav,gone.txt"),
        ["_manifest.csv:3: there is no transcript", "gone.txt"],
    ),
    "transcript empty": (nothing_but("train02.txt", b" \n"), ["_manifest.csv:3:", "train02.txt is empty"]),
    "strange characters": (nothing_but("train02.txt", "ROOM 4é".encode()), ["_manifest.csv:3:", "contains '4' 'É'"]),
    "transcript too long": (
        nothing_but("train02.txt", b"YES " * 30),
        ["_manifest.csv:3:", "train02.txt needs 119 frames", "train02.wav gives"],
    ),
    "name too long": (faulty_line("x" * 300 + ".wav,train02.txt"), ["_manifest.csv:3:", "xxx.wav cannot be read"]),
    "a NUL in a name": (faulty_line("train02.wav,a\0b.txt"), ["_manifest.csv:3:", "null byte"]),
    "absurd rate": (
        lambda f: soundfile.write(f / "train02.wav", tone(400, rate=1), 1),
        ["_manifest.csv:3:", "train02.wav is at 1 Hz"],
    ),
    "absurd length": (
        lambda f: soundfile.write(f / "train02.wav", np.zeros(601 * 4_000, np.int16), 4_000),
        ["_manifest.csv:3:", "train02.wav lasts longer than 10 minutes"],
    ),
    "several faults": (
        lambda f: [(f / f"train0{number}.wav").unlink() for number in (1, 4, 7)],
        ["_manifest.csv:2:", "2 other lines"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_data_are_refused_with_one_sentence_and_leave_no_run(fault, tmp_path, capsys):
    """All of them, in this process: torch takes a second to import."""
    spoil, parts = FAULTS[fault]
    folder = make_corpus(tmp_path / "data")
    spoil(folder)
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, "--data-dir", str(folder), "--run-dir", str(tmp_path / "runs" / "run")])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("error: ")
    assert all(str(part) in line for part in parts), line
    assert os.listdir(tmp_path) == ["data"]


def test_the_program_says_of_faulty_data_what_its_main_does(tmp_path):
    spoil, parts = FAULTS["audio missing"]
    folder = make_corpus(tmp_path / "data")
    spoil(folder)
    refused(train(folder, tmp_path / "runs" / "run"), *parts)
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("sample", [np.nan, np.inf, 3e38])
def test_a_recording_that_holds_no_number_ends_the_run_by_its_name(sample, tmp_path, capsys):
    folder = make_corpus(tmp_path / "data")
    samples = tone(0.8)
    samples[1000] = sample
    soundfile.write(folder / "train02.wav", samples, 16_000, subtype="FLOAT")
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, "--data-dir", str(folder), "--run-dir", str(tmp_path / "run")])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "train02.wav has samples that are huge or not numbers" in line


def test_a_recording_that_is_emptied_meanwhile_ends_the_run_by_its_name(tmp_path):
    folder = make_corpus(tmp_path / "data")
    utterances = load_manifest(folder / "an4_train_manifest.csv")
    soundfile.write(folder / "train02.wav", np.zeros(0), 16_000)
    with pytest.raises(UserError, match=r"train02\.wav was in order .* no samples"):
        read_batch(utterances, [2], Augmentation())


OPTIONS = {
    "unknown option": (["--learning-rate", "1"], ["--learning-rate"]),
    "abbreviation": (["--max-epoch", "1"], ["--max-epoch"]),
    "resume nothing": (["--resume="], ["--resume", "not empty"]),
    "resume what is nowhere": (["--resume", "no_run"], ["--resume", "no_run", "name a run's folder"]),
    "no interval": (["--checkpoint_interval=0"], ["--checkpoint-interval", "steps (500) or minutes (15m)", "'0'"]),
    "another unit": (["--checkpoint-interval", "5h"], ["--checkpoint-interval", "'5h'"]),
    "keep none": (["--keep-checkpoints", "0"], ["--keep-checkpoints", "above 0"]),
    "unknown compressor": (["--compressor", "gzip"], ["--compressor", "'gzip'", "oktopk", "topkDSA", "dense"]),
    "density zero": (["--density", "0"], ["--density", "above 0", "'0'"]),
    "density above one": (["--density", "1.5"], ["--density", "at most 1", "'1.5'"]),
    "neither true nor false": (["--compression", "maybe"], ["--compression", "'maybe'"]),
    "negative warm-up": (["--warmup-iters", "-1"], ["--warmup-iters", "0 or more"]),
    "zero clip": (["--norm-clip", "0"], ["--norm-clip", "above 0"]),
    "other threshold": (["--threshold", "guess"], ["--threshold", "exact", "reuse"]),
    "too many workers": (["--nworkers", "4"], ["--nworkers 4", "1 rank"]),
    "unknown value": (["--dnn", "vgg"], ["--dnn", "'vgg'", "lstman4"]),
    "zero batch": (["--batch-size", "0"], ["--batch-size", "above 0", "'0'"]),
    "negative size": (["--hidden-size", "-3"], ["--hidden-size", "above 0", "'-3'"]),
    "zero layers": (["--hidden_layers", "0"], ["--hidden-layers"]),
    "negative rate": (["--lr", "-0.1"], ["--lr"]),
    "rate nan": (["--lr", "nan"], ["--lr", "'nan'"]),
    "no number": (["--max-epochs", "ten"], ["--max-epochs", "'ten'"]),
    "zero epochs": (["--max-epochs", "0"], ["--max-epochs"]),
    "zero interval": (["--val-interval", "0"], ["--val-interval"]),
    "zero accumulation": (["--nsteps-update", "0"], ["--nsteps-update"]),
    "too much accumulation": (["--nsteps-update", "9"], ["3 batches", "--nsteps-update 9"]),
    "probability": (["--noise-prob", "1.5"], ["--noise-prob", "from 0 to 1"]),
    "noise without augmentation": (["--noise-dir", ".", "--no-augment"], ["--noise-dir", "--no-augment"]),
    "no noise folder": (["--noise-dir", "no/such"], ["--noise-dir no/such"]),
    "mismatch": (["--dnn", "lstm", "--dataset", "an4"], ["lstm", "ptb", "an4"]),
    "batch too large": (["--batch-size", "13"], ["12 training utterances", "13"]),
    "no such model": (["--pretrain", "no.pt"], ["no.pt"]),
    "seed too large": (["--seed", "9" * 20], ["--seed", "at most", "'999"]),
    "huge rate": (["--lr", "1e300"], ["--lr", "at most 1000000000", "'1e300'"]),
    "huge layers": (["--hidden-size", "1000000000"], ["--hidden-size", "at most 65536"]),
    "many layers": (["--hidden-layers", "1000000000"], ["--hidden-layers", "at most 100"]),
    "number too long for a float": (["--max-epochs", "9" * 400], ["--max-epochs", "at most"]),
    "data folder too long": (["--data-dir", "x" * 300], ["--data-dir xxx", "there is no folder"]),
    "model too long": (["--pretrain", "x" * 300], ["there is no such model"]),
    "run folder too long": (["--run-dir", "x" * 300], ["cannot write", "name too long"]),
    "no model named": (["--pretrain", ""], ["--pretrain", "not empty", "''"]),
    "no data folder named": (["--data-dir", ""], ["--data-dir", "not empty", "''"]),
    "no run folder named": (["--run-dir="], ["--run-dir", "not empty", "''"]),
    "no noise folder named": (["--noise-dir", ""], ["--noise-dir", "not empty", "''"]),
    "no number given": (["--lr", ""], ["--lr", "''"]),
    "an underscore in a number": (["--lr", "1_0"], ["--lr", "'1_0'"]),
    "an underscore in a whole number": (["--max-epochs", "1_0"], ["--max-epochs", "'1_0'"]),
    "data missing": (["--data-dir", "nowhere"], [PROJECT / "nowhere", "prepare_an4.py"]),
    "ptb missing": (["--dnn", "lstm"], ["ptb.train.txt", "--data-dir"]),
}


@pytest.mark.parametrize(
    "case",
    [
        "unknown value",
        "zero batch",
        "negative size",
        "zero layers",
        "density zero",
        "density above one",
        "batch too large",
    ],
)
def test_wrong_options_are_refused_with_one_sentence_and_leave_no_run(case, corpus, tmp_path):
    arguments, parts = OPTIONS[case]
    refused(train(corpus, tmp_path / "runs" / "run", *arguments), *parts)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("case", OPTIONS)
def test_each_wrong_option_has_its_sentence(case, corpus, tmp_path, capsys):
    """All of them, in this process: torch takes a second to import."""
    arguments, parts = OPTIONS[case]
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, "--data-dir", str(corpus), "--run-dir", str(tmp_path / "run"), *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("error: ")
    assert all(str(part) in line for part in parts), line
    assert os.listdir(tmp_path) == []


def test_a_relative_data_folder_that_is_nowhere_names_both_places(tmp_path):
    result = run_program(str(PROJECT / TRAINER), "--data-dir", "nowhere", cwd=tmp_path)
    refused(result, tmp_path / "nowhere", PROJECT / "nowhere")


@pytest.mark.parametrize("spoilt", ["empty", "strange word", "too short"])
def test_faulty_text_is_refused(spoilt, text_corpus, tmp_path):
    folder = shutil.copytree(text_corpus, tmp_path / "data")
    content = {"empty": "", "strange word": "w1 w2 surprise\n", "too short": "w1\n"}[spoilt]
    (folder / "ptb.valid.txt").write_text(content)
    refused(train(folder, tmp_path / "run", "--dnn", "lstm"), "ptb.valid.txt", "surprise" if "word" in spoilt else "")
    assert os.listdir(tmp_path) == ["data"]


def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_else(tmp_path):
    (tmp_path / "file").write_text("")
    result = train(tmp_path, tmp_path / "file" / "run")  # the data are wrong too
    refused(result, tmp_path / "file" / "run")
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_is(finished, corpus):
    run, _ = finished
    before = (run / "metrics.jsonl").read_bytes()
    refused(train(corpus, run), run, "already holds a run")
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_model_of_other_sizes_or_a_broken_one_is_refused(finished, corpus, tmp_path):
    model = finished[0] / "checkpoints" / "last.pt"
    refused(
        train(corpus, tmp_path / "run", "--hidden-layers", 3, "--pretrain", model), "hidden_layers 2", "hidden_layers 3"
    )
    shutil.copy(model, tmp_path / "model.pt")
    shorten(tmp_path / "model.pt", 0.5)
    refused(train(corpus, tmp_path / "run", "--pretrain", tmp_path / "model.pt"), "model.pt is not a saved model")
    manifest = corpus / "an4_val_manifest.csv"
    refused(run_program("scripts/evaluate.py", tmp_path / "model.pt", manifest), "model.pt is not a saved model")
    refused(run_program("scripts/evaluate.py", model, tmp_path / "no.csv"), "no.csv: there is no such manifest")
    assert os.listdir(tmp_path) == ["model.pt"]


class Malicious:
    def __reduce__(self):
        return os.system, ("true",)


def test_a_file_that_would_run_code_is_refused_in_our_own_words(corpus, tmp_path, capsys):
    """torch's advise to load it in a way that lets it."""
    torch.save({"model": Malicious()}, tmp_path / "model.pt")
    for program, words in ((evaluate.main, [str(corpus / "an4_val_manifest.csv")]), (main, [])):
        before = [] if words else [*SMALL, "--data-dir", str(corpus), "--run-dir", str(tmp_path / "run"), "--pretrain"]
        with pytest.raises(SystemExit) as ended:
            program([*before, str(tmp_path / "model.pt"), *words])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("model.pt is not a saved model, or it is damaged; choose another")
    assert os.listdir(tmp_path) == ["model.pt"]


def without_a_weight(content):
    del content["model"]["output.weight"]


def of_another_shape(content):
    content["model"]["output.weight"] = torch.zeros(2, 2)


INCONSISTENT = {
    "a weight missing": without_a_weight,
    "another shape": of_another_shape,
    "no tensor": lambda content: content["model"].update({"output.weight": "text"}),
    "a size too many": lambda content: content["sizes"].update(depth=1),
    "an absurd size": lambda content: content["sizes"].update(hidden_size="wide"),
    "no weights": lambda content: content.update(model=None),
    "no sizes": lambda content: content.update(sizes=None),
    "unknown kind": lambda content: content.update(dnn=[]),
}


@pytest.mark.parametrize("fault", INCONSISTENT)
def test_a_model_that_does_not_fit_itself_is_refused(fault, finished, corpus, tmp_path, capsys):
    content = read_model(finished[0] / "checkpoints" / "last.pt")
    INCONSISTENT[fault](content)
    torch.save(content, tmp_path / "model.pt")
    begin = [*SMALL, "--data-dir", str(corpus), "--run-dir", str(tmp_path / "run"), "--pretrain"]
    for program, arguments in ((evaluate.main, []), (main, begin)):
        rest = [str(corpus / "an4_val_manifest.csv")] if program is evaluate.main else []
        with pytest.raises(SystemExit) as ended:
            program([*arguments, str(tmp_path / "model.pt"), *rest])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "model.pt" in line
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_file_that_stumbles_the_unpickler_is_no_model(finished, tmp_path):
    """A byte changed at a time, in the part that describes the tensors."""
    model, damaged = (finished[0] / "checkpoints" / "last.pt").read_bytes(), tmp_path / "model.pt"
    start = model.index(b"data.pkl") + 100
    for place in range(start, start + 300):
        damaged.write_bytes(model[:place] + bytes([model[place] ^ 0x15]) + model[place + 1 :])
        with suppress(UserError):
            build_model(read_model(damaged), damaged)


def test_a_model_that_memory_cannot_hold_is_refused(corpus, tmp_path, capsys, monkeypatch):
    def exhausted(task):
        raise RuntimeError("can't allocate memory: you tried to allocate 4 TB")

    monkeypatch.setattr(SpeechTask, "build", exhausted)
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, "--data-dir", str(corpus), "--run-dir", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert "2 layers of 16 cannot be built (can't allocate" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
@pytest.mark.parametrize(("has_mpi", "part"), [(True, "MPI sees only this one"), (False, "MPI cannot be used")])
def test_ranks_that_cannot_see_each_other_are_refused(has_mpi, part, variable, corpus, tmp_path, without_mpi):
    """The variables stand in for another MPI's launcher; mpi4py may add a warning of its own."""
    environment = {variable: "4", **({} if has_mpi else without_mpi)}
    result = train(corpus, tmp_path / "run", environment=environment)
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: the launcher started 4 ranks")
    assert part in last
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("program", [TRAINER, "scripts/evaluate.py", ("-m", "mpi4py", TRAINER)], ids=str)
def test_ctrl_c_while_torch_is_imported_is_one_line(program, tmp_path):
    """A module that gets the signal, and swallows the exception, stands in for torch."""
    (tmp_path / "torch.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "except BaseException as error:\n    raise ImportError('torch is broken') from error\n"
    )
    result = run_program(program, environment={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 130
    assert result.stderr.split() == ["interrupted"]


def test_a_reader_that_has_gone_is_no_error():
    """As `head` goes."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, PROJECT / "scripts" / "compare_on_links.py", "--plan"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_ctrl_c_later_on_is_one_line_too(corpus, tmp_path):
    """The signal comes where main has begun, so that files are closed and the folder is left in order."""
    (tmp_path / "librosa.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    folder = shutil.copytree(corpus, tmp_path / "data")
    soundfile.write(folder / "train00.wav", tone(0.8, rate=8_000), 8_000)
    result = train(folder, tmp_path / "run", environment={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 130
    assert result.stderr.split() == ["interrupted"]
