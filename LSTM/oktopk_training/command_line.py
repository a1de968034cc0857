"""What the command lines of all programs have in common."""

import argparse
import math
from functools import partial

from .errors import UserError

MOST = 10**9  # no use of an option needs more, and torch, which computes in float32 and int64, takes no more than some


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults in brackets, but for options without one and flags."""

    def _get_help_string(self, action):
        return action.help if action.default in (None, True, False) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated, so that a new one cannot change what an old script says."""

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, formatter_class=_Help, **settings)

    def error(self, message):
        raise UserError(f"{message}; --help lists the options")


def positive_int(word, most=MOST):
    return _number(int, word, lambda value: value > 0, "a whole number above 0", most)


def natural(word, most=MOST):
    return _number(int, word, lambda value: value >= 0, "a whole number, 0 or more", most)


def up_to(most, kind=positive_int):
    return partial(kind, most=most)


def positive_float(word):
    return _number(float, word, lambda value: value > 0, "a number above 0")


def non_negative_float(word):
    return _number(float, word, lambda value: value >= 0, "a number, 0 or more")


def probability(word):
    return _number(float, word, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def share(word):
    return _number(float, word, lambda value: 0 < value <= 1, "a share above 0 and at most 1")


def boolean(word):
    try:
        return {"true": True, "false": False}[word.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"expected True or False, found {word!r}") from None


def compressor_name(word):
    from compression import compressors  # its kernels take a while to import

    if word not in compressors:
        raise argparse.ArgumentTypeError(f"there is no {word!r}; choose from {', '.join(compressors)}")
    return word


def _number(kind, word, holds, wanted, most=MOST):
    try:
        value = kind(word)
    except ValueError:
        value = math.nan
    if not -math.inf < value < math.inf or not holds(value):
        raise argparse.ArgumentTypeError(f"expected {wanted}, found {word!r}")
    if value > most:
        raise argparse.ArgumentTypeError(f"expected at most {most}, found {word!r}")
    return value


def hyphenated(word):
    """--data_dir=a_b -> --data-dir=a_b."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
