"""Errors that a person is meant to read, and the one place where they end."""

import functools
import sys

USER_ERROR_STATUS = 2


class UserError(Exception):
    """Wrong input. The message is one sentence that names the thing and the remedy."""


def ends_with_user_error(main):
    """Decorate a program's `main`: a UserError becomes one line on stderr and exit status 2, without a traceback."""

    @functools.wraps(main)
    def run(*args, **kwargs):
        try:
            return main(*args, **kwargs)
        except UserError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(USER_ERROR_STATUS)

    return run
