"""The exchanges of entries between ranks that the algorithms share."""

import itertools
from typing import NamedTuple

import torch

from .wire import Packed


class Regions(NamedTuple):
    """The index space cut into one region for each rank: region r is [cuts[r], cuts[r + 1])."""

    cuts: list
    borders: torch.Tensor  # the same, where the entries are


def regions(cuts, device):
    return Regions(cuts, torch.tensor(cuts, dtype=torch.int32, device=device))


class Exchange:
    """A communicator, the operations on entries, and what these look like on the wire."""

    def __init__(self, comm, ops, wire):
        self.comm, self.ops, self.wire = comm, ops, wire

    def counts_of_all(self, *counts):
        """Each rank's counts: one list over the ranks for each argument."""
        return self.comm.allgather(torch.tensor(counts, dtype=torch.int64)).t().tolist()

    def gather(self, part):
        """All ranks' parts, one after another in the order of ranks, and their counts."""
        if self.comm.size == 1:
            return part, [part.count]
        packed = self.wire.pack(part, [part.count])
        counts, *sizes = self.counts_of_all(part.count, *(each.sizes[0] for each in packed))
        arrived = [
            Packed(self.comm.allgatherv(each.buffer, of_all), of_all)
            for each, of_all in zip(packed, sizes, strict=True)
        ]
        return self.wire.unpack(arrived, counts), counts

    def swap(self, entries, leaving):
        """Send consecutive parts of these counts to ranks 0, 1, …; returns what arrives, and its counts by rank."""
        if self.comm.size == 1:
            return entries, leaving
        packed = self.wire.pack(entries, leaving)
        header = torch.tensor([leaving, *(each.sizes for each in packed)], dtype=torch.int64).t()
        arriving, *sizes = self.comm.alltoall(header.flatten()).view(header.shape).t().tolist()
        arrived = [
            Packed(self.comm.alltoallv(each.buffer, each.sizes, of_all), of_all)
            for each, of_all in zip(packed, sizes, strict=True)
        ]
        return self.wire.unpack(arrived, arriving), arriving

    def split_and_reduce(self, mine, regions):
        """Send each region's entries to the rank that owns it; returns the sums over the region of this rank.

        Sums are formed in the order of ranks, so they do not depend on timing.
        """
        if self.comm.size == 1:
            return mine
        starts = torch.searchsorted(mine.indices, regions.borders).tolist()
        arrived, counts = self.swap(mine, [end - start for start, end in itertools.pairwise(starts)])
        return self.ops.sum_lists(arrived, counts, *regions.cuts[self.comm.rank : self.comm.rank + 2])

    def even_out(self, part, counts):
        """Move entries between ranks so that each holds an equal share of them, in the same order over the ranks."""
        shares = even_cuts(sum(counts), self.comm.size)
        first = sum(counts[: self.comm.rank])
        last = first + counts[self.comm.rank]
        leaving = [max(0, min(last, end) - max(first, start)) for start, end in itertools.pairwise(shares)]
        return self.swap(part, leaving)[0]

    def send(self, entries, destination):
        packed = self.wire.pack(entries, [entries.count])
        self.comm.send(torch.tensor([entries.count, *(each.sizes[0] for each in packed)]), destination)
        for each in packed:
            self.comm.send(each.buffer, destination)

    def receive(self, source, device):
        count, *sizes = self.comm.receive(1 + len(self.wire.dtypes), torch.int64, source).tolist()
        buffers = zip(sizes, self.wire.dtypes, strict=True)
        packed = [Packed(self.comm.receive(size, dtype, source, device), [size]) for size, dtype in buffers]
        return self.wire.unpack(packed, [count])

    def broadcast(self, entries):
        """Rank 0's entries, on every rank."""
        packed = self.wire.pack(entries, [entries.count])
        header = torch.tensor([entries.count, *(each.sizes[0] for each in packed)])
        self.comm.bcast(header)
        count, *sizes = header.tolist()
        if self.comm.rank:
            packed = [Packed(each.buffer.new_empty(size), [size]) for each, size in zip(packed, sizes, strict=True)]
        for each in packed:
            self.comm.bcast(each.buffer)
        return self.wire.unpack(packed, [count])


def even_cuts(n, size):
    """The borders of `size` regions of equal width."""
    return [n * rank // size for rank in range(size + 1)]
