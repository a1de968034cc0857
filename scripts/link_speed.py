"""How fast the ranks reach each other by the transport of a run: messages to and from rank 0, and a sum over all."""

import time
from dataclasses import dataclass

WORD = 4  # bytes
GRADIENT_WORDS = 27_569_568  # of lstman4
BULK_WORDS, PING_WORDS = 1 << 22, 2
PINGS, BULKS, SUMS = 100, 3, 3


@dataclass(frozen=True)
class LinkSpeed:
    """To the slowest partner of rank 0, and of an allreduce as dense training does one in each step."""

    latency: float  # seconds, one way
    bandwidth: float  # bytes a second
    partner: int
    allreduce: float  # seconds


def measure(communicator, device="cpu"):
    """The speed on rank 0, None on the others. All ranks call it, and there are at least two."""
    links = [_ping_pong(communicator, partner, device) for partner in range(1, communicator.size)]
    allreduce = _allreduce(communicator, device)
    if communicator.rank:
        return None
    bandwidth, partner = min((link[1], partner) for partner, link in enumerate(links, start=1))
    return LinkSpeed(max(link[0] for link in links), bandwidth, partner, allreduce)


def _ping_pong(communicator, partner, device):
    latency = _one_way(communicator, partner, _words(PING_WORDS, device), PINGS)
    return latency, WORD * BULK_WORDS / _one_way(communicator, partner, _words(BULK_WORDS, device), BULKS)


def _one_way(communicator, partner, message, repetitions):
    """Seconds of one message, by the fastest of several exchanges; the first opens the connection."""

    def exchange():
        if communicator.rank == 0:
            communicator.send(message, partner)
            communicator.receive(message.numel(), message.dtype, partner, message.device)
        elif communicator.rank == partner:
            communicator.receive(message.numel(), message.dtype, 0, message.device)
            communicator.send(message, 0)

    return min(_timed(exchange, message.device) for _ in range(repetitions + 1)) / 2


def _allreduce(communicator, device):
    gradient, nothing, times = _words(GRADIENT_WORDS, device), _words(1, "cpu"), []
    for _ in range(SUMS + 1):
        communicator.allreduce(nothing)  # nobody starts before all have come
        times.append(_timed(lambda: communicator.allreduce(gradient), device))
    return min(times[1:])


def _timed(operation, device):
    from oktopk.devices import wait_for

    wait_for(device)
    start = time.perf_counter()
    operation()
    wait_for(device)
    return time.perf_counter() - start


def _words(count, device):
    import torch  # here, for the doctor is to load where there is none

    return torch.zeros(count, dtype=torch.float32, device=device)
