"""scripts/prepare_an4.py, as a user runs it: archives good and bad, the synthetic corpus, interruptions."""

import hashlib
import shutil
import signal
import subprocess
import sys
import tarfile
import wave
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import soundfile
from an4_archives import TEST, TRAIN, members, sphere, tone, write_archive

import _project  # noqa: F401 - puts LSTM/ on the path
from corpus import synthetic

PROJECT = Path(__file__).resolve().parents[2]
PREPARE = [sys.executable, str(PROJECT / "scripts" / "prepare_an4.py")]
REAL_AN4 = PROJECT.parent / "shared" / "an4_real"
SMALL = ["--synthetic", "--train-utterances", "12", "--test-utterances", "3"]


HARD = ["--synthetic", "--hard", "--train-utterances", "4", "--test-utterances", "3"]
# Of the synthetic corpora of SMALL and HARD: their versions, and the SHA-256 of their names and contents.
BYTES_OF_VERSION = (4, "a8933e5feca2f7d65a3737c6fb9c2c50d3fa73f1b3d8fb0cc15c4ac905672833")
BYTES_OF_HARD_VERSION = (1, "d390be1566cc532460708d030104c79c9d45dfded9d49d3ea950dcebf6892da6")


def prepare(*arguments, **options):
    command = [*PREPARE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def manifest(folder, part):
    return (folder / f"an4_{part}_manifest.csv").read_text().splitlines()


def assert_refused(result, *words):
    """One sentence, status 2, no traceback."""
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


class TestArchive:
    @pytest.mark.parametrize("mode", ["w:gz", "w", "w:bz2"])
    def test_becomes_audio_transcripts_and_manifests(self, tmp_path, mode):
        archive = write_archive(tmp_path / "an4_sphere.tar.gz", members(), mode=mode)
        result = prepare(archive, "--out", tmp_path / "data")
        assert result.returncode == 0, result.stderr
        assert "4 utterances" in result.stdout
        train = manifest(tmp_path / "data", "train")
        assert train == sorted(f"an4/train/wav/{name}.wav,an4/train/txt/{name}.txt" for name in TRAIN)
        assert manifest(tmp_path / "data", "val") == [f"an4/test/wav/{n}.wav,an4/test/txt/{n}.txt" for n in TEST]
        for seed, (name, words) in enumerate(TRAIN.items()):
            assert (tmp_path / f"data/an4/train/txt/{name}.txt").read_text() == f"{words}\n"
            samples, rate = soundfile.read(tmp_path / f"data/an4/train/wav/{name}.wav", dtype="int16")
            assert rate == 16000
            np.testing.assert_array_equal(samples, tone(seed))

    def test_both_byte_orders_are_read(self, tmp_path):
        files = members()
        files["an4/wav/an4_clstk/fash/an251-fash-b.sph"] = sphere(tone(0), byte_order="10")
        prepare(write_archive(tmp_path / "a.tgz", files), "--out", tmp_path / "data")
        samples, _ = soundfile.read(tmp_path / "data/an4/train/wav/an251-fash-b.wav", dtype="int16")
        np.testing.assert_array_equal(samples, tone(0))

    def test_a_part_of_it_works_and_what_is_missing_is_counted(self, tmp_path):
        files = members()
        del files["an4/wav/an4_clstk/fash/cen1-fash-b.sph"]
        files["an4/wav/an4_clstk/fash/an999-fash-b.sph"] = sphere(tone(9))
        result = prepare(write_archive(tmp_path / "a.tgz", files), "--out", tmp_path / "data")
        assert result.returncode == 0
        assert "1 transcripts without audio and 1 recordings without transcript" in result.stdout
        assert len(manifest(tmp_path / "data", "train")) == 2

    def test_a_second_run_finds_it_complete(self, tmp_path):
        archive = write_archive(tmp_path / "a.tgz", members())
        prepare(archive, "--out", tmp_path / "data")
        before = files_in(tmp_path / "data")
        result = prepare(archive, "--out", tmp_path / "data")
        assert result.returncode == 0
        assert "complete already" in result.stdout
        assert files_in(tmp_path / "data") == before

    def test_a_file_that_is_gone_is_made_again(self, tmp_path):
        archive = write_archive(tmp_path / "a.tgz", members())
        prepare(archive, "--out", tmp_path / "data")
        before = files_in(tmp_path / "data")
        (tmp_path / "data/an4/train/wav/an251-fash-b.wav").unlink()
        assert prepare(archive, "--out", tmp_path / "data").returncode == 0
        assert files_in(tmp_path / "data") == before

    @pytest.mark.skipif(not REAL_AN4.is_dir(), reason="no real AN4 utterances in ../shared/an4_real")
    def test_real_utterances_come_through_unchanged(self, tmp_path):
        texts, sounds = {"train": {}, "test": {}}, {}
        for split, transcripts in texts.items():
            for line in (REAL_AN4 / f"{split}.tsv").read_text().splitlines():
                file, words = line.split("\t")
                transcripts[Path(file).stem] = words
                sounds[Path(file).stem], _ = soundfile.read(REAL_AN4 / file, dtype="int16")
        archive = write_archive(tmp_path / "a.tgz", members(texts["train"], texts["test"], sounds))
        assert prepare(archive, "--out", tmp_path / "data").returncode == 0
        assert len(manifest(tmp_path / "data", "train")) == 30
        assert len(manifest(tmp_path / "data", "val")) == 10
        for split, transcripts in texts.items():
            for name, words in transcripts.items():
                samples, _ = soundfile.read(tmp_path / f"data/an4/{split}/wav/{name}.wav", dtype="int16")
                np.testing.assert_array_equal(samples, sounds[name])
                assert (tmp_path / f"data/an4/{split}/txt/{name}.txt").read_text() == f"{words}\n"


def link(name, kind, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


class TestBadArchive:
    """Each is refused with a sentence before anything is written."""

    def refuse(self, tmp_path, archive, *words):
        before = {path.name for path in tmp_path.iterdir()}
        assert_refused(prepare(archive, "--out", tmp_path / "data"), *words)
        assert {path.name for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("name", ["../evil.sph", "an4/wav/an4_clstk/../../../../evil.sph", "/etc/evil.sph"])
    def test_a_member_that_points_outside(self, tmp_path, name):
        archive = write_archive(tmp_path / "a.tgz", members() | {name: sphere(tone(1))})
        self.refuse(tmp_path, archive, repr(name), "points outside")

    @pytest.mark.parametrize(
        ("kind", "what"), [(tarfile.SYMTYPE, "a link"), (tarfile.LNKTYPE, "a link"), (tarfile.CHRTYPE, "a device")]
    )
    def test_a_link_or_a_device(self, tmp_path, kind, what):
        extra = [link("an4/wav/an4_clstk/fash/an9-fash-b.sph", kind, "/etc/passwd")]
        self.refuse(tmp_path, write_archive(tmp_path / "a.tgz", members(), extra), "an9-fash-b.sph", what)

    @pytest.mark.parametrize("mode", ["w:gz", "w"])
    @pytest.mark.parametrize("kept", [0.2, 0.5, 0.95])
    def test_truncated(self, tmp_path, mode, kept):
        archive = write_archive(tmp_path / "a.tar", members(), mode=mode)
        content = archive.read_bytes().rstrip(b"\0") if mode == "w" else archive.read_bytes()
        archive.write_bytes(content[: int(kept * len(content))])
        self.refuse(tmp_path, archive, "a.tar", "truncated")

    def test_truncated_between_two_members(self, tmp_path):
        archive = write_archive(tmp_path / "a.tar", members(), mode="w")
        with tarfile.open(archive) as tar:
            second_last = tar.getmembers()[-1].offset
        archive.write_bytes(archive.read_bytes()[:second_last])
        self.refuse(tmp_path, archive, "truncated")

    @pytest.mark.parametrize("content", [b"", b"no archive at all, but a letter " * 100])
    def test_not_an_archive(self, tmp_path, content):
        (tmp_path / "letter.tar.gz").write_bytes(content)
        self.refuse(tmp_path, tmp_path / "letter.tar.gz", "letter.tar.gz is not a tar archive")

    def test_missing(self, tmp_path):
        self.refuse(tmp_path, tmp_path / "nowhere.tar.gz", "nowhere.tar.gz", "No such file")

    def test_a_folder(self, tmp_path):
        (tmp_path / "folder").mkdir()
        self.refuse(tmp_path, tmp_path / "folder", "folder", "it is a folder")

    def test_without_transcripts(self, tmp_path):
        self.refuse(tmp_path, write_archive(tmp_path / "a.tgz", {"x.txt": b"x"}), "etc/an4_train.transcription")

    def test_without_any_audio(self, tmp_path):
        files = {name: content for name, content in members().items() if "/etc/" in name}
        self.refuse(tmp_path, write_archive(tmp_path / "a.tgz", files), "audio")

    def test_a_damaged_transcription_line(self, tmp_path):
        files = members()
        files["an4/etc/an4_train.transcription"] += b"<s> YES </s> (../../evil)\n"
        self.refuse(tmp_path, write_archive(tmp_path / "a.tgz", files), "an4_train.transcription:4:", "../../evil")

    @pytest.mark.parametrize("sound", [b"", b"garbage" * 300, sphere(tone(1), promised=9999), sphere([])])
    def test_a_damaged_recording(self, tmp_path, sound):
        files = members() | {"an4/wav/an4_clstk/fash/cen1-fash-b.sph": sound}
        self.refuse(tmp_path, write_archive(tmp_path / "a.tgz", files), "cen1-fash-b.sph")

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        archive = write_archive(tmp_path / "a.tgz", members())
        (tmp_path / "file").write_text("")
        result = prepare(archive, "--out", tmp_path / "file" / "data")
        assert_refused(result, "cannot make the folder", "file/data")


def skip_with_other_packages():
    for package in ("espeakng-loader", "numpy", "scipy"):
        if f"{package}=={version(package)}" not in (PROJECT / "constraints.txt").read_text().splitlines():
            pytest.skip(f"the bytes are promised for the {package} of constraints.txt, not for {version(package)}")


def digest_of(folder):
    digest = hashlib.sha256()
    for name, content in sorted(files_in(folder).items()):
        digest.update(name.encode() + content)
    return digest.hexdigest()


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic")
    result = prepare(*SMALL, "--out", folder)
    assert result.returncode == 0, result.stderr
    assert "15 utterances" in result.stdout
    return folder


class TestSynthetic:
    def test_is_16_khz_mono_with_transcripts_of_the_models_labels(self, small_corpus):
        lines = manifest(small_corpus, "train") + manifest(small_corpus, "val")
        assert len(lines) == 15
        for line in lines:
            audio, text = line.split(",")
            with wave.open(str(small_corpus / audio)) as sound:
                assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (16000, 1, 2)
                assert 0.3 < sound.getnframes() / 16000 < 5
            words = (small_corpus / text).read_text().rstrip("\n")
            assert words
            assert set(words) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ' ")

    def test_has_the_bytes_of_its_version(self, small_corpus):
        """Whoever means to change the corpus raises its version in corpus/synthetic.py too."""
        skip_with_other_packages()
        assert (synthetic.EASY.version, digest_of(small_corpus)) == BYTES_OF_VERSION

    def test_an_utterance_does_not_depend_on_those_before_it(self, small_corpus, tmp_path):
        prepare(*SMALL, "--out", tmp_path)
        gone = sorted(tmp_path.rglob("*.wav"))[1::3]
        for path in gone:
            path.unlink()
        assert prepare(*SMALL, "--out", tmp_path).returncode == 0
        assert len(gone) == 5
        assert files_in(tmp_path) == files_in(small_corpus)

    def test_goes_on_after_ctrl_c(self, small_corpus, tmp_path):
        process = subprocess.Popen([*PREPARE, *SMALL, "--out", tmp_path], stderr=subprocess.PIPE, text=True)
        while not list(tmp_path.rglob("*.wav")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.strip() == "interrupted; what is written is whole: run the same command again to go on."
        left = files_in(tmp_path)
        assert not [name for name in left if name.endswith((".csv", ".part"))]
        whole = files_in(small_corpus)
        assert left.items() <= whole.items()
        assert prepare(*SMALL, "--out", tmp_path).returncode == 0
        assert files_in(tmp_path) == whole

    def test_a_second_run_finds_it_complete(self, small_corpus):
        result = prepare(*SMALL, "--out", small_corpus)
        assert result.returncode == 0
        assert "complete already" in result.stdout

    def test_a_manifest_that_is_not_text_is_made_again(self, small_corpus, tmp_path):
        folder = shutil.copytree(small_corpus, tmp_path / "data")
        (folder / "an4_train_manifest.csv").write_bytes(b"\xff\xfe")
        result = prepare(*SMALL, "--out", folder)
        assert result.returncode == 0, result.stderr
        assert files_in(folder) == files_in(small_corpus)

    def test_the_shorter_corpus_is_the_beginning_of_the_longer(self, small_corpus, tmp_path):
        prepare("--synthetic", "--train-utterances", 2, "--test-utterances", 1, "--out", tmp_path)
        sounds = {name: content for name, content in files_in(tmp_path).items() if name.endswith((".wav", ".txt"))}
        assert len(sounds) == 6
        assert sounds.items() <= files_in(small_corpus).items()

    def test_never_overwrites_another_corpus(self, small_corpus, tmp_path):
        before = files_in(small_corpus)
        archive = write_archive(tmp_path / "a.tgz", members())
        assert_refused(prepare(archive, "--out", small_corpus), "synthetic", "--out", "remove")
        assert files_in(small_corpus) == before

    @pytest.mark.parametrize("trace", ["an4_train_manifest.csv", "an4/train/wav/mine.wav"])
    def test_never_overwrites_what_somebody_put_there(self, tmp_path, trace):
        (tmp_path / trace).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / trace).write_text("mine")
        assert_refused(prepare(*SMALL, "--out", tmp_path), "another corpus", "--out")
        assert files_in(tmp_path) == {trace: b"mine"}

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        assert_refused(prepare(*SMALL, "--out", tmp_path / "file" / "data"), "cannot make the folder")

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["a.tgz", "--synthetic"],
            ["a.tgz", "--hard"],
            ["--hard"],
            ["--synthetic", "--train-utterances", "0"],
            ["--nonsense"],
        ],
    )
    def test_options_that_make_no_sense(self, arguments):
        result = prepare(*arguments)
        assert result.returncode == 2
        assert "error: " in result.stderr
        assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def hard_corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hard")
    result = prepare(*HARD, "--out", folder)
    assert result.returncode == 0, result.stderr
    return folder


class TestHard:
    def test_has_the_bytes_of_its_version(self, hard_corpus):
        skip_with_other_packages()
        assert (synthetic.HARD.version, digest_of(hard_corpus)) == BYTES_OF_HARD_VERSION

    def test_is_never_mixed_with_the_easy_one(self, hard_corpus, small_corpus):
        before = files_in(hard_corpus)
        assert_refused(prepare("--synthetic", "--out", hard_corpus), "another corpus (synthetic, hard, version 1,")
        assert_refused(prepare(*HARD, "--out", small_corpus), "another corpus (synthetic, version 4,")
        assert files_in(hard_corpus) == before

    def test_validation_has_voices_that_training_has_not(self):
        train, test = ({voice for voice, *_ in synthetic.HARD.speakers[split].values()} for split in ("train", "test"))
        assert train & test == set()

    def test_an_utterance_does_not_depend_on_those_before_it(self, hard_corpus, tmp_path):
        folder = shutil.copytree(hard_corpus, tmp_path / "data")
        sorted(folder.rglob("*.wav"))[-1].unlink()
        assert prepare(*HARD, "--out", folder).returncode == 0
        assert files_in(folder) == files_in(hard_corpus)
