"""Manifests: lines of `audio path,transcript path`, relative to the manifest's own folder.

Everything that a run would trip over later is checked here, from headers alone, before it starts.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import soundfile

from ...errors import UserError
from . import audio, text

log = logging.getLogger("oktopk")

_LOWEST_RATE = 4000  # Hz: speech holds little below 2 kHz, and a header that says less is wrong
_LONGEST = 600  # seconds: batches of longer utterances need more memory than most machines have
_BLOCK = 1 << 16  # samples read at a time while counting those of a file whose header may lie


@dataclass(frozen=True)
class Utterance:
    audio: Path
    text: str
    samples: int  # at audio.SAMPLE_RATE


class _Fault(Exception):
    """What is wrong with one line, and the remedy."""


def load_manifest(path):
    """The utterances of a manifest, each known to be readable and trainable."""
    path = Path(path)
    utterances, faults, remarks = [], [], set()
    resampled = mixed = 0
    for number, line in _lines(path):
        try:
            utterance, header = _utterance(line, path.parent)
        except _Fault as fault:
            faults.append(f"{path}:{number}: {fault}")
            continue
        utterances.append(utterance)
        resampled += header.samplerate != audio.SAMPLE_RATE
        mixed += header.channels > 1
    if faults:
        others = f" ({len(faults) - 1} other lines have faults too)" if len(faults) > 1 else ""
        raise UserError(faults[0] + others)
    if not utterances:
        raise UserError(
            f"{path}: the manifest is empty; make it with scripts/prepare_an4.py or scripts/fix_manifest.py"
        )
    if resampled:
        remarks.add(f"{resampled} files are not at {audio.SAMPLE_RATE} Hz and are resampled on each reading")
    if mixed:
        remarks.add(f"{mixed} files have several channels and are mixed down")
    for remark in sorted(remarks):
        log.warning("%s: %s", path, remark)
    return utterances


def _lines(path):
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such manifest; scripts/prepare_an4.py makes the data, --data-dir says where it is"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the manifest cannot be read ({error}); make it again") from None
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            yield number, line


def _utterance(line, folder):
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 2 or not all(fields):
        raise _Fault(f"expected `audio path,transcript path`, found {line.strip()!r}; correct the line or remove it")
    sound, transcript = (folder / field for field in fields)
    header = _header(sound)
    spoken = _transcript(transcript)
    if header.samplerate < _LOWEST_RATE:
        raise _Fault(f"{sound} is at {header.samplerate} Hz, too few for speech; replace it or remove the line")
    samples = -(-header.frames * audio.SAMPLE_RATE // header.samplerate)
    if samples > _LONGEST * audio.SAMPLE_RATE:
        raise _Fault(f"{sound} lasts longer than {_LONGEST // 60} minutes; cut it into sentences or remove the line")
    frames, needed = audio.output_frames(audio.frame_count(samples)), text.frames_needed(spoken)
    if frames < needed:
        raise _Fault(
            f"the transcript {transcript} needs {needed} frames of the model's output, but {sound} gives {frames}; "
            "check that they belong together, or remove the line"
        )
    return Utterance(sound, spoken, samples), header


def _header(path):
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise _Fault(
            f"the audio file {path} cannot be read ({error.strerror}); correct the line or remove it"
        ) from None
    if size is None:
        raise _Fault(f"there is no audio file {path}; scripts/fix_manifest.py corrects moved paths")
    if size == 0:
        raise _Fault(f"the audio file {path} is empty; fetch it again or remove the line")
    try:
        header = soundfile.info(str(path), verbose=True)
        truncated = _is_truncated(path, header)
    except soundfile.LibsndfileError as error:
        raise _Fault(
            f"{path} is not audio that can be read ({error.error_string}); replace it or remove the line"
        ) from None
    if truncated:
        raise _Fault(f"the audio file {path} is truncated; fetch it again or remove the line")
    if header.frames == 0:
        raise _Fault(f"the audio file {path} has no samples; fetch it again or remove the line")
    return header


def _is_truncated(path, header):
    """libsndfile cuts a WAV's length down to what is there and says so only in its log; other formats are counted."""
    if header.format in ("WAV", "WAVEX"):
        return "should be" in header.extra_info
    with soundfile.SoundFile(path) as file:
        return sum(len(block) for block in file.blocks(_BLOCK)) < header.frames


def _transcript(path):
    try:
        spoken = text.normalise(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise _Fault(f"there is no transcript {path}; scripts/fix_manifest.py corrects moved paths") from None
    except (OSError, ValueError) as error:  # of a name that holds a NUL, and of what is not UTF-8
        raise _Fault(f"the transcript {path} cannot be read ({error}); write it as plain text") from None
    if not spoken:
        raise _Fault(f"the transcript {path} is empty; write what is said, or remove the line")
    unknown = text.unknown_characters(spoken)
    if unknown:
        listed = " ".join(repr(character) for character in unknown)
        raise _Fault(f"the transcript {path} contains {listed}; only A-Z, ' and spaces can be learnt: spell these out")
    return spoken
