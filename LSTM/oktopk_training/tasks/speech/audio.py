"""From an audio file to the spectrogram that the model sees, and the augmentation on the way."""

import io
import struct
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import torch

from ...inputs import check_file

SAMPLE_RATE = 16_000
WINDOW = 320  # samples: 20 ms
HOP = 160  # samples: 10 ms
BINS = WINDOW // 2 + 1
_HAMMING = torch.hamming_window(WINDOW, periodic=True)
LONGEST = 600  # seconds: batches of longer utterances need more memory than most machines have
MOST_SAMPLES = LONGEST * 48_000 * 2  # of all channels
LOWEST_RATE = 4_000  # Hz: speech holds little below 2 kHz, and a header that says less is wrong
_HIGHEST_RATE = 400_000  # Hz, above any recorder's
_MOST_BYTES = 8 * MOST_SAMPLES  # and what else may be in a file
_MOST_CHUNKS = 1000  # of a WAV file before its samples
_OPEN_LENGTH = 0x7FFF0000  # programs that write to a pipe put such a number for a length that they do not know
_SILENCE = 1e-8  # a standard deviation below this is a silent file, not a scale to divide by


class UnfitAudio(Exception):
    """It is not audio, or not such as can be learnt from: the message says what it is or has."""


def read(path, expected=None):
    """The samples as float32 in [-1, 1], one channel, at SAMPLE_RATE: as many as `expected`, if that is given."""
    with opened(path) as file:
        rate = file.samplerate
        _insist(expected, file.frames, rate)
        with np.errstate(over="ignore", invalid="ignore"):  # float files can hold anything
            samples = file.read(dtype="float32", always_2d=True).mean(axis=1)
    _insist(expected, len(samples), rate)  # some headers promise more than there is
    if rate != SAMPLE_RATE and np.isfinite(samples).all():  # what is no number is left to whoever looks at the spectrum
        import librosa  # takes a second to import, and most corpora never need it

        samples = librosa.resample(samples, orig_sr=rate, target_sr=SAMPLE_RATE)
    return samples


@contextmanager
def opened(path):
    """A `SoundFile` of what can be learnt from. What is wrong with it is an OSError or UnfitAudio."""
    size = check_file(path, _MOST_BYTES)
    with open(path, "rb", buffering=0) as file:
        streamed = _with_its_length(file, size)
        file.seek(0)
        try:
            # Not by its name: soundfile asks for the rate of whatever is called .raw.
            with soundfile.SoundFile(streamed or file.fileno(), closefd=False) as sound:
                _check(sound)
                yield sound
        except soundfile.LibsndfileError as error:
            raise UnfitAudio(f"is not audio that can be read ({error.error_string})" if size else "is empty") from None


def _with_its_length(file, size):
    """A copy that says its length, of a WAV file that was written to a pipe and so does not; None of others."""
    place = _open_length(file, size)
    if place is None:
        return None
    content = bytearray(size)
    file.seek(0)
    del content[file.readinto(content) :]
    struct.pack_into("<I", content, 4, len(content) - 8)
    struct.pack_into("<I", content, place, len(content) - place - 4)
    return io.BytesIO(content)


def _open_length(file, size):
    """Where a WAV file has the number of its bytes of samples, if it does not tell that number; None otherwise."""
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return None
    is_whole = int.from_bytes(head[4:8], "little") + 8 == size
    for _ in range(_MOST_CHUNKS):
        name, length = file.read(4), int.from_bytes(file.read(4), "little")
        if name == b"data":
            is_open = length >= _OPEN_LENGTH or (length == 0 and not is_whole)
            return file.tell() - 4 if is_open and file.tell() < size else None
        file.seek(length + length % 2, io.SEEK_CUR)
    return None


def _check(sound):
    """From the header: a short file may hold hours of silence, or become long where it is resampled."""
    if not LOWEST_RATE <= sound.samplerate <= _HIGHEST_RATE:
        raise UnfitAudio(f"is at {sound.samplerate} Hz, which is no rate for speech")
    if max(sound.frames * sound.channels, length(sound.frames, sound.samplerate)) > MOST_SAMPLES:
        raise UnfitAudio(f"has {sound.frames} samples in {sound.channels} channels, too many to be read at once")


def _insist(expected, frames, rate):
    if expected is not None and length(frames, rate) != expected:
        raise UnfitAudio(f"has {length(frames, rate) or 'no'} samples, and had {expected}")


def length(frames, rate):
    """Samples at SAMPLE_RATE that so many at another rate become."""
    return -(-frames * SAMPLE_RATE // rate)


def magnitudes(samples, hop=HOP):
    """|STFT| of bins x frames, as librosa.stft(n_fft=320, hop_length=hop, window="hamming") has it."""
    transform = torch.stft(
        torch.from_numpy(samples), WINDOW, hop, window=_HAMMING, center=True, pad_mode="constant", return_complex=True
    )
    return transform.abs()


def spectrogram(samples, hop=HOP):
    """log1p magnitudes of bins x frames, with mean 0 and variance 1 over the utterance."""
    loudness = magnitudes(samples, hop).log1p()
    return (loudness - loudness.mean()) / loudness.std(correction=0).clamp_min(_SILENCE)


def frame_count(samples, hop=HOP):
    return 1 + samples // hop


def output_frames(frames):
    """Frames of the model's output: its first convolution halves their rate, and nothing else changes it."""
    return (frames + 1) // 2


@dataclass(frozen=True)
class Augmentation:
    """Random tempo and gain, and noise where there are recordings of it."""

    tempo: tuple[float, float] = (0.85, 1.15)
    gain_db: tuple[float, float] = (-6.0, 8.0)
    noises: tuple[np.ndarray, ...] = ()
    noise_probability: float = 0.0
    noise_level: float = 0.0  # the loudest, as noise RMS over speech RMS

    def __call__(self, samples, random):
        """The changed samples and the hop to analyse them with.

        A phase vocoder changes the tempo by reading the same spectrum at other moments. We need only magnitudes,
        so a longer hop is that tempo change: free, without artefacts, at the same pitch.
        """
        hop = round(HOP * random.uniform(*self.tempo))
        gain = 10 ** (random.uniform(*self.gain_db) / 20)
        if self.noises and random.random() < self.noise_probability:
            samples = self._with_noise(samples, random)
        return np.float32(gain) * samples, hop

    def _with_noise(self, samples, random):
        noise = self.noises[random.integers(len(self.noises))]
        excerpt = np.take(noise, random.integers(len(noise)) + np.arange(len(samples)), mode="wrap")
        level = random.uniform(0, self.noise_level) * _rms(samples) / max(_rms(excerpt), _SILENCE)
        return samples + np.float32(level) * excerpt


def _rms(samples):
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
