"""What becomes of a job in which something goes wrong, for any fault, moment and transport; by itself, a table of all.

PYTHONPATH=LSTM:tests:tests/parallel python tests/parallel/failures.py
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from uuid import uuid4

from ranks import ROOT, WORKERS, launcher

from corpora import SMALL, make_corpus

LIMIT = 6  # seconds, of the watchdog
SECONDS = 180  # until a job counts as hanging
SECONDS_TO_END = 10  # that processes may take longer than their launcher
VARIABLE = "OKTOPK_JOB_OF_TESTS"
FAULTS = ("raises", "leaves", "is killed", "is stopped")
MOMENTS = (
    *("before MPI", "while torch is imported"),
    *("in compute", "in the exchange", "in validation", "in a checkpoint"),
)
FROM_OUTSIDE = {  # of a job that has made its first checkpoint: to its launcher, or to its data
    "Ctrl-C": lambda job, data: os.killpg(job.pid, signal.SIGINT),
    "SIGTERM": lambda job, data: os.killpg(job.pid, signal.SIGTERM),
    "the audio goes": lambda job, data: [path.unlink() for path in data.glob("train*.wav")],
}
OPTIONS = (
    *("--batch-size", "4", "--max-epochs", "400", "--val-interval", "2", "--checkpoint-interval", "20"),
    *("--compression", "--compressor", "oktopk", "--warmup-iters", "2", "--watchdog", str(LIMIT)),
)
TRANSPORTS = {
    "MPI": lambda ranks: [launcher(), "-n", str(ranks), sys.executable],
    "torch": lambda ranks: [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
    ],
}


@dataclass
class End:
    """How a job ended: so many seconds after the fault."""

    seconds: float
    status: int
    said: str  # on stderr, by ranks
    log: list  # lines of train.log
    checkpoints: int
    orphans: list

    def cause(self):
        """What our programs and Python have said, and not the launchers."""
        lines = re.findall(r"^(?:error: .*|warning: .*|\w*Error: .*|interrupted)$", self.said, re.MULTILINE)
        return [line for line in lines if "ChildFailed" not in line]


def run(fault, moment, transport, corpus, folder, ranks=3, **variables):
    """Start a job, see it fail, and wait for its end."""
    mark, key, data = folder / "failed", uuid4().hex, shutil.copytree(corpus, folder / "data")
    words = [WORKERS / "lost.py", fault, moment, mark, *SMALL, *OPTIONS]
    words += ["--data-dir", data, "--run-dir", folder / "run"]
    environment = {
        **{**os.environ, VARIABLE: key, "OMP_NUM_THREADS": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "0"},
        **{"OKTOPK_WATCHDOG": str(LIMIT), "PYTHONPATH": str(ROOT / "LSTM"), **variables},
    }
    command = [*TRANSPORTS[transport](ranks), *map(str, words)]
    waited_for = (folder / "run" / "checkpoints" / "last.pt") if fault in FROM_OUTSIDE else mark
    with open(folder / "stderr", "w") as errors:
        job = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        began = _wait_for(job, waited_for.exists)
        if fault in FROM_OUTSIDE:
            FROM_OUTSIDE[fault](job, data)
        status = _end_of(job, key)
    orphans = _left_of(key)
    seconds = time.monotonic() - began
    _kill(orphans)
    log, saved = folder / "run" / "train.log", (folder / "run" / "checkpoints").glob("step-*/whole.json")
    lines = log.read_text().splitlines() if log.exists() else []
    return End(seconds, status, (folder / "stderr").read_text(), lines, len(list(saved)), orphans)


def _wait_for(job, reached):
    """When the fault is seen to have come."""
    until = time.monotonic() + SECONDS
    while not reached() and job.poll() is None and time.monotonic() < until:
        Event().wait(0.02)
    return time.monotonic()


def _end_of(job, key):
    try:
        return job.wait(SECONDS)
    except subprocess.TimeoutExpired:
        _kill(_processes_of(key))
        return job.wait()


def _left_of(key):
    """Its processes that do not end with the launcher."""
    until = time.monotonic() + SECONDS_TO_END
    while (left := _processes_of(key)) and time.monotonic() < until:
        Event().wait(0.1)
    return left


def _processes_of(key):
    """Those of the job that are left: they have inherited its variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{VARIABLE}={key}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def _kill(processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)


def rows(corpus, folder):
    cases = [(fault, moment) for fault in FAULTS for moment in MOMENTS] + [
        (name, "in compute") for name in FROM_OUTSIDE
    ]
    for fault, moment in cases:
        ends = []
        for transport in TRANSPORTS:
            place = folder / f"{fault}, {moment}, {transport}"
            place.mkdir()
            ends.append(run(fault, moment, transport, corpus, place))
        yield [fault, moment, *columns(ends)]


def columns(ends):
    """What the transports' ends have in common is said once."""
    texts = [
        [f"{end.seconds:.1f}" for end in ends],
        [str(end.status) for end in ends],
        [" — ".join(end.cause()) or "by the launcher alone" for end in ends],
        [end.log[-1].split(" ", 3)[3] if end.log else "none yet" for end in ends],
        [f"{end.checkpoints}, {len(end.orphans)}" for end in ends],
    ]
    return [" / ".join(dict.fromkeys(each)) if number else " / ".join(each) for number, each in enumerate(texts)]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = make_corpus(folder / "corpus", train=24, val=3)
        head = ["fault", "when", "seconds", "status", "said", "last line of train.log", "checkpoints, processes left"]
        for row in (head, ["---"] * len(head), *rows(corpus, folder)):
            sys.stdout.write(f"| {' | '.join(row).replace(name, '')} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
