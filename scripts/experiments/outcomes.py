"""What runs of an experiment came to, as their folders tell it."""

import statistics
from dataclasses import dataclass

from oktopk.auto import VARIED
from oktopk.wire import AUTO
from oktopk_training.errors import UserError
from oktopk_training.inputs import printable
from oktopk_training.options import with_later_ones
from oktopk_training.run_layout import CONFIG
from oktopk_training.runs import NotBegun, Run, number

LOSS = "loss"
DRAWN = 2  # of the figures of a validation: the first says most
# What may differ between a run that is there and the one that is wanted: its steps do not depend on it.
FREE = {
    *("run_dir", "resume", "checkpoint_interval", "keep_checkpoints", "watchdog", "trace", "device", "transport"),
    *("max_epochs", "val_interval", "inspect", "record_gradients"),
}


@dataclass(frozen=True)
class Outcome:
    """What a run had reached after its last epoch. Without figures, `failure` says why in one line."""

    run: object  # as planned
    folder: object
    labels: dict  # figure -> what a person calls it; the loss is the last
    figures: dict
    reached: float | None  # epochs until the first figure was as low as was asked for
    selected: float | None  # entries of the result, in units of k; None where nothing was sparse
    sent: float | None  # bytes of a step that rank 0 sent, in the run's last phase
    curve: list  # (epochs, first figure)
    failure: str | None = None

    @classmethod
    def failed(cls, run, folder, failure):
        return cls(run, folder, {}, {}, None, None, None, [], failure)


def read(folder):
    """The run in a folder; None where there is none yet. A UserError where it cannot be read."""
    try:
        return Run.read(folder)
    except NotBegun:
        return None


def epochs_done(found):
    return len(found.epochs) if found else 0


def seconds_of(found):
    """How long each of its epochs took."""
    return [time for each in found.epochs if (time := number(each.get("time"))) is not None] if found else []


def refuse_another(found, run):
    """A run with other options, in the folder of one that is wanted, is neither taken nor gone on with."""
    if found is None:
        return
    if not found.options:
        raise UserError(
            f"{found.folder} holds a run whose {CONFIG} does not say with which options it is trained; choose another "
            "--out, or remove it"
        )
    wanted, there = run.options.flat(), with_later_ones(found.options)
    chosen_there = ("compressor", *VARIED) if run.options.compressor == AUTO else ()
    for name in wanted:
        if name not in (*FREE, *chosen_there) and there.get(name) != wanted[name]:
            raise UserError(
                f"{found.folder} holds a run with other options (--{name.replace('_', '-')} "
                f"{printable(there.get(name))}, not {wanted[name]}); choose another --out, or remove it"
            )
    last = found.validations[-1]["epoch"] + 1 if found.validations else 0
    if last > run.epochs and not is_finished(found, run):
        raise UserError(
            f"{found.folder} holds a run of {last} epochs that was not validated after {run.epochs}; choose another "
            "--out, or more epochs"
        )


def is_finished(found, run):
    """Of a longer run, what it had after so many epochs counts."""
    return found is not None and any(record["epoch"] + 1 == run.epochs for record in found.validations)


def outcome_of(found, run, target):
    """What is `found` of a finished run."""
    tested = [record for record in found.validations if record["epoch"] < run.epochs]
    labels = {key: printable(label) for key, label in list(found.figures.items())[:DRAWN]} | {LOSS: "validation loss"}
    figures = {key: number(tested[-1].get(key)) for key in labels}
    if None in figures.values():
        missing = next(label for key, label in labels.items() if figures[key] is None)
        return Outcome.failed(run, found.folder, f"diverged: its {missing} is no number after {run.epochs} epochs")
    headline = next(iter(labels))
    curve = [(record["epoch"] + 1, number(record.get(headline))) for record in tested]
    return Outcome(run, found.folder, labels, figures, reached(curve, target), *_traffic(found, run), curve)


def reached(curve, target):
    """Where a line through the validations, (epochs, value) say, comes down to the target; None if it never does."""
    before = None
    for epochs, value in curve:
        if value is not None and value <= target:
            if before is None:
                return epochs
            last, high = before
            return last + (epochs - last) * (high - target) / (high - value)
        before = None if value is None else (epochs, value)
    return None


def _traffic(found, run):
    """(entries of the result in units of k, bytes sent) of a step of the last phase."""
    steps = [record for record in found.steps if record["epoch"] < run.epochs and not record["skipped"]]
    last = [record for record in steps if record["phase"] == steps[-1]["phase"]]  # none, if all were skipped
    selected = [
        record["selected_global"] / record["target_k"]
        for record in last
        if record["target_k"] and record["selected_global"] is not None
    ]
    sent = [record["bytes_sent"] for record in last if record["bytes_sent"] is not None]
    return (statistics.mean(selected) if selected else None), (statistics.mean(sent) if sent else None)
