"""MPI through mpi4py. Host memory is handed over as it is; device memory too where MPI takes it.

That is so with MPICH_GPU_SUPPORT_ENABLED=1; otherwise device tensors go through the host.
"""

import os

import torch

from .. import starting
from ..communicator import Communicator, connected, offsets
from ..devices import on_cpu, wait_for
from ..launchers import abort
from ..lent import Lent

MESSAGES_IN_FLIGHT = 8  # partners of one exchange at a time, so that no receiver is a hot spot
_lent = Lent()
_AS_INTEGERS = {torch.bfloat16: torch.int16}  # moved as bytes: NumPy and MPI have no such type


class MPICommunicator(Communicator):
    def __init__(self, mpi_comm):
        from mpi4py import MPI

        everyone = list(range(mpi_comm.Get_size()))
        self._members = tuple(MPI.Group.Translate_ranks(mpi_comm.Get_group(), everyone, MPI.COMM_WORLD.Get_group()))
        for unused in _lent.unused(self._members, mpi_comm.allgather):
            unused.Free()
        self._mpi, self._comm = MPI, mpi_comm.Dup()
        _lent.note(self._members, self._comm, self)
        super().__init__(self._comm.Get_rank(), self._comm.Get_size())
        near = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.shares_memory = near.Get_size() == self.size
        near.Free()
        self.serves_threads = MPI.Query_thread() >= MPI.THREAD_SERIALIZED
        self._gpu_aware = os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
        self._begin(MPI.COMM_WORLD.Get_rank())

    def home(self, device):
        return device if self._gpu_aware else torch.device("cpu")

    def versions(self):
        import mpi4py

        library = self._mpi.Get_library_version().strip("\0\n ").splitlines()[0]
        return {"mpi4py": mpi4py.__version__, "mpi_library": library}

    def duplicate(self):
        with self._noted("duplicate"):
            return MPICommunicator(self._comm)

    def _part(self, groups, mine):
        colour = self._mpi.UNDEFINED if mine is None else groups.index(mine)
        ranks = self._comm.Split(colour)
        if mine is None:
            return None
        part = MPICommunicator(ranks)
        ranks.Free()
        return part

    def close(self):
        """Give the communicator back: MPI has two thousand or so."""
        _lent.forget(self._members, self._comm)
        self._comm.Free()

    def abort(self, status):
        abort(self._mpi, status)

    def _allreduce(self, buffer, op):
        self._comm.Allreduce(self._mpi.IN_PLACE, _memory(buffer), self._mpi.MAX if op == "max" else self._mpi.SUM)

    def _bcast(self, buffer, root):
        self._comm.Bcast(_memory(buffer), root)

    def _allgatherv(self, buffer, counts):
        everyone = buffer.new_empty(sum(counts))
        self._comm.Allgatherv(_memory(buffer), (_memory(everyone), (list(counts), offsets(counts)[:-1])))
        return everyone

    def _alltoallv(self, buffer, send_counts, receive_counts):
        """Rank r starts with r + 1 and goes round (Ok-Topk, section 3.1.1), a few partners at a time."""
        arriving = buffer.new_empty(sum(receive_counts))
        leave, arrive = offsets(send_counts), offsets(receive_counts)
        arriving[arrive[self.rank] : arrive[self.rank + 1]] = buffer[leave[self.rank] : leave[self.rank + 1]]
        outgoing, incoming = _memory(buffer), _memory(arriving)
        for first in range(1, self.size, MESSAGES_IN_FLIGHT):
            requests = []
            for step in range(first, min(first + MESSAGES_IN_FLIGHT, self.size)):
                source, destination = (self.rank - step) % self.size, (self.rank + step) % self.size
                if receive_counts[source]:
                    requests.append(self._comm.Irecv(incoming[arrive[source] : arrive[source + 1]], source))
                if send_counts[destination]:
                    part = outgoing[leave[destination] : leave[destination + 1]]
                    requests.append(self._comm.Isend(part, destination))
            for request in requests:
                request.Wait()
        return arriving

    def _send(self, buffer, destination):
        self._comm.Send(_memory(buffer), destination)

    def _receive(self, buffer, source):
        self._comm.Recv(_memory(buffer), source)


def is_there():
    try:
        import mpi4py.MPI  # noqa: F401 - to see whether it can be
    except (ImportError, RuntimeError):
        return False
    return True


def connect(mpi_comm=None):
    """A communicator over all ranks of MPI, or over those of an mpi4py communicator."""
    mpi = starting.mpi()
    given = mpi.COMM_WORLD if mpi_comm is None else mpi_comm
    return connected(lambda: MPICommunicator(given), given.Get_size())


def _memory(tensor):
    """What mpi4py takes as a buffer: NumPy's view of host memory; a device tensor as it is, once its stream is done."""
    tensor = tensor.view(_AS_INTEGERS.get(tensor.dtype, tensor.dtype))
    if on_cpu(tensor.device):
        return tensor.numpy()
    wait_for(tensor.device)
    return tensor
