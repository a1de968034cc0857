"""How fast the ranks reach each other, with nothing but mpi4py: messages to and from rank 0, and a sum over all."""

import time
from dataclasses import dataclass

GRADIENT_BYTES = 4 * 27_569_568  # of lstman4
BULK_BYTES = 1 << 24
PINGS, BULKS, SUMS = 100, 3, 3


@dataclass(frozen=True)
class LinkSpeed:
    """To the slowest partner of rank 0, and of an allreduce as dense training does one in each step."""

    latency: float  # seconds, one way
    bandwidth: float  # bytes a second
    partner: int
    allreduce: float  # seconds


def measure(comm):
    """The speed on rank 0, None on the others. All ranks call it, and there are at least two."""
    links = [_ping_pong(comm, partner) for partner in range(1, comm.size)]
    allreduce = _allreduce(comm)
    if comm.rank:
        return None
    bandwidth, partner = min((link[1], partner) for partner, link in enumerate(links, start=1))
    return LinkSpeed(max(link[0] for link in links), bandwidth, partner, allreduce)


def _ping_pong(comm, partner):
    latency = _one_way(comm, partner, bytearray(8), PINGS)
    return latency, BULK_BYTES / _one_way(comm, partner, bytearray(BULK_BYTES), BULKS)


def _one_way(comm, partner, message, repetitions):
    """Seconds of one message, by the fastest of several exchanges; the first opens the connection."""
    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(message, partner)
            comm.Recv(message, partner)
        elif comm.rank == partner:
            comm.Recv(message, 0)
            comm.Send(message, 0)
        times.append((time.perf_counter() - start) / 2)
    return min(times[1:])


def _allreduce(comm):
    from mpi4py import MPI

    gradient = bytearray(GRADIENT_BYTES)
    times = []
    for _ in range(SUMS + 1):
        comm.Barrier()
        start = time.perf_counter()
        comm.Allreduce(MPI.IN_PLACE, [gradient, MPI.FLOAT])
        times.append(time.perf_counter() - start)
    return min(times[1:])
