"""main_trainer, on whose rank 1 something goes wrong: lost.py FAULT MOMENT FILE OPTION...

The file is written when it does. Moments are those of `MOMENTS`, and those before there is a trainer: "before MPI" and
"while torch is imported".
"""

import os
import signal
import sys
from pathlib import Path

fault, moment, mark = sys.argv[1:4]
sys.argv[1:] = sys.argv[4:]


FAULTS = ("raises", "leaves", "is killed", "is stopped")


def fails_here():
    return fault in FAULTS and "1" in (os.environ.get("RANK"), os.environ.get("PMI_RANK"))


def fail():
    Path(mark).touch()
    if fault == "raises":
        raise RuntimeError("rank one's own trouble")
    if fault == "leaves":
        sys.exit(0)
    os.kill(os.getpid(), signal.SIGKILL if fault == "is killed" else signal.SIGSTOP)


if moment == "before MPI" and fails_here():
    fail()

from oktopk_training.job import begin  # noqa: E402 - that comes first in programs

begin()
if moment == "while torch is imported" and fails_here():
    fail()

import main_trainer  # noqa: E402
from dl_trainer import DLTrainer  # noqa: E402
from oktopk import checkpoints  # noqa: E402
from oktopk.exchange import Exchange  # noqa: E402

MOMENTS = {
    "in compute": (DLTrainer, "_forward_backward"),
    "in the exchange": (Exchange, "split_and_reduce"),
    "in validation": (DLTrainer, "test"),
    "in a checkpoint": (checkpoints.Checkpoints, "_write_parts"),
}


def set_fault(owner, name):
    """In the third call on rank 1; of those that come once in an epoch, in the first."""
    original, calls = getattr(owner, name), []

    def faulty(*arguments, **options):
        calls.append(name)
        if len(calls) == (1 if name in ("test", "_write_parts") else 3):
            fail()
        return original(*arguments, **options)

    setattr(owner, name, faulty)


if moment in MOMENTS and fails_here():
    set_fault(*MOMENTS[moment])
main_trainer.main()
