"""Options as fields of dataclasses: each with its default, help and check, once, for callers and command lines."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

MOST = 10**9  # no number that an option counts needs to be larger
LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Kind:
    """What an option takes: how a word becomes a value, which values hold, and how a person would say that."""

    wanted: str
    convert: Callable
    holds: Callable = lambda value: True
    most: float = math.inf
    metavar: str | None = None

    def read(self, word):
        """The value of a word of a command line; ValueError says what was expected."""
        try:
            value = None if "_" in word and self.convert in (int, float) else self.convert(word)
        except (ValueError, LookupError):
            value = None
        if value is None or not self.holds(value):
            raise ValueError(f"expected {self.wanted}, found {word!r}")
        if not _is_text(value) and value > self.most:
            raise ValueError(f"expected at most {self.most}, found {word!r}")
        return value

    def check(self, name, value):
        try:
            fits = isinstance(value, str) == (self.convert is str) and self.holds(value)
            fits = fits and (_is_text(value) or value <= min(self.most, LARGEST))
        except TypeError:  # it cannot be compared with a number
            fits = False
        if not fits or (self.convert is int and value != int(value)):
            raise ValueError(f"{name} is {self.wanted}, not {value!r}")


def _is_text(value):
    return not isinstance(value, int | float)


def _finite(holds):
    return lambda value: -math.inf < value < math.inf and holds(value)  # of integers too that no float can hold


def choice(*values):
    return Kind(f"one of {', '.join(values)}", str, lambda value: value in values, metavar="|".join(values))


def up_to(most, kind):
    return Kind(kind.wanted, kind.convert, kind.holds, most, kind.metavar)


COUNT = Kind("a whole number above 0", int, _finite(lambda value: value > 0), MOST, "N")
NATURAL = Kind("a whole number, 0 or more", int, _finite(lambda value: value >= 0), MOST, "N")
POSITIVE = Kind("a number above 0", float, _finite(lambda value: value > 0), metavar="X")
NOT_NEGATIVE = Kind("a number, 0 or more", float, _finite(lambda value: value >= 0), metavar="X")
SHARE = Kind("a share above 0 and at most 1", float, lambda value: 0 < value <= 1, metavar="X")
PROBABILITY = Kind("a number from 0 to 1", float, lambda value: 0 <= value <= 1, metavar="P")
DECAY = Kind("a number from 0 to below 1", float, lambda value: 0 <= value < 1, metavar="X")
FLAG = Kind("True or False", lambda word: {"true": True, "false": False}[word.lower()], metavar="True|False")
PATH = Kind("a path that is not empty", lambda word: Path(word) if word else None, metavar="PATH")
_INTERVAL = re.compile(r"0*[1-9]\d{0,8}m?")
INTERVAL = Kind("steps (500) or minutes (15m)", str, _INTERVAL.fullmatch, metavar="STEPS|MINUTESm")
TEXT = Kind("a name that is not empty", str, lambda value: value != "", metavar="NAME")


def option(default, kind, help=None):
    """A field with its check. Without help it is for callers alone and stands on no command line."""
    return field(default=default, metadata={"kind": kind, "help": help})


class Checked:
    """Mixed into a dataclass of such fields: wrong values are a ValueError that names the option."""

    def __post_init__(self):
        for each in fields(self):
            value = getattr(self, each.name)
            if "kind" in each.metadata and not (value is None and each.default is None):
                each.metadata["kind"].check(each.name, value)
