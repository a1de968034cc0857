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
VERSION = 4
SEED = 4
TRAIN_UTTERANCES, TEST_UTTERANCES = 948, 130  # as in AN4

SAMPLE_RATE = 16000  # Hz

# Speaker -> (espeak-ng voice, words a minute, pitch 0-99, pitch range 0-99).
# Test speakers have voices that are heard in training, at a pitch and a rate that are not.
SPEAKERS = {
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
}


def _words(text):
    return text.split()


# Few words that return often, said fast: a model of 256 x 3 is to learn them in 12 epochs.
COMMANDS = _words("YES NO GO STOP START HELP ERASE RUBOUT REPEAT ENTER")
TAKES_CODE = _words("ENTER ERASE RUBOUT")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = _words("ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE")
TENS = _words("TWENTY THIRTY FORTY FIFTY SIXTY SEVENTY EIGHTY NINETY")
MONTHS = _words("JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER")
ORDINALS = [
    *_words("FIRST SECOND THIRD FOURTH FIFTH SIXTH SEVENTH EIGHTH NINTH TENTH TWELFTH FIFTEENTH TWENTIETH"),
    *("TWENTY FIRST", "TWENTY SECOND", "TWENTY THIRD", "TWENTY FIFTH", "TWENTY SEVENTH"),
]
NAMES = _words("RANDY DAVID SUSAN PETER JACK BRIAN FRANK QUINN MAX VICTOR")
PLACES = ["PITTSBURGH", "OAKLAND", "FIFTH AVENUE", "O'HARA STREET"]

# What espeak-ng must be given where it would not say the word as meant: an article, "roo-bout".
SAID_AS = {"A": "ay", "RUBOUT": "rub out"}

# Noise, silence and level: (least, most), drawn evenly for each utterance.
NOISE_LEVEL = (0.0005, 0.003)  # standard deviation; full scale is 1
PEAK_LEVEL = (0.25, 0.75)
SILENCE = (0.06, 0.14)  # s, before and after
WORD_GAP = 1  # see speech.Speaker.say
RATE_FACTOR = (0.92, 1.08)
PITCH_SHIFT = (-3, 3)
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
    transcript = _pick(rng, KINDS_OF_TEXT)(rng)
    name = f"{split}{number:04d}-{person}"
    return Utterance(split, name, transcript, lambda: _render(speaker, transcript, how, rng))


def _pick(rng, choices):
    return choices[int(rng.random() * len(choices))]


def _between(rng, bounds):
    low, high = bounds
    return low + (high - low) * rng.random()


def _command(rng):
    return _pick(rng, COMMANDS)


def _code(rng):
    """ENTER SIX; RUBOUT G M E F THREE NINE."""
    letters = _several(rng, LETTERS, 0, 3)
    return " ".join([_pick(rng, TAKES_CODE), *letters, *_several(rng, DIGITS, 1, 3)])


def _digits(rng):
    """A telephone number, or part of one."""
    return " ".join(_several(rng, DIGITS, 3, 7))


def _number(rng):
    """FORTY TWO; SIX HUNDRED FORTY TWO."""
    words = [_pick(rng, TENS), _pick(rng, DIGITS[1:])]
    return " ".join(words if rng.random() < 0.3 else [_pick(rng, DIGITS[1:]), "HUNDRED", *words])


def _spelled(rng):
    return " ".join(_pick(rng, NAMES))


def _name(rng):
    return _pick(rng, NAMES + PLACES)


def _date(rng):
    """MAY FIRST; JUNE TWENTY SEVENTH NINETEEN SIXTY ONE."""
    date = f"{_pick(rng, MONTHS)} {_pick(rng, ORDINALS)}"
    return date if rng.random() < 0.4 else f"{date} NINETEEN {_pick(rng, TENS)} {_pick(rng, DIGITS[1:])}"


def _several(rng, choices, least, most):
    return [_pick(rng, choices) for _ in range(least + int((most + 1 - least) * rng.random()))]


# Kind of text -> how many of 12 utterances.
SHARES = {_command: 2, _code: 2, _digits: 3, _number: 1, _spelled: 2, _name: 1, _date: 1}
KINDS_OF_TEXT = [kind for kind, share in SHARES.items() for _ in range(share)]


def _render(speaker, transcript, how, rng):
    voice, rate, pitch, pitch_range = how
    said = " ".join(SAID_AS.get(word, word if len(word) == 1 else word.lower()) for word in transcript.split())
    pcm = speaker.say(
        said,
        voice,
        rate=round(rate * _between(rng, RATE_FACTOR)),
        pitch=round(pitch + _between(rng, PITCH_SHIFT)),
        pitch_range=pitch_range,
        word_gap=WORD_GAP,
    )
    sound = resample_poly(np.frombuffer(pcm, "<i2").astype(np.float64), SAMPLE_RATE // 50, speech.SAMPLE_RATE // 50)
    sound = _trimmed(sound) * (_between(rng, PEAK_LEVEL) / np.abs(sound).max())
    silence_before, silence_after = (round(SAMPLE_RATE * _between(rng, SILENCE)) for _ in range(2))
    sound = np.pad(sound, (silence_before, silence_after))
    noise = np.random.Generator(np.random.PCG64(int(2**32 * rng.random()))).standard_normal(len(sound))
    sound += _between(rng, NOISE_LEVEL) * noise
    return wav_bytes(np.rint(sound.clip(-1, 1) * 32767).astype("<i2").tobytes(), SAMPLE_RATE)


def _trimmed(sound):
    loud = np.flatnonzero(np.abs(sound) > QUIET * np.abs(sound).max())
    return sound[loud[0] : loud[-1] + 1]
