"""What a run needs to go on where it was ended, and when that is saved: at intervals, validations and signals."""

import logging
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from oktopk.auto import VARIED
from oktopk.checkpoints import CheckpointError, Checkpoints, has_checkpoints
from oktopk.optimizer import STATE

from .errors import SharedError, UserError
from .options import with_later_ones
from .places import find_folder
from .reports import take
from .run_layout import CHECKPOINTS, METRICS
from .step import Tally

log = logging.getLogger("oktopk")

AUTO = "auto"
MINUTE = 60.0  # seconds
SIGNAL_STATUS = 128  # and the signal's number, as a shell reports it
SAVE, END = 1, 2
# What may be another when a run goes on, for the steps do not depend on it.
_FREE = {
    *("run_dir", "resume", "checkpoint_interval", "keep_checkpoints", "watchdog", "max_epochs", "val_interval"),
    *("trace", "inspect", "record_gradients", "nworkers", "nwpernode", "data_dir", "pretrain"),
}
_OF_STRANGE_CONTENT = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


# ---- from where


class Start(NamedTuple):
    folder: Path | None  # of the run; None: a new one
    resumes: bool = False
    step: int | None = None  # of the checkpoint; None: the newest


def start_of(options, runs):
    """Where a run begins. `runs` is the folder of all runs of its name."""
    if options.resume is None:
        return Start(options.run_dir)
    if options.resume != AUTO:
        return _named_start(options)
    if options.run_dir is not None:
        folder = Path(options.run_dir).absolute()
        return Start(folder, (folder / METRICS).exists() or has_checkpoints(folder / CHECKPOINTS))
    newest = max(runs.glob(f"*/{METRICS}"), key=os.path.getmtime, default=None)
    return Start(newest and newest.parent, newest is not None)


def _named_start(options):
    place = find_folder(options.resume, "--resume", "name a run's folder, or a checkpoint in it")
    checkpoint = re.fullmatch(r"step-(\d{1,18})", place.name)
    folder = place.parents[1] if checkpoint else place
    if not has_checkpoints(folder / CHECKPOINTS):
        raise UserError(f"--resume {options.resume}: there is no whole checkpoint; name a run's folder that has one")
    if options.run_dir is not None and Path(options.run_dir).resolve() != folder:
        raise UserError(f"--resume {options.resume} goes on in that run's own folder; leave --run-dir out")
    return Start(folder, True, int(checkpoint[1]) if checkpoint else None)


# ---- how far


@dataclass
class Progress:
    """How far a run has come: what its loop keeps from one step to the next."""

    summary: object
    step: int = 0
    epoch: int = 0
    place: int = 0  # steps done in this epoch
    best: dict | None = None  # figures of the best model
    tally: Tally = field(default_factory=Tally)  # of this epoch, as the rest
    skipped: int = 0
    infinite: int = 0
    seconds: float = 0.0

    def take(self, step, seconds):
        """A step was done; the epoch has taken so many seconds by now."""
        self.tally.add(step)
        self.summary.step(step)
        self.step, self.place, self.seconds = self.step + 1, self.place + 1, seconds

    def end_epoch(self):
        self.epoch, self.place = self.epoch + 1, 0
        self.tally, self.skipped, self.infinite, self.seconds = Tally(), 0, 0, 0.0

    def state_dict(self):
        return {**vars(self), "summary": self.summary.state_dict(), "tally": self.tally.state_dict()}

    def load_state_dict(self, state):
        for name in ("step", "epoch", "place", "best", "skipped", "infinite", "seconds"):
            setattr(self, name, state[name])
        self.summary.load_state_dict(state["summary"])
        self.tally = Tally.of(state["tally"])


# ---- signals


class Signals:
    """SIGTERM asks for a checkpoint and the end, SIGUSR1 for a checkpoint. Schedulers may send each several times."""

    wishes: ClassVar = {signal.SIGTERM: END, signal.SIGUSR1: SAVE}

    def __init__(self):
        self._heard, self._before = [], {}

    def __enter__(self):
        for number in self.wishes:
            self._before[number] = signal.signal(number, lambda number, _: self._heard.append(self.wishes[number]))
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wish(self):
        """What was asked for since the last time."""
        return max(take(self._heard), default=0)


# ---- keeping


class Keeper:
    """Saves and restores everything that the steps to come depend on. All ranks call it alike."""

    def __init__(self, folder, options, ranks):
        self._ranks, self._communicator = ranks, ranks.new_communicator("checkpoints")
        self._checkpoints = Checkpoints(folder / CHECKPOINTS, self._communicator, options.keep_checkpoints)
        self._steps, self._seconds = interval_of(options.checkpoint_interval)
        self._last, self._last_time = None, time.monotonic()
        self.saved, self.seconds = 0, 0.0  # what it has taken

    def find(self, step):
        """The checkpoint to go on from; None where there is none yet."""
        try:
            return self._checkpoints.load(step)
        except CheckpointError as error:
            raise SharedError(f"{error}; begin anew without --resume, in another folder") from None

    def watch(self, options, trainer, optimizer, progress, run, signals):
        self._options, self._trainer, self._optimizer, self._progress = options, trainer, optimizer, progress
        self._run, self._signals = run, signals

    def step_is_done(self):
        """Save if it is time to, or if somebody asks for it; end if that is asked for."""
        self._heed(SAVE if self._is_due() else 0)

    def model_is_validated(self):
        self._heed(SAVE)

    def _heed(self, wish):
        wishes = torch.tensor([max(wish, self._signals.wish())])  # of any rank: launchers may tell only some
        self._communicator.allreduce(wishes, op="max")
        if wishes.item():
            saved = self._save()
            if wishes.item() == END:
                self._end(saved)

    def _is_due(self):
        if self._steps is not None:
            return self._progress.step % self._steps == 0
        return self._ranks.is_first and time.monotonic() - self._last_time > self._seconds

    def _end(self, saved):
        kept = f"the checkpoint of step {self._progress.step} holds all of it" if saved else "it could not be saved"
        log.warning("ended by SIGTERM after step %d: %s; --resume goes on", self._progress.step, kept)
        self._ranks.barrier()  # launchers kill the rest once a rank has ended badly
        sys.exit(SIGNAL_STATUS + signal.SIGTERM)

    def _save(self):
        """Whether it was possible. Training goes on without, for a disk may have room again."""
        here = self._progress.step, self._progress.epoch
        if self._last == here:
            return True
        began = time.monotonic()
        try:
            self._checkpoints.save(self._progress.step, self._own_state(), self._common_state())
        except CheckpointError as error:
            log.warning("step %d: no checkpoint could be written (%s); training goes on", self._progress.step, error)
            return False
        finally:
            self._last_time = time.monotonic()
            self.seconds += self._last_time - began
        self._last, self.saved = here, self.saved + 1
        log.debug("checkpoint of step %d: %.2f s", self._progress.step, self._last_time - began)
        return True

    def _own_state(self):
        share = self._optimizer.state_dict()[STATE]
        return {"trainer": self._trainer.state_dict(), "progress": self._progress.state_dict(), STATE: share}

    def _common_state(self):
        if not self._ranks.is_first:
            return None
        optimizer = self._optimizer.state_dict()
        return {
            "dnn": self._options.dnn,
            "sizes": self._trainer.net.sizes,
            "data": self._trainer.task.fingerprint,
            "steps_per_epoch": self._trainer.steps_per_epoch,
            "options": self._options.flat(),
            "metrics": self._run.position(),
            "parameters": {name: parameter.detach() for name, parameter in self._trainer.net.named_parameters()},
            "optimizer": {key: value for key, value in optimizer.items() if key != STATE},
        }

    def restore(self, found):
        """Put a checkpoint into what `watch` was given."""
        try:
            self._restore(found)
        except _OF_STRANGE_CONTENT as error:
            text = str(error) if isinstance(error, ValueError) else type(error).__name__
            raise UserError(f"the checkpoint of step {found.step} does not fit this run ({text})") from None
        self._last = self._progress.step, self._progress.epoch
        self._checkpoints.discard_after(found.step)

    def _restore(self, found):
        own, common = found.state, found.common
        self._trainer.net.load_state_dict({**common["parameters"], **own["trainer"]["buffers"]})
        for part, holder in (("progress", self._progress), ("trainer", self._trainer)):
            _check_kinds(part, own[part], holder.state_dict())
        self._progress.load_state_dict(own["progress"])
        if self._is_in_other_steps(found):
            part = self._progress.place / common["steps_per_epoch"]
            self._progress.place = int(part * self._trainer.steps_per_epoch)
        _check_shapes(common["optimizer"], self._optimizer)
        self._optimizer.load_state_dict({**common["optimizer"], STATE: own[STATE]})
        self._optimizer.averager.train_epoch = self._progress.epoch
        self._trainer.load_state_dict(own["trainer"], self._progress, is_exact=not self._is_in_other_steps(found))

    def _is_in_other_steps(self, found):
        return found.ranks != self._ranks.size or found.common["steps_per_epoch"] != self._trainer.steps_per_epoch

    def close(self):
        self._communicator.close()


def _check_kinds(name, value, like):
    """That it is made like another. Where that is None, anything goes that the program saves but text."""
    if like is None and isinstance(value, dict | list):
        like = type(value)()
    if isinstance(like, dict):
        if not isinstance(value, dict) or (like and value.keys() != like.keys()):
            raise ValueError(f"{name} is another than here")
        for key in value:
            _check_kinds(f"{name}.{key}", value[key], like.get(key))
    elif isinstance(like, list):
        if not isinstance(value, list):
            raise ValueError(f"{name} is no list")
        for each in value:
            _check_kinds(name, each, None)
    elif isinstance(like, int | float):
        if not isinstance(value, int if isinstance(like, int) else int | float) or value < 0:
            raise ValueError(f"{name} is no such number")
    elif isinstance(value, str):
        raise ValueError(f"{name} is text")


def _check_shapes(state, optimizer):
    """Torch takes any, and fails in the next step."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, kept in state["state"].items():
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise ValueError(f"{name} of parameter {index} has the shape {tuple(value.shape)}")


def check_found(found, trainer, options, size):
    """Refuse another model's checkpoint; say, a line each, what makes this run differ from one that never ended."""
    common = found.common if isinstance(found.common, dict) else {}
    theirs, ours = (common.get("dnn"), common.get("sizes")), (options.dnn, trainer.net.sizes)
    if theirs != ours:
        raise UserError(
            f"the checkpoint is of {_model(*theirs)}, and this run trains {_model(*ours)}; give the options of that run"
        )
    before, now = common.get("options"), options.flat()
    if not isinstance(before, dict) or not isinstance(common.get("metrics"), int):
        raise UserError(f"the checkpoint of step {found.step} is not one of this program's; choose another")
    before = with_later_ones(before)
    changed = [name for name in now if name not in _FREE and before.get(name) != now[name]]
    lines = [f"--{name.replace('_', '-')} is {now[name]}, and was {before.get(name)}" for name in changed]
    if common.get("data") != trainer.task.fingerprint:
        lines.append("the data are not those of before")
    if found.ranks != size:
        lines.append(
            f"saved by {found.ranks} ranks and taken up by {size}: residuals are shared out and none is lost; batches, "
            "batch-norm statistics, thresholds and dropout are not those of a run that never ended"
        )
    return lines


def with_choice_of(found, options):
    """The options, with what --compressor auto has chosen where the checkpoint was made, or what was trained with."""
    before = found.common.get("options") if isinstance(found.common, dict) else None
    try:
        varied = {name: before[name] for name in VARIED}
        compressor = before["compressor"] if before["compression"] else "dense"
        return replace(options, compressor=compressor, settings=replace(options.settings, **varied))
    except _OF_STRANGE_CONTENT:
        raise UserError(f"the checkpoint of step {found.step} does not say which compressor it was made with") from None


def _model(dnn, sizes):
    if not isinstance(sizes, dict):
        return "something else"
    return f"{dnn} with " + ", ".join(f"{name} {size}" for name, size in sizes.items())


def interval_of(word):
    """(steps, None) or (None, seconds) of words like 500 and 15m."""
    return (None, MINUTE * float(word[:-1])) if word.endswith("m") else (int(word), None)


def size_of(options, parameters, ranks):
    """About so many bytes a checkpoint takes: weights and momentum once, what is each rank's own for each."""
    momenta = ranks if options.corrects_momentum else 1
    residuals = ranks if options.is_sparse else 0
    return 4 * parameters * (1 + momenta + residuals)
