"""Manifests: lines of `audio path,transcript path`, relative to the manifest's own folder.

Everything that a run would trip over later is checked here, from headers alone, before it starts.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ...inputs import MOST_OF_A_MANIFEST, comma_separated, quoted, read_lines, read_text, shown
from . import audio, text

log = logging.getLogger("oktopk")

_LONGEST_TRANSCRIPT = 64 << 10  # bytes: five times what can be said in the longest recording
_MOST_LISTED = 10  # characters that cannot be learnt
_BLOCK = 1 << 16  # samples read at a time while counting those of a file whose header may lie


@dataclass(frozen=True)
class Utterance:
    audio: Path
    text: str
    samples: int  # at audio.SAMPLE_RATE


class _Header(NamedTuple):
    frames: int
    samplerate: int
    channels: int


class _Fault(Exception):
    """What is wrong with one line, and the remedy."""


def load_manifest(path):
    """The utterances of a manifest, each known to be readable and trainable."""
    path = Path(path)
    utterances, fault, remarks = [], None, set()
    resampled = mixed = faults = 0
    for number, line in _lines(path):
        try:
            utterance, header = _utterance(line, path.parent)
        except _Fault as found:
            fault = fault or f"{path}:{number}: {found}"
            faults += 1
            continue
        utterances.append(utterance)
        resampled += header.samplerate != audio.SAMPLE_RATE
        mixed += header.channels > 1
    if fault:
        raise UserError(fault + (f" ({faults - 1} other lines have faults too)" if faults > 1 else ""))
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
        for number, line in enumerate(read_lines(path, MOST_OF_A_MANIFEST), start=1):
            if line.strip():
                yield number, line
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such manifest; scripts/prepare_an4.py makes the data, --data-dir says where it is"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: the manifest cannot be read ({error.strerror}); make it again") from None


def _utterance(line, folder):
    fields = comma_separated(line)
    if len(fields) != 2 or not all(fields):
        raise _Fault(
            f"expected `audio path,transcript path`, found {quoted(line.strip())}; correct the line or remove it"
        )
    sound, transcript = (folder / field for field in fields)
    header = _header(sound)
    spoken = _transcript(transcript)
    samples = audio.length(header.frames, header.samplerate)
    if samples > audio.LONGEST * audio.SAMPLE_RATE:
        raise _Fault(
            f"{sound} lasts longer than {audio.LONGEST // 60} minutes; cut it into sentences or remove the line"
        )
    frames, needed = audio.output_frames(audio.frame_count(samples)), text.frames_needed(spoken)
    if frames < needed:
        raise _Fault(
            f"the transcript {transcript} needs {needed} frames of the model's output, but {sound} gives {frames}; "
            "check that they belong together, or remove the line"
        )
    return Utterance(sound, spoken, samples), header


def _header(path):
    try:
        with audio.opened(path) as file:
            header = _Header(file.frames, file.samplerate, file.channels)
            truncated = _is_truncated(file)
    except FileNotFoundError:
        raise _Fault(f"there is no audio file {shown(path)}; scripts/fix_manifest.py corrects moved paths") from None
    except OSError as error:
        raise _Fault(
            f"the audio file {shown(path)} cannot be read ({error.strerror}); correct the line or remove it"
        ) from None
    except audio.UnfitAudio as error:
        raise _Fault(f"{path} {error}; replace it or remove the line") from None
    if truncated:
        raise _Fault(f"the audio file {path} is truncated; fetch it again or remove the line")
    if header.frames == 0:
        raise _Fault(f"the audio file {path} has no samples; fetch it again or remove the line")
    return header


def _is_truncated(file):
    """libsndfile cuts a WAV's length down to what is there and says so only in its log; other formats are counted."""
    if file.format in ("WAV", "WAVEX"):
        return "should be" in file.extra_info
    return sum(len(block) for block in file.blocks(max(1, _BLOCK // file.channels))) < file.frames


def _transcript(path):
    try:
        spoken = text.normalise(read_text(path, _LONGEST_TRANSCRIPT))
    except FileNotFoundError:
        raise _Fault(f"there is no transcript {shown(path)}; scripts/fix_manifest.py corrects moved paths") from None
    except OSError as error:
        raise _Fault(
            f"the transcript {shown(path)} cannot be read ({error.strerror}); write it as plain text"
        ) from None
    if not spoken:
        raise _Fault(f"the transcript {path} is empty; write what is said, or remove the line")
    unknown = text.unknown_characters(spoken)
    if unknown:
        listed = " ".join(repr(character) for character in unknown[:_MOST_LISTED]) + " ..." * (
            len(unknown) > _MOST_LISTED
        )
        raise _Fault(f"the transcript {path} contains {listed}; only A-Z, ' and spaces can be learnt: spell these out")
    return spoken
