"""Command lines: what those of all programs have in common, and options made of fields (oktopk/fields.py)."""

import argparse
from dataclasses import fields

from oktopk.fields import FLAG

from .errors import UserError


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults in brackets, but for options without one."""

    def _get_help_string(self, action):
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated, so that a new one cannot change what an old script says."""

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, formatter_class=_Help, **settings)

    def error(self, message):
        raise UserError(f"{message}; --help lists the options")


def reading(kind):
    """For argparse's `type`: the value of a word, or an error that says what was expected."""

    def read(word):
        try:
            return kind.read(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(error) from None

    return read


def offered(options):
    """The fields of a dataclass that stand on a command line."""
    return [each for each in fields(options) if each.metadata.get("help")]


def add_options(group, options, default_of=lambda each: each.default):
    """An option for each field. What was not given is left out, for the dataclass knows its default."""
    for each in offered(options):
        kind, name, told = each.metadata["kind"], each.name.replace("_", "-"), each.metadata["help"]
        default = default_of(each)
        if default is not None and not isinstance(default, bool):
            told += f" (default: {default})"
        common = {"dest": each.name, "default": argparse.SUPPRESS, "help": told.replace("%", "%%")}
        if each.default is True:
            group.add_argument(f"--no-{name}", action="store_false", **common)
            continue
        flag = {"nargs": "?", "const": True} if kind is FLAG else {}
        group.add_argument(f"--{name}", type=reading(kind), metavar=kind.metavar, **flag, **common)
        if flag and each.default is None:
            refusal = {**common, "help": f"not --{name}"}
            group.add_argument(f"--no-{name}", action="store_false", **refusal)


def hyphenated(word):
    """--data_dir=a_b -> --data-dir=a_b."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
