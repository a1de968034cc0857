"""What `--inspect` writes: inspections.jsonl, a line for each inspected step; and reading it."""

import math
import sys
from dataclasses import dataclass

from .run_layout import INSPECTIONS
from .runs import number, read_records

MOST_INSPECTIONS = 2**28  # bytes
MOST_COUNT = 2**53  # what a float64 counts
BIAS = 127  # of a float32's exponent
MOST_COUNTS = 2 * BIAS + 1


# ---- writing


def record_of(sums, ranks, steps, selected):
    """What a line says, from sums over merged gradients and ranks; of a dense step the gradient alone.

    Norms are root mean squares over the ranks. `overlap` is the share of the true choice that a rank has chosen, mean
    over the ranks, and `overlap_of_result` the share that the result has. `energy` is the share of the accumulated
    gradients' squares that was chosen, and `energy_sent` that was sent and not dropped on the way. `selected` has, by
    parameter, the entries of the result and all elements.
    """
    record = {"gradient": _with_norm(sums["gradient"], ranks)}
    if "overlap" not in sums:
        return record
    true, *common = sums["overlap"]
    whole, *parts = sums["energy"]
    *ages, total = sums["ages"]
    return {
        **record,
        "residual": _with_norm(sums["residual"], ranks),
        **{name: _share(part, true) for name, part in zip(("overlap", "overlap_of_result"), common, strict=True)},
        **{name: _share(part, whole) for name, part in zip(("energy", "energy_sent"), parts, strict=True)},
        "ages": {"steps": steps, "mean": _share(total, sum(ages)), **histogram(ages)},
        "selected": selected,
    }


def _with_norm(counts_and_energy, ranks):
    *counts, energy = counts_and_energy
    return {"norm": _finite(math.sqrt(energy / ranks)), **histogram(counts)}


def _share(part, whole):
    return _finite(part / whole) if whole else None


def _finite(value):
    return value if math.isfinite(value) else None


def histogram(counts):
    """Zeros, and how many magnitudes lie from each power of two to the next, from the lowest that has any."""
    zeros, *others = map(int, counts)
    known = [place for place, count in enumerate(others) if count]
    first, last = (known[0], known[-1]) if known else (0, -1)
    return {"zeros": zeros, "first": first + 1 - BIAS, "counts": others[first : last + 1]}


# ---- reading


@dataclass(frozen=True)
class Histogram:
    zeros: int
    first: int  # the exponent of the first count
    counts: list

    def shares(self):
        """(exponent, share of all) for each power of two, None where there is nothing at all."""
        total = self.zeros + sum(self.counts)
        return [(self.first + place, count / total if total else None) for place, count in enumerate(self.counts)]

    @property
    def share_of_zeros(self):
        total = self.zeros + sum(self.counts)
        return self.zeros / total if total else None


@dataclass(frozen=True)
class Inspection:
    """A step that was inspected; what a dense one does not have is None."""

    iter: int
    phase: str
    seconds: float | None
    gradient: Histogram
    gradient_norm: float | None
    residual: Histogram | None = None
    residual_norm: float | None = None
    overlap: float | None = None
    overlap_of_result: float | None = None
    energy: float | None = None
    energy_sent: float | None = None
    ages: Histogram | None = None
    age: float | None = None  # mean
    age_steps: int | None = None  # for so many sparse steps they were counted
    selected: dict | None = None  # parameter -> (entries of the result, elements)


def read_inspections(folder):
    """By step, the last where one was repeated; none where nobody inspected. The file may come from anybody."""
    path = folder / INSPECTIONS
    if not path.exists():
        return []
    found = {each.iter: each for each in read_records(path, MOST_INSPECTIONS, _inspection, "an inspection's record")}
    return [found[step] for step in sorted(found)]


def _inspection(record):
    gradient = record["gradient"]
    own = {
        "iter": _count(record["iter"], sys.maxsize),
        "phase": "sparse" if record["phase"] == "sparse" else "dense",
        "seconds": number(record["seconds"]),
        "gradient": _histogram(gradient),
        "gradient_norm": number(gradient["norm"]),
    }
    if own["phase"] == "dense":
        return Inspection(**own)
    shares = {name: number(record[name]) for name in ("overlap", "overlap_of_result", "energy", "energy_sent")}
    residual, ages = record["residual"], record["ages"]
    return Inspection(
        **own,
        **shares,
        residual=_histogram(residual),
        residual_norm=number(residual["norm"]),
        ages=_histogram(ages),
        age=number(ages["mean"]),
        age_steps=_count(ages["steps"]),
        selected={str(name): (_count(chosen), _count(of)) for name, (chosen, of) in dict(record["selected"]).items()},
    )


def _histogram(record):
    counts, first = list(record["counts"]), record["first"]
    if len(counts) > MOST_COUNTS or type(first) is not int or abs(first) > BIAS:
        raise ValueError(first)
    return Histogram(_count(record["zeros"]), first, [_count(each) for each in counts])


def _count(value, most=MOST_COUNT):
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(value)
    return value
