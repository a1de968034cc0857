"""Errors that a person is meant to read. Where they end: job.py."""


class UserError(Exception):
    """Wrong input. The message is one sentence that names the thing and the remedy."""

    def __str__(self):
        return one_line(super().__str__())


class SharedError(UserError):
    """A UserError that every rank raises at the same place, so that rank 0 can say it for all."""


def one_line(text):
    """Names of files, and what is in them, can hold anything, such as words to the terminal that shows them."""
    return "".join(character if character.isprintable() else "?" for character in text)
