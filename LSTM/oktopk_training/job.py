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
import threading
import traceback
from itertools import zip_longest

from oktopk import starting, watchdog
from oktopk.launchers import LostRanks, launched_ranks, rendezvous_is_known
from oktopk.memory import is_out_of_memory, sentence

from .errors import SharedError, UserError
from .versions import refuse_old_versions

FAILURE_STATUS = 1
USER_ERROR_STATUS = 2
SECONDS_TO_SPEAK = 5.0  # that a rank leaves to another, which says what both met and ends the job
INTERRUPTED_STATUS = 130  # as a shell reports a process that Ctrl-C ended
BROKEN_PIPE_STATUS = 141  # and one that wrote to nobody
MALLOC_THRESHOLDS = {-1: 1 << 30, -3: 32 << 20}  # M_TRIM_THRESHOLD; M_MMAP_THRESHOLD, the most that glibc takes

_ranks = None  # that train together, once they are connected


def begin():
    """For a program that has yet to import torch, which takes seconds and needs a Python that is new enough.

    What ends all ranks comes first: from there on, whatever is missing on one of them ends the job.
    Ctrl-C ends it there and then: an exception would show where torch is just now, or be swallowed by it. `main` has
    the usual one again.
    """
    try:
        refuse_old_versions()
        _start_mpi()
    except (UserError, RuntimeError, ValueError) as error:
        _refuse(error)
    _keep_freed_memory()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # shells make background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, _end_at_once)


def _start_mpi():
    """Where it is to carry several ranks. Its start holds the interpreter, so Ctrl-C is the system's meanwhile."""
    if _given("--watchdog"):
        watchdog.set_limit(watchdog.LIMIT.read(_given("--watchdog")))
    if launched_ranks() == 1 or rendezvous_is_known() or _given("--transport") not in (None, "auto", "mpi"):
        return
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    starting.mpi()
    signal.signal(signal.SIGINT, handler)


def _given(option):
    """The command line's last word for an option, before there is anything to read it with."""
    given, words = None, sys.argv[1:]
    for word, following in zip_longest(words, words[1:]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            given = value if equals else following
    return given


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
            result = main(*args, **kwargs)
            sys.stdout.flush()
            return result
        except UserError as error:
            _refuse(error)
        except KeyboardInterrupt:
            _interrupt()
        except LostRanks as error:
            cause = None if error.told else str(error)
            _end_all(FAILURE_STATUS, cause and f"error: {cause}\n", cause)
        except Exception as error:
            if is_out_of_memory(error):
                _refuse(UserError(sentence(error)))
            if isinstance(error, BrokenPipeError) and not _are_several():
                _end_unread()
            if _are_several():
                text = f"rank {_ranks.rank}: {traceback.format_exc()}"
                _end_all(FAILURE_STATUS, text, f"{type(error).__name__}: {error}")
            raise
        finally:
            enlist(None)

    return run


def _refuse(error):
    if not _are_several():
        _say(f"error: {error}\n")
    elif not isinstance(error, SharedError):
        _end_all(USER_ERROR_STATUS, f"error: on rank {_ranks.rank}: {error}\n", str(error))
    else:
        if _ranks.is_first:
            _say(f"error: {error}\n")
        _ranks.barrier()  # launchers kill the rest once a rank has ended badly: rank 0 must have spoken
    sys.exit(USER_ERROR_STATUS)


def _end_unread():
    """Whoever read what this prints has gone, as `head` does; what is left to say is not for stderr."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE_STATUS)


def _interrupt():
    if _are_several():  # all of them are
        _end_all(INTERRUPTED_STATUS, "\ninterrupted\n", "interrupted by Ctrl-C")
    _say("\ninterrupted\n")
    sys.exit(INTERRUPTED_STATUS)


def _end_all(status, said, cause=None):
    """End all ranks with this one. What several meet at once is said by one of them."""
    if said and _ranks.may_speak():
        _say(said)
    elif said:
        threading.Event().wait(SECONDS_TO_SPEAK)
    _ranks.abort(status, cause)
    sys.exit(status)


def _are_several():
    return _ranks is not None and _ranks.size > 1


def _say(text):
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
