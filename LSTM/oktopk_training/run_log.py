"""What a run leaves behind (config.json, metrics.jsonl, train.log, tensorboard/, checkpoints/) and shows meanwhile."""

import errno
import json
import logging
import math
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path

import numpy
import torch
from tqdm import tqdm

from oktopk.checkpoints import has_checkpoints

from .errors import UserError
from .files import atomic_write, claim, make_folder, writing
from .places import PROJECT
from .run_layout import CHECKPOINTS, CONFIG, INSPECTIONS, LOG, METRICS, TENSORBOARD

log = logging.getLogger("oktopk")

SIGNAL_STATUS = 128  # and the signal's number, as a shell reports it
_SIGNALS = {each.value for each in signal.Signals}
LONGEST_RECORD = 1 << 20  # bytes
_EARLY_LINES = 1000  # log lines kept until there is a train.log to put them into

_EPOCH = {
    "epoch": None,
    "loss": None,
    "avg_sparsity": None,
    "avg_compression_ratio": None,
    "avg_communication_size": None,
    "skipped_steps": 0,
    "time": None,
}
_VALIDATION = {"epoch": None, "loss": None, "wer": None, "wer_mean": None, "cer": None}


def runs_of(name):
    """The folder of all runs of a name that were told no folder."""
    return PROJECT / "runs" / name


@contextmanager
def run_folder(path, name, resumes=False):
    """Make the folder of a run, `path` or a new runs/<name>/<time>; take it away again if nothing came into it."""
    chosen = path is not None
    path = Path(path).absolute() if chosen else runs_of(name) / time.strftime("%Y-%m-%d_%H-%M-%S")
    with writing(path):
        taken = chosen and not resumes and ((path / METRICS).exists() or has_checkpoints(path / CHECKPOINTS))
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
    if taken:
        raise _taken(path)
    if resumes:
        _refuse_a_live_run(path)
    if not chosen:
        path = _unused(path)
        new = [path, *(folder for folder in new if folder in path.parents)]
    try:
        yield make_folder(path)
    finally:
        with suppress(OSError):  # the first that is not empty ends it
            for folder in new:
                folder.rmdir()


def _taken(path):
    return UserError(f"--run-dir {path} already holds a run; go on with it by --resume, or choose another folder")


def _unused(path):
    """`path`, or `path-2`, ... where runs start in the same second. Making it is what claims it."""
    make_folder(path.parent)
    for number in range(1, sys.maxsize):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("unreachable")


class _Terminal(logging.Handler):
    """Log lines on stdout that leave a progress bar on stderr whole."""

    def emit(self, record):
        with writing("to the standard output"):
            tqdm.write(self.format(record), file=sys.stdout)
            sys.stdout.flush()


class _LogFile(logging.FileHandler):
    def handleError(self, record):
        """A disk that is full ends the log, and not the run."""
        log.removeHandler(self)
        log.warning("%s: nothing more is written: %s", self.baseFilename, sys.exc_info()[1])


def start_logging(speaks=True):
    """Lines of the logger "oktopk" go to stdout and, once there is one, to train.log; of silent ranks, nowhere."""
    log.setLevel(logging.DEBUG)
    if not speaks:
        log.handlers = [logging.NullHandler()]
        return
    terminal = _Terminal(logging.INFO)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    log.handlers = [terminal, MemoryHandler(_EARLY_LINES, flushLevel=logging.CRITICAL + 1)]


class RunLog:
    """The open files of a run. Use it as a context; every line is on disk when the call that wrote it returns."""

    def __init__(self, folder, config, steps, went_on_at=None):
        """`went_on_at` is (step, position in metrics.jsonl) of the checkpoint that the run goes on from."""
        self.folder, (first, position) = folder, went_on_at or (0, 0)
        self._first, self._position, self._loses, self._inspections = first, position, False, None
        if went_on_at is not None:
            self._metrics = _take_up(folder)
            self._open(config, first)
        else:
            with ExitStack() as undo:
                self._metrics = undo.enter_context(_claim(folder))
                undo.callback((folder / METRICS).unlink)
                if not (folder / CHECKPOINTS).exists():
                    make_folder(folder / CHECKPOINTS)
                    undo.callback((folder / CHECKPOINTS).rmdir)
                self._open(config, first)
                undo.pop_all()  # now there is a run
        bar = {"file": sys.stderr, "disable": not sys.stderr.isatty(), "dynamic_ncols": True}
        self._bar = tqdm(total=steps, initial=first, unit="step", **bar)

    def _open(self, config, first):
        from .board import Board  # only rank 0 needs it

        with atomic_write(self.folder / CONFIG) as file:
            json.dump(config, file, indent=2, allow_nan=False)
            file.write("\n")
        with writing(self.folder):
            self._board = Board(make_folder(self.folder / TENSORBOARD), first)
            self._file = _to_file(self.folder / LOG)

    @property
    def has_bar(self):
        return not self._bar.disable

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        with suppress(UserError):  # it may be this very log that cannot be written
            if error is not None:
                log.debug("the run ended here: %s", _what(error))  # for train.log; main says it aloud
        self._bar.close()
        self._board.close()
        log.removeHandler(self._file)
        for file in filter(None, (self._metrics, self._inspections, self._file)):
            with suppress(OSError):
                file.close()

    def position(self):
        """Where metrics.jsonl ends, all of it on the disk."""
        with self._lost_records():
            for file in filter(None, (self._metrics, self._inspections)):
                os.fsync(file.fileno())
            self._position = self._metrics.tell()
        return self._position

    @contextmanager
    def _lost_records(self, name=METRICS):
        """A disk that is full costs records, and not the run; that is said once."""
        try:
            yield
        except OSError as error:
            if not self._loses:
                log.warning("%s: records are lost: %s", self.folder / name, error.strerror or error)
            self._loses = True

    def step(self, step, density):
        self._to_board(self._write("iter", step.record()), step.iter)
        shown = {"epoch": step.epoch, "loss": f"{step.loss:.3f}", "phase": step.phase, "density": f"{density:g}"}
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def epoch(self, **values):
        self._to_board(self._write("epoch", {**_EPOCH, **values}), values["epoch"])

    def validation(self, **values):
        self._to_board(self._write("val", {**_VALIDATION, **values}), values["epoch"])

    def event(self, name, **values):
        self._write("event", {"name": name, **values})

    def resumed(self, **values):
        """The checkpoint has been taken: what was written down after it comes again."""
        with writing(self.folder / METRICS):
            _cut_at(self._metrics, self._position, self.folder / METRICS)
        _cut(self.folder / INSPECTIONS, self._first)
        self.event("resumed", **values)

    def inspection(self, record):
        """A line of a file of its own, which is there only if somebody inspects."""
        with self._lost_records(INSPECTIONS):
            if self._inspections is None:
                self._inspections = open(self.folder / INSPECTIONS, "ab", buffering=0)  # noqa: SIM115 - it stays open
            _append(self._inspections, json.dumps(record, allow_nan=False) + "\n")

    def histograms(self, net, epoch):
        for name, parameter in net.named_parameters():
            if parameter.grad is not None and parameter.grad.isfinite().all():
                self._board.histogram(f"gradient/{name}", parameter.grad.cpu().numpy(), epoch)

    def _write(self, kind, values):
        record = {"kind": kind, **{key: _finite(value) for key, value in values.items()}}
        with self._lost_records():
            _append(self._metrics, json.dumps(record, allow_nan=False) + "\n")
        return record

    def _to_board(self, record, step):
        for key, value in record.items():
            if isinstance(value, int | float) and key not in ("iter", "epoch"):
                self._board.scalar(f"{record['kind']}/{key}", value, step)


class NoRunLog:
    """What ranks other than 0 write: nothing."""

    has_bar = True

    def position(self):
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def step(self, step, density):
        pass

    def epoch(self, **values):
        pass

    def validation(self, **values):
        pass

    def event(self, name, **values):
        pass

    def resumed(self, **values):
        pass

    def inspection(self, record):
        pass

    def histograms(self, net, epoch):
        pass


def _what(error):
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    if isinstance(error, SystemExit):
        by_signal = error.code - SIGNAL_STATUS if isinstance(error.code, int) else 0
        return f"by {signal.Signals(by_signal).name}" if by_signal in _SIGNALS else f"exit status {error.code}"
    return str(error) or type(error).__name__


def _finite(value):
    """JSON has no NaN and no infinity: null says that there is no such number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _append(file, line):
    """All of the line, or nothing: a disk that is full takes a part of it."""
    end, data = file.seek(0, os.SEEK_END), line.encode()
    if file.write(data) < len(data):
        file.truncate(end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _claim(folder):
    """Open metrics.jsonl, which must be new: of two runs that were told the same folder, only one can do this."""
    with writing(folder / METRICS):
        try:
            return _locked(open(folder / METRICS, "xb", buffering=0), folder)
        except FileExistsError:
            raise _taken(folder) from None


def _locked(file, folder):
    """Two jobs that go on with one run would write into each other's files."""
    try:
        claim(file, f"{folder}: this run is still going on; end it first, or wait for it")
    except UserError:
        file.close()
        raise
    return file


def _take_up(folder):
    """Open metrics.jsonl as it is."""
    with writing(folder / METRICS):
        return _locked(open(folder / METRICS, "a+b", buffering=0), folder)


def _cut_at(file, position, name):
    """Leave what there was when the checkpoint was made; where that is not all there, what is whole of it."""
    length = file.seek(0, os.SEEK_END)
    if length < position:
        log.warning("%s is shorter than at the checkpoint: some records are lost", name)
        start = file.seek(max(0, length - LONGEST_RECORD))
        position = start + file.read(LONGEST_RECORD).rfind(b"\n") + 1
    file.truncate(position)


def _cut(path, step):
    """Leave the lines of the steps before this one: what came after the checkpoint comes again."""
    with writing(path), suppress(FileNotFoundError), open(path, "r+b") as file:
        end = 0
        for line in file:
            if not (line.endswith(b"\n") and _step_of(line) < step):
                break
            end += len(line)
        file.truncate(end)


def _step_of(line):
    try:
        return int(json.loads(line)["iter"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize


def _refuse_a_live_run(folder):
    if (folder / METRICS).exists():
        with writing(folder / METRICS), open(folder / METRICS, "a", encoding="utf-8") as file:
            _locked(file, folder)


def set_aside(folder):
    """A run that ended before its first checkpoint begins anew; what it wrote is kept under another name."""
    for name in (METRICS, INSPECTIONS):
        kept = (folder / f"{name}.{number}" for number in range(1, sys.maxsize))
        with writing(folder / name), suppress(FileNotFoundError):
            os.rename(folder / name, next(path for path in kept if not path.exists()))


def _to_file(path):
    """Log to a file from now on, beginning with what was said before there was one."""
    file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for handler in [handler for handler in log.handlers if isinstance(handler, MemoryHandler)]:
        handler.setTarget(file)
        handler.flush()
        log.removeHandler(handler)
    log.addHandler(file)
    return file


def config_of(options, figures, ranks):
    """What config.json holds."""
    return {
        "options": options.flat(),
        "figures": figures,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            **ranks.versions,
        },
        "git_commit": _git_commit(),
        "hosts": ranks.hosts,
        "ranks": ranks.size,
        "ranks_per_node": ranks.local_size,
        "command": sys.argv,
    }


def _git_commit():
    """None where there is no git or no repository: the code may have come as an archive."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
