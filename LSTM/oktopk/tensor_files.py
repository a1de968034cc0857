"""Files of tensors and plain values: written whole, and read without running what is in them.

They are what `torch.save` writes: a zip archive, in which `data.pkl` describes everything but the numbers of tensors,
and `data/0`, `data/1` ... hold those. Its comment, which other readers skip, is the SHA-256 of what stands before it.

`torch.load` trusts the sizes that a file claims: one of 1 KB can ask for any memory. The reader here takes tensors of
plain types and plain values, nothing else, and as much memory as the file has bytes.
"""

import errno
import hashlib
import io
import os
import pickle
import stat
import struct
import sys
import zipfile
from collections import OrderedDict
from typing import NamedTuple

import torch

SEAL = b"sha256 "
_DIGITS = 64
_TAKEN = (
    "which is not taken: make it one of dictionaries, lists, tuples, text, numbers, None, and plain tensors of the "
    "usual types (of a parameter, what detach() gives; of a Counter, dict() of it)"
)
_BLOCK = 1 << 20
_MOST_DESCRIBED = 1 << 22  # bytes of data.pkl, and of the archive's index: a thousand tensors take a twentieth of it
_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
# What torch.save writes. Other codes call methods of what a file has made, or take memory at its word.
_OPCODES = [
    getattr(pickle, name)
    for name in (
        *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
        *("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "EMPTY_LIST", "APPEND", "APPENDS"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS"),
    )
]
# Python's readers of zip files and of pickles were not written for damaged ones: they can end with any of these.
_OF_DAMAGED_FILES = (
    *(RuntimeError, EOFError, LookupError, ValueError, AttributeError, TypeError, MemoryError, ArithmeticError),
    *(AssertionError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile),
)


class DamagedFile(ValueError):
    """It is not what was written, or was made by somebody else."""


class StrangeContent(TypeError):
    """What is to be written would not be read."""


# ---- writing


def write(path, content):
    """Write it and wait until the disk has it. Returns its size and its SHA-256."""
    whole = sealed(content)  # in memory first: torch reports a disk that is full in its own way
    write_bytes(path, whole)
    return len(whole), bytes(whole[-_DIGITS:]).decode()


def sealed(content):
    """The bytes of a file of this content. What the reader would refuse is a `StrangeContent`."""
    _refuse_strange(content)
    whole = io.BytesIO()
    torch.save(content, whole)
    _refuse_long_description(whole)
    whole.seek(-2, os.SEEK_END)  # the length of the comment comes last
    whole.write(struct.pack("<H", len(SEAL) + _DIGITS) + SEAL)
    whole.write(hashlib.sha256(whole.getbuffer()).hexdigest().encode())
    return whole.getbuffer()


def _refuse_strange(content, *where):
    kind = type(content)
    if kind is torch.Tensor:
        if content.layout != torch.strided or content.dtype not in _DTYPES.values():
            raise StrangeContent(f"{_place(where)} is a tensor of {content.layout} and {content.dtype}, {_TAKEN}")
    elif kind in (dict, OrderedDict):
        for key, value in content.items():
            _refuse_strange(key, *where, "a key")
            _refuse_strange(value, *where, key)
    elif kind in (list, tuple):
        for number, each in enumerate(content):
            _refuse_strange(each, *where, number)
    elif kind not in (str, int, float, bool, type(None)):
        raise StrangeContent(f"{_place(where)} is of the type {kind.__module__}.{kind.__qualname__}, {_TAKEN}")


def _place(where):
    return "".join(f"[{each!r}]" for each in where) or "the content"


def _refuse_long_description(whole):
    with zipfile.ZipFile(whole) as archive:
        if max(each.file_size for each in archive.infolist() if each.filename.endswith("/data.pkl")) > _MOST_DESCRIBED:
            raise StrangeContent("it has a million plain values or so: put them into a tensor")


def write_bytes(path, content):
    """`path` appears once all of it is on the disk."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(path):
    """What was renamed in it or taken away stays so when the machine goes down."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ---- reading


def read(path, size=None, digest=None):
    """The content of a file, which has this size and SHA-256 if they are given. An OSError says what cannot be opened.

    Files that `torch.save` made without a seal are taken where none is asked for.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DamagedFile(f"{path} is not a regular file")
            if size not in (None, status.st_size):
                raise DamagedFile(f"{path} has another length than when it was written")
            return _read(file, status.st_size, digest)
    except DamagedFile as error:
        raise DamagedFile(f"{path} {error}" if str(path) not in str(error) else str(error)) from None
    except (*_OF_DAMAGED_FILES, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is a place before the file's beginning
            raise
        # Not torch's words, nor Python's: some advise to load the file in a way that lets it run code.
        raise DamagedFile(f"{path} cannot be read, or holds what such a file does not") from None


def _at_once(path, flags):
    """A pipe would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(file, size, digest):
    _refuse_a_long_index(file)
    with zipfile.ZipFile(file) as archive:
        if archive.comment or digest is not None:
            _check_seal(file, size, archive.comment, digest)
        _refuse_what_grows(archive.infolist(), size)
        reader = _Reader(archive, size)
        return reader.filled(reader.load())


def _refuse_a_long_index(file):
    """`ZipFile` reads all of it, and then takes ten times the memory."""
    end = zipfile._EndRecData(file)
    if end is not None and end[zipfile._ECD_SIZE] > _MOST_DESCRIBED:
        raise DamagedFile("lists more parts than a model has")


def _check_seal(file, size, comment, wanted):
    """A file without a seal has the check sums of zip archives: reading looks at those."""
    file.seek(0)
    found, rest = hashlib.sha256(), size - _DIGITS
    while rest > 0 and (block := file.read(min(rest, _BLOCK))):
        found.update(block)
        rest -= len(block)
    digest = found.hexdigest()
    if comment != SEAL + digest.encode() or wanted not in (None, digest):
        raise DamagedFile("has other bytes than when it was written")


def _refuse_what_grows(files, size):
    if any(each.compress_type != zipfile.ZIP_STORED or each.compress_size != each.file_size for each in files):
        raise DamagedFile("is compressed")
    if sum(each.file_size for each in files) > size:
        raise DamagedFile("would take more memory than it has bytes")


class _Storage(NamedTuple):
    key: str
    dtype: torch.dtype
    count: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    size: tuple
    stride: tuple


class _Reader(pickle._Unpickler):  # the one in C takes any memory that an index in a pickle asks for
    """Makes descriptions of tensors; `filled` makes those into tensors, once nothing in the file is acted on."""

    def __init__(self, archive, size):
        (described,) = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        if archive.getinfo(described).file_size > _MOST_DESCRIBED:
            raise DamagedFile("describes more than a model has")
        super().__init__(io.BytesIO(archive.read(described)))
        self.archive, self.folder = archive, described.removesuffix("data.pkl")
        self.storages, self.room = {}, size
        if archive.read(f"{self.folder}byteorder") != sys.byteorder.encode():
            raise DamagedFile("has numbers of another byte order")

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return lambda: {}  # with arguments, some bytes of a file would copy what others have made, again and again
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: _Tensor(storage, offset, size, stride)
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise DamagedFile(f"asks for {f'{module}.{name}'[:80]!r}")

    def persistent_load(self, place):
        _, dtype, key, _, count = place
        return _Storage(key, dtype, count)

    def load_build(self):
        """The state of a dictionary (`_metadata`), of which nothing is needed."""
        self.stack.pop()

    dispatch = {  # noqa: RUF012 - as pickle has it
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES},
        pickle.BUILD[0]: load_build,
    }

    def filled(self, value):
        """The same with its tensors. What stands in it more than once counts as often: it might never end."""
        self.room -= 1 + (len(value) if isinstance(value, str) else 0)
        if self.room < 0:
            raise DamagedFile("holds the same over and over")
        if isinstance(value, _Tensor):
            return self._tensor(*value)
        if isinstance(value, _Storage):
            raise DamagedFile("holds what is no tensor")
        if isinstance(value, dict):
            return {self.filled(key): self.filled(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.filled, value))
        return value

    def _tensor(self, storage, offset, size, stride):
        if storage.key not in self.storages:
            self.storages[storage.key] = storage, self._numbers(*storage)
        first, flat = self.storages[storage.key]
        if first != storage:
            raise DamagedFile("has one part as two kinds of numbers")
        if torch.Size(size).numel() > len(flat):
            raise DamagedFile("has a tensor that claims more numbers than are there")
        return flat.as_strided(size, stride, offset)

    def _numbers(self, key, dtype, count):
        name = f"{self.folder}data/{key}"
        if self.archive.getinfo(name).file_size != count * dtype.itemsize:
            raise DamagedFile(f"has a part {name[:80]!r} of another size than it says")
        content = bytearray(self.archive.read(name))
        return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
