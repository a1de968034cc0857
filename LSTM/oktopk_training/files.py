"""Writing files and folders so that a reader never meets half of one."""

import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UserError

PARTIAL_SUFFIX = ".part"


@contextmanager
def writing(name):
    """The block writes `name`: an OSError in it (a full disk, say) becomes a UserError that says so."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {name}: {error.strerror or error}.") from error


@contextmanager
def atomic_write(path, mode="w"):
    """Open `path` for writing (`mode` "w" or "wb"); it appears, whole, only when the block ends without an error.

    The block should only produce and write: an OSError in it (a full disk, say) is reported as failure to write `path`.
    """
    path, partial = Path(path), _partial(path)
    _refuse_what_is_no_file(path)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with writing(path):
            with open(partial, mode, **text) as file:
                yield file
            os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()


def refuse_unwritable(path):
    """For a program that has long to work before it writes `path`."""
    _refuse_what_is_no_file(Path(path))
    with writing(path):
        _partial(path).touch()
        _partial(path).unlink()


def _partial(path):
    """The process id keeps two writers apart; the dot keeps the file out of `ls` and of globs such as *.wav."""
    return Path(path).with_name(f".{Path(path).name}.{os.getpid()}{PARTIAL_SUFFIX}")


def _refuse_what_is_no_file(path):
    """Something else than a regular file, such as /dev/null, would be replaced by one."""
    with writing(path):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
    if not stat.S_ISREG(mode):
        raise UserError(f"cannot write {path}: it is there and is not a regular file; choose another name.")


def claim(file, taken):
    """Lock an open file or folder until it is closed; a UserError that says `taken` where another program has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(taken) from None
    except OSError:
        pass  # of a file system that knows no locks


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
