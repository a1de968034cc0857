"""CMU's an4_sphere.tar.gz, or any part of it. The archive is not trusted: it is looked through before anything is
written, and nothing in it becomes a path; audio and text are read from its members and stored under our own names.

    …/etc/an4_{train,test}.transcription             <s> ENTER SIX </s> (an251-fash-b)
    …/wav/{an4_clstk,an4test_clstk}/<speaker>/an251-fash-b.sph
"""

import hashlib
import io
import re
import struct
import tarfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import soundfile

from corpus.layout import SAMPLE_BYTES, Utterance, wav_bytes
from oktopk_training.errors import UserError
from oktopk_training.inputs import check_file, quoted

TRANSCRIPTIONS = {"train": "an4_train.transcription", "test": "an4_test.transcription"}
AUDIO_FOLDERS = {"an4_clstk": "train", "an4test_clstk": "test"}
TRANSCRIPTION_LINE = re.compile(r"(?:<s>)?(?P<words>[^<>()]*)(?:</s>\s*)?\((?P<name>[A-Za-z0-9_-]{1,100})\)")
SAMPLES_PROMISED = re.compile(rb"sample_count -i (\d{1,18})")

# Far above anything in AN4, far below what would fill a memory: a few bytes of gzip can stand for thousands.
MAX_MEMBER_BYTES = 64 << 20
MAX_TRANSCRIPTION_BYTES = 4 << 20
MAX_HEADER_BYTES = 64 << 10  # of a header that only says more about the member after it
MAX_MEMBERS = 20_000
MAX_BYTES = 1 << 30  # unpacked
MODES = {b"\x1f\x8b": "r:gz", b"BZ": "r:bz2"}  # by how a file begins
# tarfile and what it decompresses with were not written for damaged files: they can end with any of these.
OF_DAMAGED_ARCHIVES = (
    *(tarfile.TarError, zlib.error, struct.error, OSError, ValueError, LookupError, ArithmeticError),
    *(RuntimeError, TypeError, AttributeError, MemoryError),
)


class Refused(Exception):
    """A header that nothing in AN4 has; the message says what it is."""


class Member(tarfile.TarInfo):
    """tarfile reads what describes a member at any length, before anybody can look at it."""

    def _proc_member(self, tar):
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        describes = not (self.isreg() or self.isdir() or self.issym() or self.islnk() or self.isdev())
        if self.size < 0 or (describes and self.size > MAX_HEADER_BYTES):
            raise Refused(f"it has a header of {self.size} bytes")
        return super()._proc_member(tar)

    def _refuse_sparse(self, *_):
        raise Refused("it has a sparse file")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


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
            for number, member in enumerate(tar, start=1):
                self._refuse_unsafe(member, number)
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
            check_file(self.path)
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
            with open(self.path, "rb") as file:
                mode = MODES.get(file.read(2), "r:")
            with tarfile.open(self.path, mode, tarinfo=Member) as tar:
                yield tar
        except Refused as error:
            raise UserError(f"{self.path}: refused, since {error}; nothing in AN4 has one.") from error
        except EOFError as error:
            raise self._truncated() from error
        except OF_DAMAGED_ARCHIVES as error:
            if "unexpected end" in str(error):
                raise self._truncated() from error
            raise UserError(f"{self.path} is not a tar archive, or is damaged; copy or download it again.") from error

    def _truncated(self):
        return UserError(f"{self.path} is truncated: it ends in the middle; copy or download it again.")

    def _refuse_unsafe(self, member, number):
        path, name = PurePosixPath(member.name), quoted(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{self.path}: refused, since its member {name} points outside the archive.")
        if not (member.isreg() or member.isdir()):
            kind = "a link" if member.issym() or member.islnk() else "a device"
            raise UserError(f"{self.path}: refused, since its member {name} is {kind}.")
        most = MAX_TRANSCRIPTION_BYTES if _split_of_transcription(member) else MAX_MEMBER_BYTES
        if not 0 <= member.size <= most:
            raise UserError(
                f"{self.path}: refused, since its member {name} has {member.size} bytes; "
                f"nothing in AN4 comes near {most}."
            )
        if number > MAX_MEMBERS or member.offset_data + member.size > MAX_BYTES:
            raise UserError(
                f"{self.path}: refused, since it holds more than {MAX_MEMBERS} members or {MAX_BYTES} bytes; "
                "AN4 comes near neither."
            )

    def _refuse_truncated(self, tar):
        # tarfile takes a header that is cut off or damaged for the end; the true end is a block of zeros.
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise self._truncated()
        while tar.fileobj.read(1 << 20):  # a compressed file has its checksum at the end
            if tar.fileobj.tell() > MAX_BYTES:
                raise UserError(f"{self.path}: refused, since what follows its last member never ends.")

    def _transcripts(self, split, member, content):
        transcripts = {}
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            if not line.strip():
                continue
            match = TRANSCRIPTION_LINE.fullmatch(line.strip())
            if not match:
                place = f"{self.path}: {PurePosixPath(member.name).name}:{number}"
                raise UserError(f"{place}: expected `WORDS (utterance)`, found {quoted(line)}.")
            if words := " ".join(match["words"].upper().split()):
                transcripts[split, match["name"]] = words
        return transcripts

    def _wav(self, tar, member):
        content = self._read(tar, member)
        try:
            with soundfile.SoundFile(io.BytesIO(content)) as sound:
                promised = SAMPLES_PROMISED.search(content)  # libsndfile reads a file that is cut off without a word
                fewest = max(1, int(promised[1]) if promised else 0)
                if not fewest <= sound.frames <= MAX_MEMBER_BYTES // SAMPLE_BYTES // sound.channels:
                    raise UserError(
                        f"{self.path}: the audio of {quoted(member.name)} is empty, cut off or far too long."
                    )
                samples, rate = sound.read(dtype="int16", always_2d=True), sound.samplerate
        except soundfile.LibsndfileError as error:
            raise UserError(
                f"{self.path}: the audio of {quoted(member.name)} cannot be read ({error.error_string})."
            ) from error
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
