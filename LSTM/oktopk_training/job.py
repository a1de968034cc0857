"""How a program begins, and the one place where errors end it: with a line and a status, and on all ranks.

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import torch

@program
def main(): ...
"""

import ctypes
import functools
import os
import signal
import sys
import traceback

from oktopk.launchers import LostRanks

from .errors import SharedError, UserError
from .versions import refuse_old_versions

FAILURE_STATUS = 1
USER_ERROR_STATUS = 2
INTERRUPTED_STATUS = 130  # as a shell reports a process that Ctrl-C ended
MALLOC_THRESHOLDS = {-1: 1 << 30, -3: 32 << 20}  # M_TRIM_THRESHOLD; M_MMAP_THRESHOLD, the most that glibc takes

_ranks = None  # that train together, once they are connected


def begin():
    """For a program that has yet to import torch, which takes seconds and needs a Python that is new enough.

    Ctrl-C ends it there and then: an exception would show where torch is just now, or be swallowed by it. `main` has
    the usual one again.
    """
    try:
        refuse_old_versions()
    except UserError as error:
        _refuse(error)
    _keep_freed_memory()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # shells make background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, _end_at_once)


def _keep_freed_memory():
    """Or glibc hands it back to the system in each step, and the next one faults it in page by page: 3% of the time."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, threshold in MALLOC_THRESHOLDS.items():
            libc.mallopt(parameter, threshold)


def _end_at_once(*_):
    os.write(sys.stderr.fileno(), b"\ninterrupted\n")
    os._exit(INTERRUPTED_STATUS)


def enlist(ranks):
    """What ends this rank ends all of them from now on: they would wait for it in their next collective."""
    global _ranks
    _ranks = ranks


def program(main):
    """Decorate a program's `main`: a UserError becomes one line on stderr and exit status 2, without a traceback.

    Ctrl-C has the status that shells give it. Any other error is one of the program: it keeps its traceback, and ends
    the job on all ranks.
    """

    @functools.wraps(main)
    def run(*args, **kwargs):
        if signal.getsignal(signal.SIGINT) is _end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return main(*args, **kwargs)
        except UserError as error:
            _refuse(error)
        except KeyboardInterrupt:
            _interrupt()
        except LostRanks as error:
            if not error.told:
                _say(f"error: on rank {_ranks.rank}: {error}\n")
            _ranks.abort(FAILURE_STATUS)
            sys.exit(FAILURE_STATUS)
        except Exception as error:
            if _are_several():
                _say(f"rank {_ranks.rank}: {traceback.format_exc()}")
                _ranks.abort(FAILURE_STATUS, f"{type(error).__name__}: {error}")
            raise
        finally:
            enlist(None)

    return run


def _refuse(error):
    if _are_several():
        shared = isinstance(error, SharedError)
        if _ranks.is_first or not shared:
            _say(f"error: {error if shared else f'on rank {_ranks.rank}: {error}'}\n")
        if not shared:
            _ranks.abort(USER_ERROR_STATUS, str(error))
        _ranks.barrier()  # launchers kill the rest once a rank has ended badly: rank 0 must have spoken
    else:
        _say(f"error: {error}\n")
    sys.exit(USER_ERROR_STATUS)


def _interrupt():
    if _are_several():  # all of them are, and their launcher says so
        _ranks.abort(INTERRUPTED_STATUS, "interrupted")
    _say("\ninterrupted\n")
    sys.exit(INTERRUPTED_STATUS)


def _are_several():
    return _ranks is not None and _ranks.size > 1


def _say(text):
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
