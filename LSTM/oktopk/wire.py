"""What entries look like between ranks: the only place.

A format packs entries into buffers, one part for each rank that they go to, and makes entries of what arrives. To add
one, write a class and a line in `wires`; its name is then an option of every sparse compressor.
"""

import abc
import importlib.util
from functools import cache
from typing import NamedTuple

import torch

from . import coding
from .devices import on_cpu
from .entries import Entries


class Packed(NamedTuple):
    """A buffer whose consecutive parts, of these sizes, belong to ranks 0, 1, …"""

    buffer: torch.Tensor
    sizes: list


class Wire(abc.ABC):
    """`dtypes` are those of its buffers. How much a part takes may depend on the data: sizes are sent along.

    `entry_bytes` is about what an entry takes, and `precision` the share of a value that rounding may change.
    """

    dtypes: tuple
    entry_bytes = 8
    precision = 0.0

    def get_ready(self, device):  # noqa: B027 - most are
        """Load what entries of this device are packed with, so that no step waits for it."""

    def rounded(self, entries):
        """The entries as the wire can carry them. Choices and sums go on with these on every rank, the own one too."""
        return entries

    @abc.abstractmethod
    def pack(self, entries, counts):
        """Consecutive parts of these counts as a list of `Packed`, one for each of `dtypes`."""

    @abc.abstractmethod
    def unpack(self, packed, counts):
        """The entries of parts of these counts, one part after another."""


class Separate(Wire):
    """Indices in one buffer, values in another, as they lie in memory: nothing is copied."""

    dtypes = (torch.int32, torch.float32)

    def pack(self, entries, counts):
        return [Packed(entries.indices, counts), Packed(entries.values, counts)]

    def unpack(self, packed, counts):
        return Entries(*(part.buffer for part in packed))


class Joined(Wire):
    """Pairs of index and value in one buffer: half the messages, and half the copies from and to a device."""

    dtypes = (torch.int32,)

    def pack(self, entries, counts):
        pairs = torch.stack((entries.indices, entries.values.view(torch.int32)), 1)
        return [Packed(pairs.view(-1), [2 * count for count in counts])]

    def unpack(self, packed, counts):
        indices, values = packed[0].buffer.view(-1, 2).t().clone(memory_format=torch.contiguous_format)
        return Entries(indices, values.view(torch.float32))


class Gaps(Wire):
    """Indices as the gaps between them, of a byte each where they are small, then values; all in one buffer."""

    dtypes = (torch.uint8,)
    entry_bytes = 5
    dtype_of_values = torch.float32

    def get_ready(self, device):
        _coding(on_cpu(device))

    def pack(self, entries, counts):
        values = _bytes_of(entries.values.to(self.dtype_of_values))
        return [Packed(*_coding(on_cpu(values.device)).encode(entries.indices, values, counts))]

    def unpack(self, packed, counts):
        (part,) = packed
        coding = _coding(on_cpu(part.buffer.device))
        indices, values = coding.decode(*part, counts, self.dtype_of_values.itemsize)
        return Entries(indices, values.view(self.dtype_of_values).float())


class RoundedGaps(Gaps):
    """The same with values of 16 bits: what these cannot hold of a value, however large it is, stays with its rank."""

    entry_bytes = 3
    dtype_of_values = torch.bfloat16
    precision = torch.finfo(torch.bfloat16).eps / 2

    def rounded(self, entries):
        return Entries(entries.indices, _coding(on_cpu(entries.values.device)).round_off(entries.values))


def _bytes_of(values):
    return values.view(torch.uint8) if values.numel() else values.byte()  # nothing, of NumPy's, cannot be viewed


@cache
def _coding(is_on_cpu):
    """What makes bytes there. Numba is an extra, and no device needs it."""
    if is_on_cpu and importlib.util.find_spec("numba"):
        from . import coding_kernels

        return coding_kernels
    return coding


wires = {"separate": Separate(), "joined": Joined(), "gaps": Gaps(), "gaps16": RoundedGaps()}
AUTO = "auto"


def lossless(device):
    """The formats that may pay on this device and keep values whole: the one that packs least first."""
    return ["separate" if on_cpu(device) else "joined", "gaps"]


def wire_for(name, device, shares_memory=False):
    """The format of this name; "auto" is what costs least on this device, and where ranks `shares_memory` or not."""
    if name == AUTO:
        plain, compact = lossless(device)
        name = compact if on_cpu(device) and not shares_memory else plain
    if name not in wires:
        raise ValueError(f"there is no wire {name!r}; there are {', '.join(wires)}")
    wires[name].get_ready(device)
    return wires[name]
