"""scripts/fix_manifest.py, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fix_manifest.py"


def fix(*arguments, **options):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def make_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.fsencode(name))


@pytest.fixture
def data(tmp_path):
    make_files(tmp_path, *(f"an4/{split}/{kind}/a.{kind}" for split in ("train", "test") for kind in ("wav", "txt")))
    return tmp_path


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


TRAIN_LINE = "an4/train/wav/a.wav,an4/train/txt/a.txt\n"


@pytest.mark.parametrize(
    "line",
    [
        "/home/ann/an4/train/wav/a.wav,/home/ann/an4/train/txt/a.txt",
        "/scratch/x/train/wav/a.wav,/scratch/x/train/txt/a.txt",
        r"C:\data\an4\train\wav\a.wav,C:\data\an4\train\txt\a.txt",
        "an4/train/wav/a.wav, an4/train/txt/a.txt",
    ],
)
def test_paths_become_relative_by_their_longest_common_tail(data, line):
    manifest = write(data / "m.csv", line)
    result = fix(manifest)
    assert result.returncode == 0, result.stderr
    assert manifest.read_text() == TRAIN_LINE
    assert "1 lines written, 0 left out" in result.stdout


def test_the_first_form_is_kept_even_if_run_twice(data):
    first = "/home/ann/an4/train/wav/a.wav,/home/ann/an4/train/txt/a.txt"
    manifest = write(data / "m.csv", first)
    assert fix(manifest).returncode == 0
    assert fix(manifest).returncode == 0
    assert (data / "m.csv.bak").read_text() == f"{first}\n"
    assert manifest.read_text() == TRAIN_LINE


def test_out_and_root_may_lie_elsewhere(data):
    theirs = write(data / "theirs.csv", "/x/train/wav/a.wav,/x/train/txt/a.txt")
    (data / "mine").mkdir()
    result = fix("theirs.csv", "--root", "an4", "--out", "mine/m.csv", cwd=data)
    assert result.returncode == 0, result.stderr
    assert (data / "mine/m.csv").read_text() == "../an4/train/wav/a.wav,../an4/train/txt/a.txt\n"
    assert theirs.read_text() == "/x/train/wav/a.wav,/x/train/txt/a.txt\n"
    assert not list(data.rglob("*.bak"))


def test_what_cannot_be_matched_is_listed_and_left_out(data):
    manifest = write(
        data / "m.csv",
        "/x/train/wav/a.wav,/x/train/txt/a.txt",
        "/x/train/wav/gone.wav,/x/train/txt/a.txt",
        "/x/wav/a.wav,/x/txt/a.txt",
        "one field",
    )
    result = fix(manifest)
    assert result.returncode == 1
    missing, ambiguous, malformed = result.stderr.splitlines()
    assert "m.csv:2: no file called gone.wav" in missing
    assert "m.csv:3: /x/wav/a.wav fits 2 files equally well" in ambiguous
    assert "m.csv:4: expected `audio path,transcript path`" in malformed
    assert "1 lines written, 3 left out" in result.stdout
    assert manifest.read_text() == TRAIN_LINE


def test_nothing_is_written_when_nothing_matches(data):
    manifest = write(data / "m.csv", "/x/b.wav,/x/b.txt")
    result = fix(manifest)
    assert result.returncode == 2
    assert "error: " in result.stderr
    assert "--root" in result.stderr
    assert manifest.read_text() == "/x/b.wav,/x/b.txt\n"
    assert [path.name for path in data.iterdir() if path.is_file()] == ["m.csv"]


def test_a_manifest_from_a_folder(tmp_path):
    make_files(tmp_path, "mine/wav/b.wav", "mine/wav/a.wav", "mine/txt/a.txt", "mine/txt/b.txt")
    result = fix("--from", tmp_path / "mine", "--out", tmp_path / "m.csv")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "m.csv").read_text() == "mine/wav/a.wav,mine/txt/a.txt\nmine/wav/b.wav,mine/txt/b.txt\n"


def test_files_without_a_partner_are_listed(tmp_path):
    make_files(tmp_path, "wav/a.wav", "wav/b.wav", "txt/a.txt", "txt/c.txt")
    result = fix("--from", tmp_path, "--out", tmp_path / "m.csv")
    assert result.returncode == 1
    assert "b.wav has no transcript" in result.stderr
    assert "c.txt has no audio" in result.stderr
    assert (tmp_path / "m.csv").read_text() == "wav/a.wav,txt/a.txt\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.csv"], "cannot read the manifest gone.csv"),
        (["m.csv", "--root", "gone"], "the folder gone does not exist"),
        (["--from", "an4", "--out", "m2.csv"], "should have wav/ and txt/"),
        (["m.csv", "--out", "m.csv/below"], "cannot write m.csv/below"),
    ],
)
def test_bad_input_is_one_sentence(data, arguments, words):
    manifest = write(data / "m.csv", "/x/train/wav/a.wav,/x/train/txt/a.txt")
    before = sorted(data.rglob("*"))
    result = fix(*arguments, cwd=data)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(data.rglob("*")) == before
    assert manifest.read_text().startswith("/x/")


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "a\udcff"])
def test_a_path_that_no_manifest_can_hold_is_refused(tmp_path, name):
    make_files(tmp_path, f"wav/{name}.wav", f"txt/{name}.txt")
    result = fix("--from", tmp_path, "--out", tmp_path / "m.csv")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "without a line break" in line
    assert not (tmp_path / "m.csv").exists()


def test_lines_that_name_no_possible_file_are_left_out(data):
    manifest = write(data / "m.csv", "/x/train/wav/a.wav,/x/train/txt/a.txt", ".,.", f"{'x' * 300}.wav,a.txt", "/,/")
    result = fix(manifest)
    assert result.returncode == 1
    assert [line.split(":")[2] for line in result.stderr.splitlines()] == ["2", "3", "4"]
    assert manifest.read_text() == TRAIN_LINE


def test_a_byte_order_mark_is_no_part_of_the_first_path(data):
    manifest = data / "m.csv"
    (data / "b.wav").write_text("")
    manifest.write_text("b.wav,an4/train/txt/a.txt\n", encoding="utf-8-sig")
    assert fix(manifest).returncode == 0
    assert manifest.read_bytes() == b"b.wav,an4/train/txt/a.txt\n"


def test_a_folder_called_wav_is_no_recording(tmp_path):
    make_files(tmp_path, "wav/a.wav", "txt/a.txt", "wav/dir.wav/x", "txt/dir.txt")
    result = fix("--from", tmp_path, "--out", tmp_path / "m.csv")
    assert result.returncode == 1
    assert "dir.txt has no audio" in result.stderr
    assert (tmp_path / "m.csv").read_text() == "wav/a.wav,txt/a.txt\n"


def test_a_device_is_not_replaced(data):
    manifest = write(data / "m.csv", TRAIN_LINE.strip())
    os.mkfifo(data / "device")
    result = fix(manifest, "--out", data / "device")
    assert result.returncode == 2
    assert "is not a regular file" in result.stderr
    assert (data / "device").is_fifo()
