"""Runs as a report speaks of them: each with a short name of its own and a style."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from drawing.styles import Style, style_of
from oktopk_training.inputs import printable
from oktopk_training.runs import Run

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


@dataclass(frozen=True)
class Shown:
    run: Run
    name: str
    style: Style
    number: int | None  # None: it is alone


def shown(runs):
    """By their methods, where these tell them apart, otherwise by their folders."""
    names = [run.method for run in runs]
    if None in names or len(set(names)) < len(names):
        names = [run.folder.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(Path(run.folder.parent.name, run.folder.name)) for run in runs]
    seen, own = Counter(), []
    for name in names:
        seen[name] += 1
        own.append(printable(name) if seen[name] == 1 else f"{printable(name)} ({seen[name]})")
    numbers = range(len(runs)) if len(runs) > 1 else [None]
    return [Shown(*each) for each in zip(runs, own, map(style_of, range(len(runs))), numbers, strict=True)]


def unit_of(most):
    """(factor, name) of the unit of bytes in which so many are a readable number."""
    return next(((factor, name) for factor, name in UNITS if most >= factor), UNITS[-1])


def in_units(count):
    factor, name = unit_of(count)
    return f"{count / factor:.3g} {name}"


def mean(values):
    """Of those that are known; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
