"""Runs main_trainer with the arguments after the first, and is killed: argv[1] is JSON of rank, moment, call and part.

The rank gets SIGKILL (or another `number`), when so large a part of that call (the last one's time) has passed.
"""

import functools
import json
import os
import signal
import sys
import threading
import time

import main_trainer
from dl_trainer import DLTrainer
from oktopk.checkpoints import Checkpoints
from oktopk.reducer import Reducer
from oktopk_training.ranks import Ranks

MOMENTS = {
    "compute": (DLTrainer, "_forward_backward"),
    "exchange": (Reducer, "reduce"),
    "checkpoint": (Checkpoints, "save"),
    "validation": (DLTrainer, "test"),
}
FIRST = 0.01  # seconds, about, that a call takes which was not made before


def doomed(action, call, part, number=signal.SIGKILL):
    calls, seconds = 0, FIRST

    @functools.wraps(action)
    def wrapped(*arguments, **named):
        nonlocal calls, seconds
        calls += 1
        if calls == call:
            threading.Timer(part * seconds, os.kill, (os.getpid(), number)).start()
        started = time.monotonic()
        try:
            return action(*arguments, **named)
        finally:
            seconds = time.monotonic() - started

    return wrapped


def arm(rank, moment, **plan):
    """As soon as it is known which rank this is."""
    made = Ranks.__init__

    def armed(self, communicator):
        made(self, communicator)
        if self.rank == rank:
            owner, name = MOMENTS[moment]
            setattr(owner, name, doomed(getattr(owner, name), **plan))

    Ranks.__init__ = armed


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    if plan:
        arm(**plan)
    main_trainer.main(sys.argv[2:])
