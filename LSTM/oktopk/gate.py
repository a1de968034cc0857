"""A process beside a rank that waits for the others to start: it says which have not come, and ends the rank at last.

No thread of the rank could do it, for the start of MPI holds its interpreter. So this is a program of its own, which
loads nothing of ours and ends when the rank lets go of its input. See starting.py.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NamedTuple

PACE = 0.5  # seconds from one look to the next
WARNED_AFTER = 0.1  # of the limit
SOONEST = 3.0  # seconds to the first word: starts differ by so much
PATIENCE = 2.0  # seconds from a rank's end to the end of the others: it may be about to say why itself
SECONDS_TO_BE_HEARD = 0.5  # launchers drop what is in their pipes when a rank is killed
SECONDS_TO_SPEAK = 2.0  # that those which are not to speak leave to the one that is
ALLOWED = "the job is ended, for --watchdog or OKTOPK_WATCHDOG allows no more"
LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
LAUNCHER = "hydra_pmi_proxy"  # MPICH's, the one that goes on where a rank exits before it has come to MPI


class Gate(NamedTuple):
    """Where a rank waits: the limit in seconds, its name in sentences, this rank, their number, their launcher's id."""

    limit: float
    name: str
    rank: int
    size: int
    launcher: int

    def address(self, rank):
        """Of the socket by which others on this host see that a rank is here."""
        return f"\0oktopk {os.getuid()} {self.launcher} {self.name} {rank}"

    def here(self):
        """Ranks of this host that wait here."""
        return [rank for rank in range(self.size) if rank == self.rank or _is_bound(self.address(rank))]

    def absence(self, here, seconds):
        """Who has not come; of other hosts' ranks nothing is known."""
        if not self.is_on_one_host():
            return f"{self.name} has waited {seconds:.0f} s for others; of this host, {_named(here)} came"
        absent = [rank for rank in range(self.size) if rank not in here]
        if not absent:
            return f"{self.name} has lasted {seconds:.0f} s, and all ranks are in it"
        return f"{_named(absent)} {_have(absent)} not come to {self.name} for {seconds:.0f} s"

    def loss(self, here):
        absent = [rank for rank in range(self.size) if rank not in here]
        who = _named(absent) if self.is_on_one_host() and len(absent) == 1 else "a rank of this host"
        return f"{who} has ended before {self.name}, where others wait"

    def is_on_one_host(self):
        return local_size() == self.size


def local_size():
    """How many ranks the launcher says that it started on this host; 0 if it does not say."""
    return int(next((os.environ[name] for name in LOCAL_SIZES if name in os.environ), 0))


def processes_left(pid):
    """How many of this host's ranks have not ended, of which `pid` is one; None where the launcher looks after that."""
    with suppress(OSError, ValueError):
        while (pid := process_of(pid).parent) > 1:
            if process_of(pid).name == LAUNCHER:
                with open(f"/proc/{pid}/task/{pid}/children") as file:
                    return sum(process_of(child).state != "Z" for child in file.read().split())
    return None


class Process(NamedTuple):
    """As Linux tells of it; its start is a number that no other process of this id has."""

    name: str
    state: str
    parent: int
    start: int


def process_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        before, _, after = file.read().rpartition(")")
    after = after.split()
    return Process(before.partition("(")[2], after[0], int(after[1]), int(after[19]))


def _is_bound(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(address)
        return True
    return False


def _named(ranks):
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _have(ranks):
    return "has" if len(ranks) == 1 else "have"


def _let_go(seconds):
    """Whether the rank has come through, or is gone, within so many seconds."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _say(sentence):
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _end(gate, sentence):
    """End the rank by a signal: launchers end the whole job for that."""
    speaks = gate.here()[0] == gate.rank
    if speaks:
        _say(f"error: {sentence}")
    if not _let_go(SECONDS_TO_BE_HEARD if speaks else SECONDS_TO_SPEAK):
        os.kill(os.getppid(), signal.SIGKILL)


def watch(gate):
    waited, before, warned, short = 0.0, time.monotonic(), False, 0.0
    while not _let_go(PACE):
        now = time.monotonic()
        passed, before = min(now - before, 2 * PACE), now  # nobody waited while all were stopped
        waited += passed
        left = processes_left(os.getppid())
        short = short + passed if left is not None and left < local_size() else 0.0
        here = gate.here()
        if short >= PATIENCE:
            return _end(gate, gate.loss(here))
        if waited >= gate.limit:
            return _end(gate, f"{gate.absence(here, waited)}; {ALLOWED}")
        if waited >= max(WARNED_AFTER * gate.limit, SOONEST) and not warned:
            warned = True
            if here[0] == gate.rank:
                _say(f"warning: {gate.absence(here, waited)}")
    return None


def main(limit, name, rank, size, launcher):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the rank
    gate = Gate(float(limit), name, int(rank), int(size), int(launcher))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as presence:
        with suppress(OSError):  # a system without such names: then it is not known who is here
            presence.bind(gate.address(gate.rank))
        watch(gate)


if __name__ == "__main__":
    main(*sys.argv[1:])
