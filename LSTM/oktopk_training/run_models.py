"""The models that a run leaves in its checkpoints/: the last one, and the best."""

import logging
import math
import os

from .errors import UserError
from .files import writing
from .run_layout import CHECKPOINTS
from .saved_models import read_model, save_model

log = logging.getLogger("oktopk")

LAST, BEST = "last.pt", "best.pt"
BEFORE = "best.before.pt"  # of epochs that are trained anew


def save_models(trainer, ranks, run, figures, best):
    """Save the model as last.pt, and as best.pt if it is; return the figures of the best, if any. Rank 0 writes."""

    def merit(figures):
        return figures[trainer.task.headline], figures["loss"]  # early on, WER is often 1 for all

    def write(name):
        """Not even a disk that is full ends the run; the model before this one stays."""
        try:
            if ranks.is_first:
                path = run.folder / CHECKPOINTS / name
                save_model(path, trainer.net, trainer.options.dnn, figures["epoch"], figures)
        except UserError as error:
            log.warning("%s", error)
            return False
        return True

    write(LAST)
    if not math.isfinite(figures["loss"]) or (best is not None and not merit(figures) < merit(best)):
        return best
    return figures if write(BEST) else best


def best_that_is_left(best, folder):
    """The figures of best.pt, if it is the model that they are of; one of another past is put aside."""
    path = folder / BEST
    try:
        epoch = read_model(path)["epoch"] if path.exists() else None
    except UserError as error:
        log.warning("%s; the best model from here on is looked for", error)
        return None
    if best is not None and best["epoch"] == epoch:
        return best
    if epoch is not None:
        aside = path.with_name(BEFORE)
        with writing(path):
            os.replace(path, aside)
        log.warning("best.pt is of epoch %s, which this run trains anew: it is %s now", epoch, aside)
    return None


def report_best(task, ranks, run, best):
    if best is None:
        log.warning("there is no best model: no validation had a finite loss (lower --lr), or none could be saved")
    elif ranks.is_first:
        path = run.folder / CHECKPOINTS / BEST
        log.info("best model: %s, after epoch %d: %s", path, best["epoch"], task.describe(best))
