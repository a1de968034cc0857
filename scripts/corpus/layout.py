"""The corpus on disk, and the order in which it is written so that an interruption never leaves a wrong one.

    FOLDER/an4_train_manifest.csv       lines `audio path,transcript path`, relative to FOLDER
    FOLDER/an4_val_manifest.csv
    FOLDER/an4/corpus.json              what the corpus is: written first
    FOLDER/an4/{train,test}/wav/*.wav
    FOLDER/an4/{train,test}/txt/*.txt

The manifests are written last: a folder that has both holds a whole corpus.
"""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, make_folder
from oktopk_training.inputs import MOST_OF_A_MANIFEST, comma_separated, read_json, read_lines

MANIFESTS = {"train": "an4_train_manifest.csv", "test": "an4_val_manifest.csv"}
SAMPLE_BYTES = 2  # 16-bit PCM
PCM = 1
WAV_HEADER = struct.Struct("<4sI8sIHHIIHH4sI")  # Python's own wave module takes a Ctrl-C badly
MOST_OF_AN_IDENTITY = 1 << 16  # bytes of a file that says which corpus a folder holds


@dataclass(frozen=True)
class Utterance:
    """`make_wav` is called only if the audio is not there yet, and returns the bytes of a WAV file."""

    split: str  # "train" or "test"
    name: str
    transcript: str
    make_wav: Callable[[], bytes] = field(repr=False)

    @property
    def audio(self):
        return f"an4/{self.split}/wav/{self.name}.wav"

    @property
    def text(self):
        return f"an4/{self.split}/txt/{self.name}.txt"


class Corpus:
    """One corpus in one folder; `identity` names exactly what it holds, so that it is never mixed with another."""

    def __init__(self, folder, identity):
        self.folder = Path(folder)
        self.identity = identity

    def is_complete(self):
        """Whether this very corpus, all of it, is there. A folder that holds another one is a UserError."""
        self._refuse_another_corpus()
        manifests = [self.folder / name for name in MANIFESTS.values()]
        return all(path.is_file() for path in manifests) and all(map(_is_whole, manifests))

    def write(self, utterances):
        """Write each utterance of an iterable, yielding it when its files are there, and at the end the manifests."""
        self._refuse_another_corpus()
        for split in MANIFESTS:
            for kind in ("wav", "txt"):
                make_folder(self.folder / "an4" / split / kind)
        with atomic_write(self._identity_file) as file:
            json.dump({"corpus": self.identity}, file)
        for name in MANIFESTS.values():
            (self.folder / name).unlink(missing_ok=True)
        lines = {split: [] for split in MANIFESTS}
        for utterance in utterances:
            self._write_if_missing(utterance.audio, utterance.make_wav)
            self._write_if_missing(utterance.text, lambda transcript=utterance.transcript: f"{transcript}\n".encode())
            lines[utterance.split].append(f"{utterance.audio},{utterance.text}\n")
            yield utterance
        for split, name in MANIFESTS.items():
            with atomic_write(self.folder / name) as file:
                file.writelines(sorted(lines[split]))

    def seconds(self, utterance):
        with open(self.folder / utterance.audio, "rb") as audio:
            *_, bytes_a_second, _, _, _, length = WAV_HEADER.unpack(audio.read(WAV_HEADER.size))
        return length / bytes_a_second

    @property
    def _identity_file(self):
        return self.folder / "an4" / "corpus.json"

    def _write_if_missing(self, name, make_content):
        if not (self.folder / name).exists():  # files appear whole, so what is there needs no second look
            content = make_content()
            with atomic_write(self.folder / name, "wb") as file:
                file.write(content)

    def _refuse_another_corpus(self):
        there = self._corpus_there()
        if there not in (None, self.identity):
            raise UserError(
                f"{self.folder} already holds another corpus ({there}); choose another folder with --out, "
                f"or remove {self.folder / 'an4'} and {self.folder}/an4_*_manifest.csv."
            )

    def _corpus_there(self):
        try:
            return read_json(self._identity_file, MOST_OF_AN_IDENTITY)["corpus"]
        except (FileNotFoundError, NotADirectoryError):
            traces = [self.folder / name for name in ("an4", *MANIFESTS.values())]
            return "one that this script did not make" if any(path.exists() for path in traces) else None
        except (OSError, ValueError, KeyError, TypeError):
            return f"{self._identity_file} is not readable"


def wav_bytes(pcm, sample_rate):
    """A mono WAV file, from 16-bit little-endian samples; its bytes depend on nothing else."""
    size, rate = WAV_HEADER.size - 8 + len(pcm), sample_rate * SAMPLE_BYTES
    form = 16, PCM, 1, sample_rate, rate, SAMPLE_BYTES, 8 * SAMPLE_BYTES
    return WAV_HEADER.pack(b"RIFF", size, b"WAVEfmt ", *form, b"data", len(pcm)) + pcm


def _is_whole(manifest):
    try:
        lines = read_lines(manifest, MOST_OF_A_MANIFEST)
        return all(os.path.isfile(manifest.parent / name) for line in lines for name in comma_separated(line))
    except OSError:  # no manifest of ours
        return False
