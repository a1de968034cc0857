"""The exchanges of sparse entries between ranks that the algorithms share.

How entries look on the wire is decided here alone: indices as int32, values as float32.
"""

import itertools

import torch

from sparse import Sparse


def counts_of_all(comm, *counts):
    """Each rank's counts: one list over the ranks for each argument."""
    return comm.allgather(torch.tensor(counts, dtype=torch.int64)).t().tolist()


def gather(comm, part, counts):
    """All ranks' parts, one after another in the order of ranks; counts[r] is the length of rank r's."""
    if comm.size == 1:
        return part
    return Sparse(comm.allgatherv(part.indices, counts), comm.allgatherv(part.values, counts))


def gather_in_one_buffer(comm, part, counts):
    """As `gather`, with each rank's indices and values in one buffer: half the messages, one copy more."""
    if comm.size == 1:
        return part
    packed = torch.cat((part.indices, part.values.view(torch.int32)))
    everyone = comm.allgatherv(packed, [2 * count for count in counts])
    parts = everyone.split([count for count in counts for _ in part])
    return Sparse(torch.cat(parts[0::2]), torch.cat(parts[1::2]).view(torch.float32))


def swap(comm, entries, leaving):
    """Send consecutive parts of these lengths to ranks 0, 1, …; returns what arrives here, and its lengths by rank."""
    if comm.size == 1:
        return entries, leaving
    arriving = comm.alltoall(torch.tensor(leaving, dtype=torch.int64)).tolist()
    arrived = Sparse(
        comm.alltoallv(entries.indices, leaving, arriving), comm.alltoallv(entries.values, leaving, arriving)
    )
    return arrived, arriving


def split_and_reduce(comm, ops, mine, cuts):
    """Send each region's entries to the rank that owns it; returns the sums over the region of this rank.

    Region r is [cuts[r], cuts[r + 1]). Sums are formed in the order of ranks, so they do not depend on timing.
    """
    borders = torch.tensor(cuts, dtype=mine.indices.dtype, device=mine.indices.device)
    starts = torch.searchsorted(mine.indices, borders).tolist()
    arrived, counts = swap(comm, mine, [end - start for start, end in itertools.pairwise(starts)])
    return ops.sum_lists(arrived, counts, cuts[comm.rank], cuts[comm.rank + 1])


def even_out(comm, part, counts):
    """Move entries between ranks so that each holds an equal share of them, in the same order over the ranks.

    Returns this rank's new part and all ranks' new counts.
    """
    shares = even_cuts(sum(counts), comm.size)
    first = sum(counts[: comm.rank])
    last = first + counts[comm.rank]
    leaving = [max(0, min(last, end) - max(first, start)) for start, end in itertools.pairwise(shares)]
    arrived, _ = swap(comm, part, leaving)
    return arrived, [end - start for start, end in itertools.pairwise(shares)]


def even_cuts(n, size):
    """The borders of `size` regions of equal width."""
    return [n * rank // size for rank in range(size + 1)]
