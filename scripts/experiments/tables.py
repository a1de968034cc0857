"""The end of an experiment: a table of its cells for people, one of its runs for programs, and curves."""

import csv
import statistics
from dataclasses import dataclass

from drawing.plot import Curve, Plot
from drawing.styles import style_of

UNKNOWN = "–"


@dataclass(frozen=True)
class Cell:
    """The outcomes of one combination of values, with all its seeds."""

    values: dict
    outcomes: list

    @property
    def fine(self):
        return [outcome for outcome in self.outcomes if outcome.failure is None]

    def of(self, value_of):
        return [value for outcome in self.fine if (value := value_of(outcome)) is not None]


def cells_of(outcomes):
    cells = {}
    for outcome in outcomes:
        cells.setdefault(outcome.run.cell, Cell(outcome.run.values, [])).outcomes.append(outcome)
    return list(cells.values())


def table_of(outcomes, varied, target):
    """(head, rows) of texts. Of several seeds: the mean ± the standard deviation."""
    labels = labels_of(outcomes)
    first = next(iter(labels.values()), "target")
    head = [*varied, "seeds", *labels.values(), f"epochs to {first} {target:g}", "entries / k", "sent per step, kB"]
    return head, [
        [
            *(cell.values.get(name, "") for name in varied),
            _seeds(cell),
            *(_spread(cell.of(lambda outcome, key=key: outcome.figures.get(key))) for key in labels),
            _reached(cell),
            _spread(cell.of(lambda outcome: outcome.selected), "") if cell.fine else UNKNOWN,
            _plain(cell.of(lambda outcome: outcome.sent and outcome.sent / 1e3)),
        ]
        for cell in cells_of(outcomes)
    ]


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', ' ') for cell in line)} |\n" for line in lines)


def write_csv(file, outcomes, varied):
    """A line for each run; what is not known is left empty."""
    keys = labels_of(outcomes)
    head = [*varied, "seed", "state", "epochs", *keys, "epochs_to_target", "entries_of_k", "bytes_per_step", "folder"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for outcome in outcomes:
        run = outcome.run
        writer.writerow(
            [
                *(run.values.get(name, "") for name in varied),
                *(run.seed, outcome.failure or "finished", run.epochs),
                *(outcome.figures.get(key) for key in keys),
                *(outcome.reached, outcome.selected, outcome.sent, outcome.folder.name),
            ]
        )


def curves_of(outcomes):
    """How the first figure fell, the mean over a cell's seeds; None if no run came to its end."""
    fine = [cell for cell in cells_of(outcomes) if cell.fine]
    if not fine:
        return None
    curves = [
        Curve(cell.fine[0].run.cell or "all runs", _mean_curve(cell), style_of(place), marked=True)
        for place, cell in enumerate(fine)
    ]
    return Plot(f"{next(iter(labels_of(outcomes).values()))} on validation, means over seeds", curves)


def labels_of(outcomes):
    """Figure -> its name, as the runs have them."""
    return next((outcome.labels for outcome in outcomes if outcome.labels), {})


def _mean_curve(cell):
    values = {}
    for outcome in cell.fine:
        for epochs, value in outcome.curve:
            values.setdefault(epochs, []).append(value)
    return [(epochs, None if None in each else statistics.mean(each)) for epochs, each in sorted(values.items())]


def _seeds(cell):
    fine, every = len(cell.fine), len(cell.outcomes)
    return str(every) if fine == every else f"{fine} of {every}"


def _spread(values, unknown=UNKNOWN):
    if not values:
        return unknown
    digits = 3 if abs(statistics.mean(values)) < 10 else 1
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def _reached(cell):
    """Of the seeds that came there; how many these are, if not all."""
    values = cell.of(lambda outcome: outcome.reached)
    if not values:
        return UNKNOWN
    mean = f"{statistics.mean(values):.3g}"
    return mean if len(values) == len(cell.fine) else f"{mean} ({len(values)} of {len(cell.fine)} seeds)"


def _plain(values):
    return f"{statistics.mean(values):.0f}" if values else UNKNOWN
