"""CMU's an4_sphere.tar.gz, or any part of it. The archive is not trusted: it is looked through before anything is
written, and nothing in it becomes a path; audio and text are read from its members and stored under our own names.

    …/etc/an4_{train,test}.transcription             <s> ENTER SIX </s> (an251-fash-b)
    …/wav/{an4_clstk,an4test_clstk}/<speaker>/an251-fash-b.sph
"""

import hashlib
import io
import re
import tarfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import soundfile

from corpus.layout import Utterance, wav_bytes
from oktopk_training.errors import UserError

TRANSCRIPTIONS = {"train": "an4_train.transcription", "test": "an4_test.transcription"}
AUDIO_FOLDERS = {"an4_clstk": "train", "an4test_clstk": "test"}
TRANSCRIPTION_LINE = re.compile(r"(?:<s>)?(?P<words>[^<>()]*)(?:</s>)?\s*\((?P<name>[A-Za-z0-9_-]+)\)")
SAMPLES_PROMISED = re.compile(rb"sample_count -i (\d+)")

# Far above anything in AN4, far below what would fill a memory.
MAX_MEMBER_BYTES = 64 << 20


class An4Archive:
    """Looks through the whole archive at once: `contents` after that is known to be readable."""

    def __init__(self, path):
        self.path = Path(path)
        self.identity = f"from the archive {self.path.name}, SHA-256 {self._sha256()}"

    def scan(self):
        """Check every member, and say what the archive holds, as `Contents`."""
        transcripts = {}
        audio = set()
        with self._open() as tar:
            for member in tar:
                self._refuse_unsafe(member)
                if split := _split_of_audio(member):
                    self._wav(tar, member)  # a damaged recording is to be found before anything is written
                    audio.add((split, _name(member)))
                elif split := _split_of_transcription(member):
                    transcripts |= self._transcripts(split, member, self._read(tar, member))
            self._refuse_truncated(tar)
        if not transcripts:
            raise UserError(f"{self.path} holds no etc/{TRANSCRIPTIONS['train']} with words: is it CMU's AN4 archive?")
        usable = {key: words for key, words in transcripts.items() if key in audio}
        if not usable:
            raise UserError(f"{self.path} has transcripts, but the audio (wav/an4_clstk/*/*.sph) of none of them.")
        return Contents(usable, len(transcripts) - len(usable), len(audio - transcripts.keys()))

    def utterances(self, contents):
        """The usable utterances, in the order in which their audio lies in the archive."""
        pending = dict(contents.transcripts)
        with self._open() as tar:
            for member in tar:
                key = _split_of_audio(member), _name(member)
                if key in pending:
                    yield Utterance(*key, pending.pop(key), lambda member=member: self._wav(tar, member))

    def _sha256(self):
        try:
            with open(self.path, "rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise UserError(f"cannot read the archive {self.path}: {error.strerror}.") from error
        return digest.hexdigest()

    @contextmanager
    def _open(self):
        try:
            with tarfile.open(self.path, "r:*") as tar:
                yield tar
        except EOFError as error:
            raise self._truncated() from error
        except (tarfile.TarError, zlib.error, OSError) as error:
            if "unexpected end" in str(error):
                raise self._truncated() from error
            raise UserError(f"{self.path} is not a tar archive, or is damaged; copy or download it again.") from error

    def _truncated(self):
        return UserError(f"{self.path} is truncated: it ends in the middle; copy or download it again.")

    def _refuse_unsafe(self, member):
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{self.path}: refused, since its member {member.name!r} points outside the archive.")
        if not (member.isreg() or member.isdir()):
            kind = "a link" if member.issym() or member.islnk() else "a device"
            raise UserError(f"{self.path}: refused, since its member {member.name!r} is {kind}.")
        if member.size > MAX_MEMBER_BYTES:
            raise UserError(
                f"{self.path}: refused, since its member {member.name!r} has {member.size} bytes; "
                f"nothing in AN4 comes near {MAX_MEMBER_BYTES}."
            )

    def _refuse_truncated(self, tar):
        # tarfile takes a header that is cut off or damaged for the end; the true end is a block of zeros.
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise self._truncated()
        while tar.fileobj.read(1 << 20):  # a compressed file has its checksum at the end
            pass

    def _transcripts(self, split, member, content):
        transcripts = {}
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            if not line.strip():
                continue
            match = TRANSCRIPTION_LINE.fullmatch(line.strip())
            if not match:
                raise UserError(f"{self.path}: {member.name}:{number}: expected `WORDS (utterance)`, found {line!r}.")
            if words := " ".join(match["words"].upper().split()):
                transcripts[split, match["name"]] = words
        return transcripts

    def _wav(self, tar, member):
        content = self._read(tar, member)
        try:
            samples, rate = soundfile.read(io.BytesIO(content), dtype="int16", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise UserError(
                f"{self.path}: the audio of {member.name} cannot be read ({error.error_string})."
            ) from error
        promised = SAMPLES_PROMISED.search(content)  # libsndfile reads a file that is cut off without a word
        if len(samples) < max(1, int(promised[1]) if promised else 0):
            raise UserError(f"{self.path}: the audio of {member.name} is empty or cut off.")
        return wav_bytes(samples[:, 0].astype("<i2").tobytes(), rate)

    def _read(self, tar, member):
        return tar.extractfile(member).read()


@dataclass(frozen=True)
class Contents:
    transcripts: dict  # (split, utterance) -> words, for each utterance that has audio too
    without_audio: int
    without_transcript: int


def _name(member):
    return PurePosixPath(member.name).stem


def _split_of_audio(member):
    path = PurePosixPath(member.name)
    is_audio = member.isreg() and path.suffix == ".sph" and len(path.parts) >= 3
    return AUDIO_FOLDERS.get(path.parts[-3]) if is_audio else None


def _split_of_transcription(member):
    path = PurePosixPath(member.name)
    return next((split for split, name in TRANSCRIPTIONS.items() if member.isreg() and path.name == name), None)
