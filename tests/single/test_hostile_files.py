"""Damaged, crafted and strange files: one sentence, or what an honest file gives; no code, no hang, no more memory."""

import gzip
import io
import json
import os
import random
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from an4_archives import members, sphere, write_archive
from an4_archives import tone as noise
from hypothesis import given
from hypothesis import strategies as st

import evaluate
import fix_manifest
import plot_run
import prepare_an4
from corpora import SMALL, make_corpus, make_text, run_program, tone
from corpus.archive import An4Archive
from main_trainer import main
from oktopk.tensor_files import DamagedFile
from oktopk_training.errors import UserError
from oktopk_training.inputs import comma_separated, with_commas
from oktopk_training.saved_models import build_model, load_weights, read_model, save_model
from oktopk_training.tasks.language.text import load_ptb
from oktopk_training.tasks.speech import audio
from oktopk_training.tasks.speech.batches import read_batch
from oktopk_training.tasks.speech.manifest import load_manifest
from oktopk_training.tasks.speech.model import LSTMAN4
from oktopk_training.tasks.speech.noise import load_noises
from plot_run import read_metrics

MEGABYTE = 1 << 20
TRAIN = "an4_train_manifest.csv"


def refused(program, *words, capsys):
    """The one line that a program's main says before it ends with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        program(list(map(str, words)))
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2, line
    assert line.startswith("error: ")
    assert len(line) < 1000
    return line


def script(module, monkeypatch):
    """`main` of a script that takes its words from sys.argv."""

    def run(words):
        monkeypatch.setattr(sys, "argv", [module.__name__, *words])
        module.main()

    return run


def peak_megabytes(action):
    """Of memory that comes and goes while the action refuses its file."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    with pytest.raises((UserError, DamagedFile)):
        action()
    return (memory("VmHWM") - before) / 1024


def memory(field):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(status[field].split()[0])


# ---- models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    net = LSTMAN4(16, 2)
    path = tmp_path_factory.mktemp("model") / "best.pt"
    save_model(path, net, "lstman4", 3, {"wer": 0.5})
    return path, net.state_dict()


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def loads_or_is_refused(path, weights):
    """Whether it is refused; if it is not, it is the same model."""
    try:
        net = build_model(read_model(path), path)
    except UserError:
        return True
    assert all(torch.equal(tensor, weights[name]) for name, tensor in net.state_dict().items())
    return False


@pytest.mark.parametrize("has_seal", [True, False])
def test_a_flipped_bit_of_a_model_is_found_or_changes_nothing(has_seal, model, tmp_path):
    path, weights = model
    if not has_seal:  # as earlier versions saved them
        torch.save(read_model(path), tmp_path / "plain.pt")
        path = tmp_path / "plain.pt"
    content, damaged, chance = path.read_bytes(), tmp_path / "damaged.pt", random.Random(0)
    found = 0
    for _ in range(100):
        damaged.write_bytes(flipped(content, chance.randrange(8 * len(content))))
        found += loads_or_is_refused(damaged, weights)
    assert found == 100 if has_seal else found > 90


def test_evaluation_refuses_an_exponent_bit_and_a_file_cut_short(model, corpus, tmp_path, capsys):
    path, weights = model
    content, damaged = path.read_bytes(), tmp_path / "damaged.pt"
    place = content.index(weights["output.weight"].numpy().tobytes())
    damages = [flipped(content, 8 * place + 30), *(content[: len(content) * part // 7] for part in range(7))]
    for each in damages:
        damaged.write_bytes(each)
        line = refused(evaluate.main, damaged, corpus / "an4_val_manifest.csv", capsys=capsys)
        assert line == f"error: {damaged} is not a saved model, or it is damaged; choose another"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value, model, corpus, tmp_path, capsys):
    content = read_model(model[0])
    content["model"]["output.weight"][3, 3] = value
    torch.save(content, tmp_path / "model.pt")
    training = [*SMALL, "--data-dir", corpus, "--run-dir", tmp_path / "run", "--pretrain", tmp_path / "model.pt"]
    for program, words in ((evaluate.main, [tmp_path / "model.pt", corpus / "an4_val_manifest.csv"]), (main, training)):
        line = refused(program, *words, capsys=capsys)
        assert "model.pt: output.weight has weights that are infinite or not numbers" in line
    assert os.listdir(tmp_path) == ["model.pt"]


def described(path, description, parts=()):
    """A file of tensors whose description was not written by torch.save."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + description + b".")
        archive.writestr("archive/byteorder", sys.byteorder)
        for name, content in parts:
            archive.writestr(f"archive/data/{name}", content)
    return path


def laughing(levels):
    """Lists of ten times the same list of ten times the same list ..."""
    level = b"](" + b"h\x00" * 10 + b"eq\x00"  # ten times what is remembered, and that is to be remembered
    return b"]q\x00" + b"0".join([b"", *[level] * levels])


EMPTY_ODICT = b"ccollections\nOrderedDict\n"
MODELS = {
    "claimed sizes of 1e9": lambda path: torch.save(
        {"dnn": "lstm", "sizes": {"words": 10**9, "hidden_size": 60_000, "hidden_layers": 90}, "model": {}}, path
    ),
    "sizes that no model has": lambda path: torch.save(
        {"dnn": "lstman4", "sizes": {"hidden_size": 10**9, "hidden_layers": 10**9}, "model": {}}, path
    ),
    "one number that fills a tensor": lambda path: torch.save(
        {"dnn": "lstman4", "sizes": {}, "model": {"a": torch.ones(1).expand(10**9)}}, path
    ),
    "a list of lists of lists": lambda path: described(path, laughing(12)),
    "copies of copies": lambda path: described(
        path, b"(" + b"K\x01K\x02\x86" * 9000 + b"lq\x00" + (EMPTY_ODICT + b"h\x00\x85R") * 2000
    ),
    "a place of its memory far away": lambda path: described(path, b"]r\xff\xff\xff\x7f"),
    "zeros that are compressed": lambda path: zipped_zeros(path, 400 * MEGABYTE),
}


def zipped_zeros(path, count):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(count))


@pytest.mark.parametrize("kind", MODELS)
def test_a_crafted_model_takes_no_more_memory_than_its_file(kind, tmp_path):
    path = tmp_path / "model.pt"
    MODELS[kind](path)
    assert path.stat().st_size < MEGABYTE
    assert peak_megabytes(lambda: build_model(read_model(path), path)) < 20


def test_sizes_of_a_crafted_model_are_not_said_at_any_length(tmp_path):
    torch.save({"dnn": "x" * 10**6, "sizes": {"y" * 10**6: 3}, "model": {}}, tmp_path / "model.pt")
    with pytest.raises(UserError) as refusal:
        load_weights(LSTMAN4(4, 1), "lstman4", tmp_path / "model.pt")
    assert len(str(refusal.value)) < 1000


# ---- speech


def replaced(folder, line):
    (folder / TRAIN).write_text(line)
    return folder / TRAIN


@pytest.fixture
def folder(tmp_path):
    return make_corpus(tmp_path / "data", train=2, val=1)


@pytest.mark.parametrize("form", ["wav", "flac", "ogg"])
def test_a_recording_that_is_cut_short_during_a_run_is_no_longer_learnt_from(form, folder):
    path = folder / f"long.{form}"
    soundfile.write(path, tone(2.0), 22_050)
    (utterance,) = load_manifest(replaced(folder, f"long.{form},train00.txt\n"))
    read_batch([utterance], [0])
    content = path.read_bytes()
    for part in (0, 0.01, 0.3, 0.6, 0.9, 0.99):
        path.write_bytes(content[: int(part * len(content))])
        with pytest.raises(UserError, match=rf"long\.{form} was in order when the run started and now .*restore it"):
            read_batch([utterance], [0])


def test_a_recording_that_is_gone_is_said_to_be(folder):
    (first, _) = load_manifest(folder / TRAIN)
    first.audio.unlink()
    with pytest.raises(UserError, match=r"train00\.wav was in order .* cannot be read \(No such file or directory\)"):
        read_batch([first], [0])


@pytest.mark.parametrize("length", [0, 0x7FFFF000, 0xFFFFFFFF])
@pytest.mark.parametrize("whole", [0, 0x7FFFF024, 0xFFFFFFFF])
def test_a_streamed_wav_is_read_to_its_end(length, whole, folder):
    content = (folder / "train00.wav").read_bytes()
    extra = b"LIST" + struct.pack("<I", 5) + b"hello\0"  # as FFmpeg puts one before the samples
    streamed = bytearray(content[:36] + extra + content[36:])
    struct.pack_into("<I", streamed, 4, whole)
    struct.pack_into("<I", streamed, 40 + len(extra), length)
    (folder / "streamed.wav").write_bytes(streamed)
    honest, streamed = load_manifest(replaced(folder, "train00.wav,train00.txt\nstreamed.wav,train00.txt\n"))
    assert streamed.samples == honest.samples
    np.testing.assert_array_equal(audio.read(streamed.audio, honest.samples), audio.read(honest.audio))


def test_a_file_is_no_recording_by_its_name(folder):
    (folder / "hello.raw").write_bytes(b"hello" * 99)
    with pytest.raises(UserError, match=r"hello\.raw is not audio"):
        load_manifest(replaced(folder, "hello.raw,train00.txt\n"))
    (folder / "train00.wav").rename(folder / "sound.raw")
    assert load_manifest(replaced(folder, "sound.raw,train00.txt\n"))


def test_a_line_of_any_length_is_said_by_its_beginning(folder):
    for line, part in (
        ("x" * 10_000_000, "line 1 has more than 1048576 characters"),
        ("x" * 1_000_000, "(1000000 characters)"),
        ("x" * 9_999 + ",train00.txt", "name too long"),
        ("x/" * 9_999 + ",train00.txt", "name too long"),
        ('"' + "x" * 200_000 + '",y', "expected `audio path,transcript path`"),
    ):
        with pytest.raises(UserError) as refusal:
            load_manifest(replaced(folder, line))
        assert part in str(refusal.value)
        assert len(str(refusal.value)) < 1000


def test_what_a_manifest_says_to_the_terminal_is_not_passed_on(folder):
    with pytest.raises(UserError, match=r"there is no audio file .*gone\?\[31m\.wav"):
        load_manifest(replaced(folder, "gone\x1b[31m.wav,train00.txt\n"))


def test_fields_in_quotes_are_taken_and_mended(folder, monkeypatch, capsys):
    (folder / "train00.wav").rename(folder / "a, b.wav")
    utterances = load_manifest(replaced(folder, '"train01.wav", "train01.txt"\n"a, b.wav",train00.txt\r\n'))
    assert [each.audio.name for each in utterances] == ["train01.wav", "a, b.wav"]
    manifest = replaced(folder, '"/home/ann/train01.wav","/home/ann/train01.txt"\n"/x/a, b.wav",/x/train00.txt\n')
    with pytest.raises(SystemExit) as ended:
        script(fix_manifest, monkeypatch)([str(manifest)])
    assert ended.value.code == 0
    assert manifest.read_text() == 'train01.wav,train01.txt\n"a, b.wav",train00.txt\n'
    assert len(load_manifest(manifest)) == 2


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1), min_size=2, max_size=2)
)
def test_fields_come_back_as_they_were_written(fields):
    fields = [field.strip() or "x" for field in fields]
    assert comma_separated(with_commas(fields)) == fields


def test_endings_may_be_capitals_and_two_files_that_differ_in_them_are_not_chosen_between(tmp_path):
    for name in ("wav/UP.WAV", "wav/a.wav", "wav/b.wav", "wav/b.Wav", "txt/UP.Txt", "txt/a.txt", "txt/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    done = run_program("scripts/fix_manifest.py", "--from", tmp_path, "--out", tmp_path / "m.csv")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "m.csv").read_text() == "wav/UP.WAV,txt/UP.Txt\nwav/a.wav,txt/a.txt\n"
    assert done.stderr == f"left out: {tmp_path}/wav/b.Wav and {tmp_path}/wav/b.wav differ in their endings alone\n"


def flac_of_silence(seconds, rate=16_000):
    whole = io.BytesIO()
    soundfile.write(whole, np.zeros(seconds * rate, np.int16), rate, format="FLAC")
    return whole.getvalue()


def write(path, content):
    path.write_bytes(content)
    return path


LONG = {
    "manifest of empty lines": ("m.csv", b"\n" * 4 * MEGABYTE, lambda path: load_manifest(path)),
    "manifest of one line": ("m.csv", b"x" * 50 * MEGABYTE, lambda path: load_manifest(path)),
    "transcript": ("train00.txt", b"YES " * 12 * MEGABYTE, lambda path: load_manifest(path.with_name(TRAIN))),
    "text of one line": ("ptb.train.txt", b"a b " * 12 * MEGABYTE, lambda path: load_ptb(path.parent)),
    "text of many words": (
        "ptb.train.txt",
        b"\n".join(b"%d" % number for number in range(10**6, 10**6 + 400_000)),
        lambda path: load_ptb(path.parent),
    ),
    "metrics": ("metrics.jsonl", b"[" * 50 * MEGABYTE, lambda path: read_metrics(path.parent)),
    "nested metrics": ("metrics.jsonl", b"[" * 900_000 + b"\n", lambda path: read_metrics(path.parent)),
    "metrics that grow": ("metrics.jsonl", b"[" + b"[]," * 300_000 + b"1]\n", lambda path: read_metrics(path.parent)),
}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_text_takes_little_more_memory_than_it_has_bytes(kind, folder):
    name, content, reader = LONG[kind]
    (folder / name).write_bytes(content)
    assert peak_megabytes(lambda: reader(folder / name)) < 90


def test_sound_that_becomes_long_takes_no_memory(folder):
    hours = write(folder / "hours.flac", flac_of_silence(4 * 3600))
    assert hours.stat().st_size < 2 * MEGABYTE
    slow = folder / "noise" / "slow.wav"
    slow.parent.mkdir()
    soundfile.write(slow, np.zeros(10_000, np.int16), 1)
    promising = bytearray((folder / "train00.wav").read_bytes())
    struct.pack_into("<I", promising, 24, 2**31 - 1)  # Hz
    write(folder / "fast.wav", promising)
    for name in ("hours.flac", "noise/slow.wav", "fast.wav"):
        assert peak_megabytes(lambda name=name: load_manifest(replaced(folder, f"{name},train00.txt"))) < 20
    assert peak_megabytes(lambda: load_noises(folder / "noise")) < 20


# ---- archives


def refuse_archive(archive, megabytes=100):
    """By its scan, before anything is written. Returns what is said."""
    said = []

    def scan():
        try:
            An4Archive(archive).scan()
        except UserError as error:
            said.append(str(error))
            raise

    assert peak_megabytes(scan) < megabytes
    assert len(said[0]) < 1000
    return said[0]


def headed(kind, size):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_describes_others_at_length_is_not_read(kind, tmp_path):
    with gzip.open(tmp_path / "a.tgz", "wb", 1) as file:
        file.write(headed(kind, 300 * MEGABYTE))
        for _ in range(300):
            file.write(bytes(MEGABYTE))
    assert "it has a header of 314572800 bytes" in refuse_archive(tmp_path / "a.tgz", 20)


def test_sparse_files_chains_of_headers_and_sizes_below_zero_are_refused(tmp_path):
    sparse, chain, negative = tmp_path / "sparse.tar", tmp_path / "chain.tar", tmp_path / "negative.tar"
    sparse.write_bytes(headed(tarfile.GNUTYPE_SPARSE, 512) + bytes(9000))
    assert "a sparse file" in refuse_archive(sparse)
    chain.write_bytes((headed(tarfile.XHDTYPE, 512) + b"11 path=ab\n".ljust(512, b"\0")) * 3000)
    assert "damaged" in refuse_archive(chain)
    backwards = bytearray(headed(tarfile.REGTYPE, 0))
    backwards[124:136] = b"\xff" * 11 + b"\x00"  # -256 bytes
    backwards[148:156] = b"%06o\0 " % (256 + sum(backwards[:148]) + sum(backwards[156:512]))
    negative.write_bytes(bytes(backwards) + bytes(9000))
    assert "bytes" in refuse_archive(negative)


def test_recordings_and_members_without_end_are_refused(tmp_path, monkeypatch):
    silent = members() | {"an4/wav/an4_clstk/fash/cen1-fash-b.sph": flac_of_silence(3600)}
    assert "far too long" in refuse_archive(write_archive(tmp_path / "silent.tgz", silent))
    promising = members() | {"an4/wav/an4_clstk/fash/cen1-fash-b.sph": sphere(noise(1), promised=int("9" * 200))}
    assert "cut off" in refuse_archive(write_archive(tmp_path / "promising.tgz", promising))
    many = {f"{number}": b"" for number in range(20_001)}
    assert "more than 20000 members" in refuse_archive(write_archive(tmp_path / "many.tgz", many))
    spaces = members() | {"an4/etc/an4_train.transcription": b"A" + b" " * 3_000_000 + b"B\n"}
    assert "expected `WORDS (utterance)`" in refuse_archive(write_archive(tmp_path / "spaces.tgz", spaces))
    monkeypatch.setattr("corpus.archive.MAX_BYTES", 8 * MEGABYTE)
    with gzip.open(write_archive(tmp_path / "endless.tgz", members()), "ab", 1) as file:
        file.write(bytes(20 * MEGABYTE))
    assert "never ends" in refuse_archive(tmp_path / "endless.tgz")


# ---- what is no file


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [pipe, endless])
def test_pipes_and_devices_are_not_waited_for(put, folder, tmp_path, monkeypatch, capsys):
    training = [*SMALL, "--batch-size", 2, "--data-dir", folder, "--run-dir", tmp_path / "run"]
    for name in ("train00.txt", "train00.wav", "an4_val_manifest.csv"):
        kept = (folder / name).read_bytes()
        put(folder / name)
        assert "it is not a regular file" in refused(main, *training, capsys=capsys)
        if name.endswith("csv"):
            fixing = script(fix_manifest, monkeypatch)
            assert "it is not a regular file" in refused(fixing, folder / name, capsys=capsys)
        (folder / name).unlink()
        (folder / name).write_bytes(kept)
    put(tmp_path / "file")
    assert "not a regular file" in refused(main, *training, "--pretrain", tmp_path / "file", capsys=capsys)
    assert "not a regular file" in refused(
        evaluate.main, tmp_path / "file", folder / "an4_val_manifest.csv", capsys=capsys
    )
    preparing = script(prepare_an4, monkeypatch)
    assert "not a regular file" in refused(preparing, tmp_path / "file", "--out", tmp_path / "out", capsys=capsys)
    (tmp_path / "plotted").mkdir()
    put(tmp_path / "plotted" / "metrics.jsonl")
    assert "not a regular file" in refused(script(plot_run, monkeypatch), tmp_path / "plotted", capsys=capsys)
    put(make_text(tmp_path / "text") / "ptb.valid.txt")
    with pytest.raises(UserError, match="not a regular file"):
        load_ptb(tmp_path / "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file", "plotted", "text"]


def test_a_configuration_that_is_no_file_or_no_configuration_is_done_without(tmp_path, monkeypatch):
    """Formulas, numbers without end and labels by the thousand stand in it."""
    step = {"kind": "iter", "iter": 0, "epoch": 0, "loss": 1e300, "lr": 1e-300, "bytes_sent": 1}
    tested = {"kind": "val", "epoch": 0, "loss": 1e300, "wer": -1e300}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(step)}\n{json.dumps(tested)}\n")
    options = {"hidden_layers": r"$\frac{", "hidden_size": [[1] * 10**5], "batch_size": 1, "dnn": "$x$", "lr": 0.1}
    crafted = {"options": {**options, "dataset": "\x1b"}, "ranks": 2, "figures": {str(n): "$" for n in range(10**4)}}
    for content in (json.dumps(crafted), json.dumps(crafted).replace("0.1", "1" * 400), "[" * 10**5):
        (tmp_path / "config.json").write_text(content)
        script(plot_run, monkeypatch)([str(tmp_path)])
    pipe(tmp_path / "config.json")
    script(plot_run, monkeypatch)([str(tmp_path)])


def test_figures_that_cannot_be_kept_are_refused_before_they_are_measured(tmp_path):
    for place in (tmp_path / "nowhere" / "figures.json", tmp_path):
        done = run_program("scripts/bench_allreduce.py", "--elements", 1000, "--iters", 1, "--json", place)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: cannot write {place}")
    assert os.listdir(tmp_path) == []
