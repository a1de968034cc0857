"""Where the project lies, and folders that are named relative to it."""

import os
from pathlib import Path

from .errors import UserError

PROJECT = Path(__file__).resolve().parents[2]


def find_folder(name, option, remedy="name one that exists"):
    """A relative folder is looked for from the current folder, then from the project's: job scripts start in either."""
    candidates = list(dict.fromkeys([Path.cwd() / name, PROJECT / name]))
    for folder in candidates:
        if os.path.isdir(folder):  # unlike Path.is_dir, it takes a name that is too long
            return folder.resolve()
    looked = " nor ".join(str(folder) for folder in candidates)
    raise UserError(f"{option} {name}: there is no folder {looked}; {remedy}")
