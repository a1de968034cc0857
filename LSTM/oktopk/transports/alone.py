"""One rank, without any transport: all that is sent is here already."""

from ..communicator import Communicator
from ..launchers import launched_ranks


class Alone(Communicator):
    shares_memory = True

    def __init__(self):
        super().__init__(0, 1)

    def duplicate(self):
        return Alone()

    def _part(self, groups, mine):
        return None if mine is None else Alone()

    def abort(self, status):
        raise SystemExit(status)

    def _allreduce(self, buffer, op):
        pass

    def _bcast(self, buffer, root):
        pass

    def _allgatherv(self, buffer, counts):
        return buffer.clone()

    def _alltoallv(self, buffer, send_counts, receive_counts):
        return buffer.clone()

    def _send(self, buffer, destination):
        raise ValueError("one rank alone has nobody to send to")

    def _receive(self, buffer, source):
        raise ValueError("one rank alone has nobody to receive from")


def connect():
    if launched_ranks() > 1:
        raise RuntimeError(f"the launcher started {launched_ranks()} ranks, and the transport `alone` is for one")
    return Alone()
