"""From an audio file to the spectrogram that the model sees, and the augmentation on the way."""

from dataclasses import dataclass

import numpy as np
import soundfile
import torch

SAMPLE_RATE = 16_000
WINDOW = 320  # samples: 20 ms
HOP = 160  # samples: 10 ms
BINS = WINDOW // 2 + 1
_HAMMING = torch.hamming_window(WINDOW, periodic=True)
_SILENCE = 1e-8  # a standard deviation below this is a silent file, not a scale to divide by


def read(path):
    """The samples as float32 in [-1, 1], one channel, at SAMPLE_RATE."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    samples = samples.mean(axis=1)
    if rate != SAMPLE_RATE:
        import librosa  # takes a second to import, and most corpora never need it

        samples = librosa.resample(samples, orig_sr=rate, target_sr=SAMPLE_RATE)
    return samples


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
