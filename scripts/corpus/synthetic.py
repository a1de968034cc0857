"""Corpora of AN4's size and kinds of text, by speech synthesis: the same bytes every time.

Everything about an utterance follows from the recipe of its corpus, its split and its number, so any part of the corpus
can be made, in any order, and an interrupted run goes on where it stopped.
"""

import random
from dataclasses import dataclass

import numpy as np
from scipy.signal import fftconvolve, resample_poly

from corpus import speech, texts
from corpus.layout import Utterance, wav_bytes

SAMPLE_RATE = 16000  # Hz
QUIET = 0.01  # of the peak: what is below at either end is not speech
WORD_GAP = 1  # see speech.Speaker.say
PITCH_SHIFT = (-3, 3)
PEAK_LEVEL = (0.25, 0.75)  # full scale is 1
SILENCE = (0.06, 0.14)  # s, before and after


@dataclass(frozen=True)
class Recipe:
    """What makes a corpus. Of pairs (least, most) each utterance has a value in between, drawn evenly."""

    name: str
    version: int  # to be raised whenever a byte changes: a folder with another version in it is then told apart
    seed: int
    utterances: tuple  # of training and of test
    speakers: dict  # split -> speaker -> (espeak-ng voice, words a minute, pitch 0-99, pitch range 0-99)
    vocabulary: texts.Vocabulary
    rate_factor: tuple
    noise_level: tuple  # standard deviation
    reverberation: tuple | None = None  # s, until an echo is 60 dB below its sound
    echo_level: tuple | None = None  # of all echoes together, relative to the sound

    def identity(self, train_utterances, test_utterances):
        return f"{self.name}, version {self.version}, {train_utterances} + {test_utterances} utterances"


# Test speakers have voices that are heard in training, at a pitch and a rate that are not.
EASY = Recipe(
    name="synthetic",
    version=4,
    seed=4,
    utterances=(948, 130),  # as in AN4
    speakers={
        "train": {
            "mus1": ("gmw/en-US", 180, 42, 50),
            "mus2": ("gmw/en-US", 170, 58, 45),
            "fus1": ("gmw/en-US+f2", 175, 50, 50),
            "mgb1": ("gmw/en", 175, 50, 50),
            "fgb1": ("gmw/en+f2", 180, 46, 45),
            "msc1": ("gmw/en-GB-scotland", 173, 48, 50),
        },
        "test": {
            "mus3": ("gmw/en-US", 175, 50, 50),
            "fus3": ("gmw/en-US+f2", 177, 54, 45),
            "mgb2": ("gmw/en", 173, 44, 50),
        },
    },
    vocabulary=texts.FEW,
    rate_factor=(0.92, 1.08),
    noise_level=(0.0005, 0.003),
)

# Test speakers have voices and accents that training has not, in rooms, above more noise.
HARD = Recipe(
    name="synthetic, hard",
    version=1,
    seed=5,
    utterances=(948, 390),  # enough words that an error rate of 0.2 is known to 0.01
    speakers={
        "train": {
            "mus1": ("gmw/en-US", 235, 42, 50),
            "mus2": ("gmw/en-US+m3", 225, 52, 45),
            "fus1": ("gmw/en-US+f2", 230, 50, 50),
            "mgb1": ("gmw/en", 230, 50, 50),
            "mgb2": ("gmw/en+m5", 220, 46, 55),
            "fgb1": ("gmw/en+f3", 235, 46, 45),
            "msc1": ("gmw/en-GB-scotland", 225, 48, 50),
            "fsc1": ("gmw/en-GB-scotland+f4", 230, 52, 50),
            "mla1": ("gmw/en-GB-x-gbclan", 225, 45, 50),
            "frp1": ("gmw/en-GB-x-rp+f2", 230, 55, 45),
        },
        "test": {
            "mny1": ("gmw/en-US-nyc+m2", 235, 48, 50),
            "fny1": ("gmw/en-US-nyc+f1", 230, 52, 45),
            "mwm1": ("gmw/en-GB-x-gbcwmd+m4", 225, 50, 50),
            "fgb2": ("gmw/en+f5", 230, 50, 50),
        },
    },
    vocabulary=texts.MANY,
    rate_factor=(0.9, 1.15),
    noise_level=(0.002, 0.012),
    reverberation=(0.15, 0.4),
    echo_level=(0.2, 0.5),
)


def utterances(recipe, speaker, train_utterances, test_utterances):
    """The first so many utterances of the corpus's two parts; `speaker` is a running `speech.Speaker`."""
    for split, count in (("train", train_utterances), ("test", test_utterances)):
        for number in range(1, count + 1):
            yield _utterance(recipe, speaker, split, number)


def _utterance(recipe, speaker, split, number):
    rng = random.Random(f"{recipe.seed} {split} {number}")
    person, voice = texts.pick(rng, sorted(recipe.speakers[split].items()))
    transcript = texts.draw(rng, recipe.vocabulary)
    name = f"{split}{number:04d}-{person}"
    return Utterance(
        split, name, transcript, lambda: _wav(recipe, _spoken(recipe, speaker, transcript, voice, rng), rng)
    )


def _between(rng, bounds):
    low, high = bounds
    return low + (high - low) * rng.random()


def _spoken(recipe, speaker, transcript, voice, rng):
    name, rate, pitch, pitch_range = voice
    pcm = speaker.say(
        texts.said(transcript),
        name,
        rate=round(rate * _between(rng, recipe.rate_factor)),
        pitch=round(pitch + _between(rng, PITCH_SHIFT)),
        pitch_range=pitch_range,
        word_gap=WORD_GAP,
    )
    sound = resample_poly(np.frombuffer(pcm, "<i2").astype(np.float64), SAMPLE_RATE // 50, speech.SAMPLE_RATE // 50)
    return _trimmed(sound)


def _wav(recipe, sound, rng):
    if recipe.reverberation:
        sound = _in_a_room(sound, _between(rng, recipe.reverberation), _between(rng, recipe.echo_level), _noise(rng))
    sound = sound * (_between(rng, PEAK_LEVEL) / np.abs(sound).max())
    silence_before, silence_after = (round(SAMPLE_RATE * _between(rng, SILENCE)) for _ in range(2))
    sound = np.pad(sound, (silence_before, silence_after))
    noise = _noise(rng).standard_normal(len(sound))
    sound += _between(rng, recipe.noise_level) * noise
    return wav_bytes(np.rint(sound.clip(-1, 1) * 32767).astype("<i2").tobytes(), SAMPLE_RATE)


def _noise(rng):
    return np.random.Generator(np.random.PCG64(int(2**32 * rng.random())))


def _in_a_room(sound, seconds, level, noise):
    """The sound and its echoes, which are noise that falls by 60 dB in so many seconds."""
    count = round(SAMPLE_RATE * seconds)
    response = noise.standard_normal(count) * np.logspace(0, -3, count)
    response *= level / np.linalg.norm(response)
    response[0] = 1
    return fftconvolve(sound, response)


def _trimmed(sound):
    loud = np.flatnonzero(np.abs(sound) > QUIET * np.abs(sound).max())
    return sound[loud[0] : loud[-1] + 1]
