"""Sends bytes between the hosts of a lab, and says what it took. Prints a JSON object:

hosts     [the host of each rank]
memory    whether the communicator says that all share theirs
sharing   [how many ranks each shares memory with, itself included]
seconds   that the exchange took
short     seconds of the fastest of some short messages there and back, after a pause each
sent      by host: the bytes that the communicator counted
"""

import json
import socket
import sys
import time
from collections import Counter

import torch
from mpi4py import MPI

import oktopk

BYTES, ROUNDS = 5_000_000, 3
SHORT, PAUSE = 50_000, 0.1  # bytes, seconds


def main():
    comm, world = oktopk.connect(), MPI.COMM_WORLD
    sharing = world.Split_type(MPI.COMM_TYPE_SHARED).Get_size()
    across = (comm.rank + comm.size // 2) % comm.size  # a rank of the other host
    counts = [BYTES if rank == across else 0 for rank in range(comm.size)]
    buffer = torch.zeros(BYTES, dtype=torch.uint8)
    world.Barrier()
    before, start = comm.total().sent, time.perf_counter()
    for _ in range(ROUNDS):
        comm.alltoallv(buffer, counts, counts)
    seconds = time.perf_counter() - start
    found = world.allgather((socket.gethostname(), sharing, seconds, comm.total().sent - before))
    short = min(there_and_back(world) for _ in range(5))
    if comm.rank == 0:
        sent = Counter()
        for host, _, _, count in found:
            sent[host] += count
        hosts, sharing, seconds, _ = zip(*found, strict=True)
        sys.stdout.write(
            json.dumps(
                {
                    "hosts": hosts,
                    "memory": comm.shares_memory,
                    "sharing": sharing,
                    "seconds": max(seconds),
                    "short": short,
                    "sent": sent,
                }
            )
            + "\n"
        )


def there_and_back(world):
    """Between the first rank and the last one, of another host."""
    last, buffer = world.size - 1, bytearray(SHORT)
    world.Barrier()
    time.sleep(PAUSE)
    start = time.perf_counter()
    if world.rank == 0:
        world.Send(buffer, last)
        world.Recv(buffer, last)
    elif world.rank == last:
        world.Recv(buffer, 0)
        world.Send(buffer, 0)
    return time.perf_counter() - start


main()
