"""Errors that a person is meant to read. Where they end: job.py."""


class UserError(Exception):
    """Wrong input. The message is one sentence that names the thing and the remedy."""


class SharedError(UserError):
    """A UserError that every rank raises at the same place, so that rank 0 can say it for all."""
