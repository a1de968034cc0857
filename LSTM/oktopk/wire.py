"""What entries look like between ranks: the only place.

A format packs entries into buffers, one part for each rank that they go to, and makes entries of what arrives. To add
one, write a class and a line in `wires`; its name is then an option of every sparse compressor.
"""

import abc
from typing import NamedTuple

import torch

from .devices import on_cpu
from .entries import Entries


class Packed(NamedTuple):
    """A buffer whose consecutive parts, of these sizes, belong to ranks 0, 1, …"""

    buffer: torch.Tensor
    sizes: list


class Wire(abc.ABC):
    """`dtypes` are those of its buffers. How much a part takes may depend on the data: sizes are sent along."""

    dtypes: tuple

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
        indices, values = packed[0].buffer.view(-1, 2).t().contiguous()
        return Entries(indices, values.view(torch.float32))


wires = {"separate": Separate(), "joined": Joined()}
AUTO = "auto"


def wire_for(name, device):
    """The format of this name; "auto" is what costs least on this device."""
    if name == AUTO:
        name = "separate" if on_cpu(device) else "joined"
    if name not in wires:
        raise ValueError(f"there is no wire {name!r}; there are {', '.join(wires)}")
    return wires[name]
