"""The oldest Python and torch that this runs on. Imports nothing that they may be too old for."""

import platform
import re
import sys
from contextlib import suppress
from importlib import metadata

from .errors import UserError

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 3)


def numbers(version):
    """2.10.0+cu128 -> (2, 10, 0)."""
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", version).group().split("."))


def dotted(version):
    return ".".join(map(str, version))


def refuse_old_versions():
    if sys.version_info < OLDEST_PYTHON:
        raise UserError(
            f"this is Python {platform.python_version()}, and {dotted(OLDEST_PYTHON)} or newer is needed; "
            "activate an environment that has it"
        )
    with suppress(metadata.PackageNotFoundError):
        torch = metadata.version("torch")
        if numbers(torch) < OLDEST_TORCH:
            raise UserError(
                f"this is PyTorch {torch}, and {dotted(OLDEST_TORCH)} or newer is needed; "
                "activate an environment that has it, or install it"
            )
