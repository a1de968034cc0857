"""What a report shows of inspected runs: how good the choices are, what stays behind, and for how long."""

import re
from collections import Counter
from typing import NamedTuple

from drawing.plot import Bars, Curve, Plot
from drawing.styles import BLUE, ORANGE, style_of
from oktopk_training.inputs import printable
from oktopk_training.inspection_files import read_inspections

from .plots import shaded

RAREST = 0.001  # percent of all entries
MOST_GROUPS = 20  # layers, or kinds of parameters, that are shown one by one
# "weight_ih_l1_reverse" is of layer 1 of a module of LSTM layers; the first layer goes by the module's own name.
OF_A_LAYER = re.compile(r"(.*)_l(\d+)(?:_reverse)?")


class Inspected(NamedTuple):
    shown: object  # the run
    steps: list  # (epochs, inspection)


class OverSteps(NamedTuple):
    """A plot of one figure of the sparse steps, and of another behind it, in pale."""

    title: str
    note: str
    figure: str
    pale: str | None = None
    factor: float = 1.0
    log: bool = False


PERCENT = 100.0
FIGURES = (
    OverSteps(
        "Overlap with the true choice, %",
        "Of the k largest entries of the mean accumulated gradient, the part that is in the result (pale: that a rank "
        "has chosen, mean over the ranks). High: the ranks choose, apart, what they would choose together.",
        *("overlap_of_result", "overlap", PERCENT),
    ),
    OverSteps(
        "Energy captured, %",
        "Of the squares of the accumulated gradients, the part that ranks choose (pale: that is sent and not dropped). "
        "Far above the density: few entries carry most of the gradient, and little waits.",
        *("energy", "energy_sent", PERCENT),
    ),
    OverSteps(
        "Residual norm",
        "What waits, as root mean square over the ranks (pale: the gradient's own norm). Level: all is sent in time; "
        "growing without end: it is not.",
        *("residual_norm", "gradient_norm"),
        log=True,
    ),
    OverSteps(
        "Age of residual entries, steps",
        "Mean number of sparse steps for which an entry has not been sent. Rising by 1 a step: the same ones are "
        "sent again and again; level: all have their turn. It begins anew where a run goes on.",
        *("age",),
    ),
)


def inspected(every):
    """Of the runs that were."""
    return [Inspected(each, steps) for each in every if (steps := _moments(each.run))]


def _moments(run):
    moments = {step: moment for moment, step in run.of_steps("iter")}
    return [(moments[each.iter], each) for each in read_inspections(run.folder) if each.iter in moments]


def plots(every):
    over_steps = [plot for figure in FIGURES if (plot := _over_steps(figure, every))]
    of_runs = [plot for each in every for plot in (*_magnitudes(each), *_ages(each), *_groups(each))]
    return [*over_steps, *of_runs]


def _over_steps(figure, every):
    curves = []
    for shown, steps in every:
        for name, pale in ((figure.pale, True), (figure.figure, False)):
            points = [(moment, _times(getattr(each, name), figure.factor)) for moment, each in steps] if name else []
            if any(y is not None for _, y in points):
                title = f"{shown.name}, pale" if pale else shown.name
                curves.append(Curve(title, points, shown.style, shown.number, faint=pale, marked=not pale))
    if all(curve.faint for curve in curves):
        return None
    return Plot(figure.title, curves, figure.note, log=figure.log, shaded=shaded([shown for shown, _ in every]))


def _times(value, factor):
    return None if value is None else factor * value


# ---- magnitudes, before and after the sparse start


def _magnitudes(inspected):
    dense, sparse = ([step for _, step in inspected.steps if step.phase == phase] for phase in ("dense", "sparse"))
    wanted = [(step, "gradient") for step in (*dense[-1:], *sparse[:1])]
    wanted += [(step, "residual") for step in (*sparse[:1], *sparse[1:][-1:])]
    found = [(step, name, getattr(step, name)) for step, name in wanted]
    curves = [
        Curve(f"{name}, {step.phase} step {step.iter}", _percent(histogram), style_of(place))
        for place, (step, name, histogram) in enumerate(found)
        if _percent(histogram)
    ]
    if not curves:
        return
    zeros = ", ".join(f"{name} of step {step.iter} {_read(each.share_of_zeros)}" for step, name, each in found)
    note = (
        "Percent of all entries, of all ranks, from each power of two to the next; -10 is 2^-10, about 0.001. The "
        f"residual ends where the choice begins; the further left of the gradient, the less waits. Zeros: {zeros}."
    )
    yield Plot(f"Magnitudes: {inspected.shown.name}", curves, note, log=True, across="power of two")


def _percent(histogram):
    """Without what is too rare to be seen: long tails of tiny values, one by one."""
    return [(power, PERCENT * share) for power, share in histogram.shares() if share and PERCENT * share >= RAREST]


def _read(share):
    return "–" if share is None else f"{PERCENT * share:.3g}%"


# ---- where the entries are


def _groups(each):
    chosen, elements = Counter(), Counter()
    for _, step in each.steps:
        for name, (count, size) in (step.selected or {}).items():
            chosen[name] += count
            elements[name] += size
    if not (chosen.total() and elements.total()):
        return
    for title, place in (("layer", 0), ("kind of parameter", 1)):
        yield _shares(f"Entries sent by {title}: {each.shown.name}", chosen, elements, place)


def _shares(title, chosen, elements, place):
    """Of groups of parameters, the largest first."""
    sums, sizes = Counter(), Counter()
    for name in elements:
        group = layer_and_kind(name)[place]
        sums[group] += chosen[name]
        sizes[group] += elements[name]
    rows = []
    for group, size in sizes.most_common(MOST_GROUPS):
        of_chosen, of_all = sums[group] / sums.total(), size / sizes.total()
        told = f"{printable(group)}: {_read(of_chosen)} of the entries sent, {_read(of_all)} of the model"
        rows.append((told, [of_chosen / of_all if of_all else 0.0]))
    note = (
        "Share of the result's entries over share of what is compressed, over all inspected steps. 1: as many as by "
        "its size; 2: twice as many."
    )
    if len(sizes) > MOST_GROUPS:
        note += f" The largest {MOST_GROUPS} of {len(sizes)}."
    return Bars(title, rows, [("times its share of the model", BLUE)], note, "×")


def layer_and_kind(name):
    """Of a parameter by its name: ("layers.0", "weight_ih") of "layers.0.weight_ih_l0"."""
    module, _, kind = name.rpartition(".")
    found = OF_A_LAYER.fullmatch(kind)
    if not found:
        return module or name, kind
    kind, number = found.groups()
    return (module if number == "0" and module else f"{module}.l{number}".strip(".")), kind


# ---- ages


def _ages(each):
    """Of the last step that has any."""
    last = next((step for _, step in reversed(each.steps) if step.ages and step.ages.share_of_zeros is not None), None)
    if last is None:
        return
    rows = [("0 steps", [_times(last.ages.share_of_zeros, PERCENT)])] if last.ages.zeros else []
    rows += [(_between(power), [_times(share, PERCENT)]) for power, share in last.ages.shares()]
    note = (
        f"At step {last.iter}: for so many sparse steps, of the {last.age_steps:,} that were counted, entries were not "
        "sent. The longest bar: those that were not sent at all, or seldom."
    )
    yield Bars(f"Ages of residual entries: {each.shown.name}", rows, [("of the entries", ORANGE)], note, "%")


def _between(power):
    low, high = 2**power, 2 ** (power + 1) - 1
    return "1 step" if power == 0 else f"{low:,.0f} to {high:,.0f} steps"
