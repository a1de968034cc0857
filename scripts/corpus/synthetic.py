"""A corpus of AN4's size and kinds of text, by speech synthesis: the same bytes every time.

Everything about an utterance follows from SEED, its split and its number, so any part of the corpus can be made,
in any order, and an interrupted run goes on where it stopped.
"""

import random

import numpy as np
from scipy.signal import resample_poly

from corpus import speech
from corpus.layout import Utterance, wav_bytes

# Change VERSION whenever a byte of the corpus changes: a folder with another version in it is then told apart.
VERSION = 1
SEED = 4
TRAIN_UTTERANCES, TEST_UTTERANCES = 948, 130  # as in AN4

SAMPLE_RATE = 16000  # Hz

# Speaker -> (espeak-ng voice, words a minute, pitch 0-99, pitch range 0-99). Test speakers are heard in no training.
SPEAKERS = {
    "train": {
        "mus1": ("gmw/en-US", 138, 40, 50),
        "mus2": ("gmw/en-US+m3", 128, 55, 40),
        "fus1": ("gmw/en-US+f2", 133, 50, 55),
        "fus2": ("gmw/en-US+f3", 143, 60, 45),
        "mgb1": ("gmw/en", 133, 50, 50),
        "fgb1": ("gmw/en+f2", 138, 45, 50),
        "mrp1": ("gmw/en-GB-x-rp", 133, 42, 55),
        "msc1": ("gmw/en-GB-scotland", 128, 48, 50),
    },
    "test": {
        "mus3": ("gmw/en-US", 133, 52, 50),
        "fus3": ("gmw/en-US+f2", 138, 58, 45),
        "mgb2": ("gmw/en", 128, 42, 45),
        "fgb2": ("gmw/en+f2", 133, 52, 50),
    },
}


def _words(text):
    return text.split()


COMMANDS = _words("YES NO GO STOP START HELP ERASE RUBOUT REPEAT ENTER")
TAKES_CODE = _words("ENTER ERASE RUBOUT")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = _words("ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE")
TENS = _words("TWENTY THIRTY FORTY FIFTY SIXTY SEVENTY EIGHTY NINETY")
MONTHS = _words("JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER")
ORDINALS = [
    *_words("FIRST SECOND THIRD FOURTH FIFTH SIXTH SEVENTH EIGHTH NINTH TENTH ELEVENTH TWELFTH THIRTEENTH FOURTEENTH"),
    *_words("FIFTEENTH SIXTEENTH SEVENTEENTH EIGHTEENTH NINETEENTH TWENTIETH THIRTIETH"),
    *(f"TWENTY {unit}" for unit in _words("FIRST SECOND THIRD FIFTH SEVENTH")),
]
NAMES = _words("RANDY MARIA DAVID SUSAN PETER LAURA JACK HELEN BRIAN FRANK WENDY OLIVER QUINN MAX ZOE VICTOR")
PLACES = ["PITTSBURGH", "OAKLAND", "SHADYSIDE", "SQUIRREL HILL", "PENNSYLVANIA", "FIFTH AVENUE", "O'HARA STREET"]

# What espeak-ng must be given where it would not say the word as meant: an article, "roo-bout".
SAID_AS = {"A": "ay", "RUBOUT": "rub out"}

# Noise, silence and level: (least, most), drawn evenly for each utterance.
NOISE_LEVEL = (0.0005, 0.003)  # standard deviation; full scale is 1
PEAK_LEVEL = (0.25, 0.75)
SILENCE = (0.04, 0.12)  # s, before and after
RATE_FACTOR = (0.92, 1.08)
PITCH_SHIFT = (-4, 4)
QUIET = 0.01  # of the peak: what is below at either end is not speech


def identity(train_utterances, test_utterances):
    return f"synthetic, version {VERSION}, {train_utterances} + {test_utterances} utterances"


def utterances(speaker, train_utterances=TRAIN_UTTERANCES, test_utterances=TEST_UTTERANCES):
    """The corpus, or the first so many utterances of its two parts; `speaker` is a running `speech.Speaker`."""
    for split, count in (("train", train_utterances), ("test", test_utterances)):
        for number in range(1, count + 1):
            yield _utterance(speaker, split, number)


def _utterance(speaker, split, number):
    # Only random() promises the same numbers in every version of Python, so nothing else of Random is used.
    rng = random.Random(f"{SEED} {split} {number}")
    person, how = _pick(rng, sorted(SPEAKERS[split].items()))
    transcript = _text(rng)
    name = f"{split}{number:04d}-{person}"
    return Utterance(split, name, transcript, lambda: _render(speaker, transcript, how, rng, number))


def _pick(rng, choices):
    return choices[int(rng.random() * len(choices))]


def _between(rng, bounds):
    low, high = bounds
    return low + (high - low) * rng.random()


def _text(rng):
    kind = _pick(rng, KINDS_OF_TEXT)
    return kind(rng)


def _command(rng):
    return _pick(rng, COMMANDS)


def _code(rng):
    """ENTER SIX; RUBOUT G M E F THREE NINE."""
    letters = [_pick(rng, LETTERS) for _ in range(int(4 * rng.random()))]
    digits = [_pick(rng, DIGITS) for _ in range(1 + int(2 * rng.random()))]
    return " ".join([_pick(rng, TAKES_CODE), *letters, *digits])


def _digits(rng):
    return " ".join(_pick(rng, DIGITS) for _ in range(3 + int(3 * rng.random())))


def _number(rng):
    """FORTY TWO; SIX HUNDRED FORTY TWO."""
    words = [_pick(rng, TENS), _pick(rng, DIGITS[1:])]
    return " ".join(words if rng.random() < 0.5 else [_pick(rng, DIGITS[1:]), "HUNDRED", *words])


def _spelled(rng):
    return " ".join(_pick(rng, NAMES))


def _name(rng):
    return _pick(rng, NAMES + PLACES)


def _date(rng):
    """MAY FIRST; JUNE TWENTY SEVENTH NINETEEN SIXTY ONE."""
    date = f"{_pick(rng, MONTHS)} {_pick(rng, ORDINALS)}"
    return date if rng.random() < 0.6 else f"{date} NINETEEN {_pick(rng, TENS)} {_pick(rng, DIGITS[1:])}"


# A kind that stands here twice is twice as frequent.
KINDS_OF_TEXT = [_command, _code, _code, _digits, _digits, _number, _spelled, _spelled, _name, _date, _date]


def _render(speaker, transcript, how, rng, number):
    voice, rate, pitch, pitch_range = how
    said = " ".join(SAID_AS.get(word, word if len(word) == 1 else word.lower()) for word in transcript.split())
    pcm = speaker.say(
        said,
        voice,
        rate=round(rate * _between(rng, RATE_FACTOR)),
        pitch=round(pitch + _between(rng, PITCH_SHIFT)),
        pitch_range=pitch_range,
    )
    sound = resample_poly(np.frombuffer(pcm, "<i2").astype(np.float64), SAMPLE_RATE // 50, speech.SAMPLE_RATE // 50)
    sound = _trimmed(sound) * (_between(rng, PEAK_LEVEL) / np.abs(sound).max())
    silence_before, silence_after = (round(SAMPLE_RATE * _between(rng, SILENCE)) for _ in range(2))
    sound = np.pad(sound, (silence_before, silence_after))
    noise = np.random.Generator(np.random.PCG64([SEED, number])).standard_normal(len(sound))
    sound += _between(rng, NOISE_LEVEL) * noise
    return wav_bytes(np.rint(sound.clip(-1, 1) * 32767).astype("<i2").tobytes(), SAMPLE_RATE)


def _trimmed(sound):
    loud = np.flatnonzero(np.abs(sound) > QUIET * np.abs(sound).max())
    return sound[loud[0] : loud[-1] + 1]
