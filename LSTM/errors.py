"""Errors that a person is meant to read, and the one place where they end."""

import functools
import sys

USER_ERROR_STATUS = 2
INTERRUPTED_STATUS = 130  # as a shell reports a process that Ctrl-C ended


class UserError(Exception):
    """Wrong input. The message is one sentence that names the thing and the remedy."""


def ends_with_user_error(main):
    """Decorate a program's `main`: a UserError becomes one line on stderr and exit status 2, without a traceback.

    So does Ctrl-C, with the status that shells give it.
    """

    @functools.wraps(main)
    def run(*args, **kwargs):
        try:
            return main(*args, **kwargs)
        except UserError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(USER_ERROR_STATUS)
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            sys.exit(INTERRUPTED_STATUS)

    return run
