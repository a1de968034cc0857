"""Reading files that others wrote: what is no regular file would hang, and what is too large would fill the memory.

All that can be wrong with opening one is an OSError whose `strerror` says what.
"""

import csv
import errno
import io
import itertools
import json
import os
import stat

from .errors import one_line

SHOWN = 80  # characters of a file's content in a message
MOST_OF_A_MANIFEST = 256 << 20  # bytes: two million lines
LONGEST_LINE = 1 << 20  # characters; a path has at most 4,096
LONGEST_PATH = 200  # characters of a path in a message


def check_file(path, most=None):
    """The size of a regular file of at most `most` bytes."""
    try:
        status = os.stat(path)
    except ValueError as error:  # its name holds a NUL
        raise OSError(errno.EINVAL, str(error)) from None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(status.st_mode):  # reading from a pipe or a device may never end
        raise OSError(errno.EINVAL, "it is not a regular file")
    if most is not None and status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, and more than {most} are not read")
    return status.st_size


def read_bytes(path, most):
    check_file(path, most)
    with open(path, "rb") as file:
        return file.read(most)  # what /proc holds says that it is empty


def read_text(path, most):
    """UTF-8, with or without the mark that Windows begins files with."""
    return "".join(read_lines(path, most))


def read_lines(path, most):
    """The same line by line: a list of them all can take many times their memory."""
    text = io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding="utf-8-sig")
    try:
        for number in itertools.count(1):
            line = text.readline(LONGEST_LINE + 1)
            if len(line) > LONGEST_LINE:
                raise OSError(errno.EFBIG, f"line {number} has more than {LONGEST_LINE} characters")
            if not line:
                return
            yield line
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"it is not UTF-8 text: {error.reason}") from None


def read_json(path, most):
    """What is not JSON is a ValueError."""
    return parse_json(read_text(path, most))


def parse_json(text):
    """A ValueError too if it holds NaN or Infinity, which JSON does not know, or is nested absurdly deep."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(word):
    raise ValueError(f"{word} is no JSON")


def comma_separated(line):
    """The fields of a line, in quotes or not; none where it cannot be taken apart."""
    try:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True))]
    except (csv.Error, StopIteration):  # a field may be 128 KiB long
        return []


def with_commas(fields):
    """The line of these fields, in quotes where they need them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def quoted(text):
    """As much of a file's content as belongs into a message."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}... ({len(text)} characters)"


def shown(path):
    """A path that a file named: its beginning and its end if it is longer than paths are."""
    text = str(path)
    return text if len(text) <= LONGEST_PATH else f"{text[: SHOWN // 2]}...{text[-SHOWN // 2 :]}"


def printable(text):
    """A text from a file, as a picture or a line can show it."""
    return one_line(str(text)[:SHOWN])
