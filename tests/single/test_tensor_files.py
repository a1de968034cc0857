"""Files of tensors and plain values: what was written comes back, and of what was not, nothing is believed or run."""

import io
import os
import pickle
import resource
import zipfile
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest
import torch

from oktopk.tensor_files import DamagedFile, read, sealed, write
from runs import differences, files_up_to

CUTS, FLIPS = 50, 100
CONTENT = {
    "weights": OrderedDict(a=torch.randn(40, 30), b=torch.arange(12.0).reshape(3, 4).t()),
    "kinds": [
        torch.arange(5).to(dtype)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
    ],
    "bytes": torch.arange(5, dtype=torch.uint8),
    "flags": torch.tensor([True, False]),
    "none": torch.empty(0, 7),
    "scalar": torch.tensor(3.5),
    "plain": {"one": 1, 2: [True, None, -1.5e300, 2**70], "text": "ä\n", "nested": ((), (1, (2, 3)))},
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.pt"


def listed(value):
    """Tuples and ordered dictionaries are as good as lists and dictionaries."""
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, list | tuple) else value


def test_what_was_written_comes_back_to_the_bit(file):
    size, digest = write(file, CONTENT)
    assert size == file.stat().st_size
    for found in (read(file, size, digest), read(file), torch.load(file, weights_only=True)):
        assert list(differences(listed(found), listed(CONTENT))) == []
    assert os.listdir(file.parent) == ["file.pt"]


def test_what_torch_has_saved_is_read_too(file):
    torch.save(CONTENT, file)
    assert list(differences(listed(read(file)), listed(CONTENT))) == []
    with pytest.raises(DamagedFile, match="other bytes"):
        read(file, digest="0" * 64)  # but not for a file of ours


def test_tensors_that_share_their_numbers_are_as_large_as_they_were(file):
    numbers = torch.randn(1000)
    write(file, {"all": numbers, "some": numbers[10:20], "again": numbers})
    assert file.stat().st_size < 6000
    assert torch.equal(read(file)["some"], numbers[10:20])


def damaged(file, size, digest):
    """Read it as a part of a checkpoint and as a saved model: only the latter may go well, with the same content."""
    with pytest.raises(DamagedFile, match=file.name):
        read(file, size, digest)
    with suppress(DamagedFile):
        assert list(differences(listed(read(file)), listed(CONTENT))) == []
        return False
    return True


def test_a_file_that_was_cut_anywhere_is_damaged(file):
    size, digest = write(file, CONTENT)
    whole = file.read_bytes()
    for length in np.linspace(0, size - 1, CUTS).astype(int):
        file.write_bytes(whole[:length])
        assert damaged(file, size, digest)


def test_a_bit_that_has_changed_anywhere_is_noticed(file):
    size, digest = write(file, CONTENT)
    whole, random = file.read_bytes(), np.random.default_rng(0)
    for place, bit in zip(random.integers(size, size=FLIPS), random.integers(8, size=FLIPS), strict=True):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        assert damaged(file, size, digest)


def test_no_bit_of_the_last_200_bytes_says_that_there_is_no_seal(file):
    size, digest = write(file, CONTENT)
    whole = file.read_bytes()
    for place in range(size - 200, size):
        for bit in range(8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            damaged(file, size, digest)


class Calls:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


def test_nothing_in_a_file_is_run(file, tmp_path):
    for function, argument in ((os.mkdir, tmp_path / "made"), (eval, "1"), (torch.load, file), (bytearray, 10**9)):
        torch.save({"a": Calls(function, str(argument) if function is not bytearray else argument)}, file)
        with pytest.raises(DamagedFile, match=r"file\.pt asks for"):
            read(file)
    assert os.listdir(tmp_path) == ["file.pt"]


class Storage(NamedTuple):
    kind: type
    count: int


class Claim:
    """A tensor as a file may describe it, whatever numbers there are."""

    def __init__(self, kind=torch.FloatStorage, count=4, offset=0, size=(4,), stride=(1,)):
        self.described = Storage(kind, count), offset, size, stride, False, OrderedDict()

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.described


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", value.kind, "0", "cpu", value.count) if isinstance(value, Storage) else None


def archive(file, content, numbers=16, compression=zipfile.ZIP_STORED):
    """What torch.save would make of such claims: the one part `data/0` has so many bytes."""
    described = io.BytesIO()
    Pickler(described, 2).dump(content)
    with zipfile.ZipFile(file, "w", compression) as made:
        made.writestr("a/data.pkl", described.getvalue())
        made.writestr("a/byteorder", "little")
        made.writestr("a/data/0", bytes(numbers))


def test_an_honest_claim_is_taken(file):
    archive(file, {"a": Claim(size=(2, 2), stride=(2, 1))})
    assert torch.equal(read(file)["a"], torch.zeros(2, 2))


CLAIMS = {
    "more numbers than there are": [Claim(count=10**9, size=(10**9,))],
    "a stride of 0 for a billion": [Claim(size=(10**9,), stride=(0,))],
    "a negative size": [Claim(size=(-1, -4))],
    "beyond the end": [Claim(offset=3)],
    "before the start": [Claim(offset=-1)],
    "sizes of text": [Claim(size=("four",))],
    "two kinds of numbers": [Claim(), Claim(torch.IntStorage)],
    "a storage alone": [Storage(torch.FloatStorage, 4)],
    "an unknown kind": [Claim(torch.ComplexFloatStorage, 2, size=(2,))],
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_file_claims_is_not_believed(claim, file):
    archive(file, CLAIMS[claim])
    with pytest.raises(DamagedFile, match=r"file\.pt"):
        read(file)


def test_a_file_takes_no_more_memory_than_it_has_bytes(file):
    archive(file, [Claim(count=1 << 26, size=(1 << 26,))], numbers=1 << 28, compression=zipfile.ZIP_DEFLATED)
    assert file.stat().st_size < 1 << 21
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedFile, match="is compressed"):
        read(file)
    (file.parent / "index.pt").write_bytes(pickle_of_a_long_list())
    assert read(file.parent / "index.pt") == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def pickle_of_a_long_list():
    """An archive of one line of a pickle that asks for 8 GB: LONG_BINPUT at place 2**30 of the unpickler's memory."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as made:
        made.writestr("a/data.pkl", b"\x80\x02]r\xff\xff\xff\x3f.")
        made.writestr("a/byteorder", "little")
    return whole.getvalue()


def test_what_is_no_file_is_said_to_be_none(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(OSError, match="directory"):
            read(place)
    for place in ("/dev/zero", tmp_path / "fifo"):
        with pytest.raises(DamagedFile, match="is not a regular file"):
            read(place)


def test_a_full_disk_leaves_the_file_before(file):
    write(file, {"a": torch.zeros(10)})
    with files_up_to(10_000), pytest.raises(OSError, match=r"too large: .*file\.pt"):
        write(file, {"a": torch.zeros(10_000)})
    assert os.listdir(file.parent) == ["file.pt"]
    assert torch.equal(read(file)["a"], torch.zeros(10))


def test_the_seal_is_that_of_all_before_it():
    assert bytes(sealed({"a": 1}))[-71:-64] == b"sha256 "
