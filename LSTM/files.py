"""Writing files and folders so that a reader never meets half of one."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path

from errors import UserError

PARTIAL_SUFFIX = ".part"


@contextmanager
def atomic_write(path, mode="w"):
    """Open `path` for writing (`mode` "w" or "wb"); it appears, whole, only when the block ends without an error.

    The block should only produce and write: an OSError in it (a full disk, say) is reported as failure to write `path`.
    """
    path = Path(path)
    # The process id keeps two writers apart; the dot keeps the file out of `ls` and of globs such as *.wav.
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(partial, mode, **text) as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            partial.unlink()


def make_folder(path):
    """Make `path` and its parents where needed; a UserError says why that, or writing in it, is not possible."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror}; choose another place.") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"cannot write in the folder {path}: permission denied; choose another place.")
    return path
