"""Errors that a person is meant to read, and the one place where they end."""

import functools
import os
import signal
import sys

USER_ERROR_STATUS = 2
INTERRUPTED_STATUS = 130  # as a shell reports a process that Ctrl-C ended


class UserError(Exception):
    """Wrong input. The message is one sentence that names the thing and the remedy."""


def end_at_ctrl_c():
    """For a program that has yet to import torch, which takes seconds: Ctrl-C ends it there and then.

    An exception would show where torch is just now, or be swallowed by it. `main` has the usual one again.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # shells make background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, _end)


def _end(*_):
    os.write(sys.stderr.fileno(), b"\ninterrupted\n")
    os._exit(INTERRUPTED_STATUS)


def ends_with_user_error(main):
    """Decorate a program's `main`: a UserError becomes one line on stderr and exit status 2, without a traceback.

    So does Ctrl-C, with the status that shells give it.
    """

    @functools.wraps(main)
    def run(*args, **kwargs):
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return main(*args, **kwargs)
        except UserError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(USER_ERROR_STATUS)
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            sys.exit(INTERRUPTED_STATUS)

    return run
