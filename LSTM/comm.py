"""How ranks talk: one small interface of typed buffers, MPI behind it, and a wrapper that measures any of them.

Buffers are one-dimensional torch tensors. Another transport (torch.distributed, say) is another `Communicator`.
"""

import abc
import math
import os
import time
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch

from launch import abort_all_ranks_on_uncaught_errors

MESSAGES_IN_FLIGHT = 8  # partners of one exchange at a time, so that no receiver is a hot spot


class Communicator(abc.ABC):
    """The operations that the algorithms are written in. Every rank calls them in the same order."""

    rank: int
    size: int

    @abc.abstractmethod
    def allreduce(self, buffer, op="sum"):
        """Combine ("sum" or "max") the ranks' buffers element by element, in place."""

    @abc.abstractmethod
    def allgather(self, buffer):
        """Everyone's buffer, all of one length: a tensor of shape (size, length)."""

    @abc.abstractmethod
    def allgatherv(self, buffer, counts):
        """Everyone's buffer one after another; counts[r] is the length of rank r's."""

    @abc.abstractmethod
    def alltoall(self, buffer):
        """Send element r to rank r; get the element that each rank sent here."""

    @abc.abstractmethod
    def alltoallv(self, buffer, send_counts, receive_counts):
        """Send buffer's part r to rank r; get the parts that the ranks sent here, in the order of ranks."""

    @abc.abstractmethod
    def bcast(self, buffer, root=0):
        """Overwrite the buffer with root's."""

    @abc.abstractmethod
    def send(self, buffer, destination):
        """Send to one rank, which calls `receive`."""

    @abc.abstractmethod
    def receive(self, count, dtype, source, device="cpu"):
        """The `count` elements that `source` sent here."""

    def close(self):  # noqa: B027 - most have nothing to give back
        """The last call: nothing is sent or received any more."""


def offsets(counts):
    """Where each of the parts with these lengths begins, and where the last one ends."""
    return [0, *np.cumsum(counts, dtype=np.int64).tolist()]


@dataclass
class Staging:
    """Seconds that copies between a device and the host have taken, where MPI does not take device pointers."""

    to_host: float = 0.0
    to_device: float = 0.0


class MPICommunicator(Communicator):
    """MPI through mpi4py. Host memory is handed over as it is.

    Device tensors go through pinned host memory, unless MPI takes device pointers (MPICH_GPU_SUPPORT_ENABLED=1).
    """

    def __init__(self, mpi_comm=None):
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError(
                "this MPI lets only the main thread communicate, and the reducer has a thread of its own: "
                "set MPI4PY_RC_THREAD_LEVEL=serialized before mpi4py is imported, or use an MPI built with threads"
            )
        # A communicator of its own: the reducer's messages never meet those of the caller.
        self._comm = (MPI.COMM_WORLD if mpi_comm is None else mpi_comm).Dup()
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX}
        self._gpu_aware = os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
        self.staging = Staging()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        abort_all_ranks_on_uncaught_errors()

    def close(self):
        """Give the communicator back: MPI has two thousand or so. Called by all ranks, like every other operation."""
        self._comm.Free()

    def allreduce(self, buffer, op="sum"):
        host = self._outgoing(buffer)
        self._comm.Allreduce(_in_place(), host, self._ops[op])
        self._copy_back(host, buffer)

    def allgather(self, buffer):
        everyone = self._incoming(self.size * buffer.numel(), buffer.dtype, buffer.device)
        self._comm.Allgather(self._outgoing(buffer), everyone)
        return self._arrived(everyone, buffer.device).view(self.size, buffer.numel())

    def allgatherv(self, buffer, counts):
        everyone = self._incoming(sum(counts), buffer.dtype, buffer.device)
        self._comm.Allgatherv(self._outgoing(buffer), (everyone, (list(counts), offsets(counts)[:-1])))
        return self._arrived(everyone, buffer.device)

    def alltoall(self, buffer):
        arriving = self._incoming(self.size, buffer.dtype, buffer.device)
        self._comm.Alltoall(self._outgoing(buffer), arriving)
        return self._arrived(arriving, buffer.device)

    def alltoallv(self, buffer, send_counts, receive_counts):
        """Rank r starts with r + 1 and goes round (Ok-Topk, section 3.1.1), a few partners at a time."""
        outgoing, incoming = (
            self._outgoing(buffer),
            self._incoming(sum(receive_counts), buffer.dtype, buffer.device),
        )
        leave, arrive = offsets(send_counts), offsets(receive_counts)
        incoming[arrive[self.rank] : arrive[self.rank + 1]] = outgoing[leave[self.rank] : leave[self.rank + 1]]
        for first in range(1, self.size, MESSAGES_IN_FLIGHT):
            requests = []
            for step in range(first, min(first + MESSAGES_IN_FLIGHT, self.size)):
                source, destination = (self.rank - step) % self.size, (self.rank + step) % self.size
                if receive_counts[source]:
                    requests.append(self._comm.Irecv(incoming[arrive[source] : arrive[source + 1]], source))
                if send_counts[destination]:
                    requests.append(
                        self._comm.Isend(outgoing[leave[destination] : leave[destination + 1]], destination)
                    )
            for request in requests:
                request.Wait()
        return self._arrived(incoming, buffer.device)

    def bcast(self, buffer, root=0):
        host = self._outgoing(buffer)
        self._comm.Bcast(host, root)
        self._copy_back(host, buffer)

    def send(self, buffer, destination):
        self._comm.Send(self._outgoing(buffer), destination)

    def receive(self, count, dtype, source, device="cpu"):
        buffer = self._incoming(count, dtype, device)
        self._comm.Recv(buffer, source)
        return self._arrived(buffer, device)

    def _passes_directly(self, device):
        return torch.device(device).type == "cpu" or self._gpu_aware

    def _outgoing(self, tensor):
        """The memory that MPI may read: the tensor's own, or a copy on the host."""
        tensor = tensor.detach().contiguous()
        if not self._passes_directly(tensor.device):
            start = time.perf_counter()
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
            self.staging.to_host += time.perf_counter() - start
            return host.numpy()
        return _mpi_buffer(tensor)

    def _incoming(self, count, dtype, device):
        """Memory that MPI may write."""
        if not self._passes_directly(device):
            return torch.empty(count, dtype=dtype, pin_memory=True).numpy()
        return _mpi_buffer(torch.empty(count, dtype=dtype, device=device))

    def _arrived(self, buffer, device):
        tensor = buffer if isinstance(buffer, torch.Tensor) else torch.from_numpy(buffer)
        if tensor.device.type == torch.device(device).type:
            return tensor
        start = time.perf_counter()
        tensor = tensor.to(device)
        self.staging.to_device += time.perf_counter() - start
        return tensor

    def _copy_back(self, host, tensor):
        """Bring what MPI wrote home, where it was not written in place."""
        arrived = host if isinstance(host, torch.Tensor) else torch.from_numpy(host)
        if arrived.data_ptr() != tensor.data_ptr():
            start = time.perf_counter()
            tensor.copy_(arrived.view(tensor.shape))
            self.staging.to_device += time.perf_counter() - start


def _mpi_buffer(tensor):
    """What mpi4py takes as a buffer: NumPy's view of host memory; a device tensor as it is, once its stream is done."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    torch.cuda.current_stream(tensor.device).synchronize()
    return tensor


def _in_place():
    from mpi4py import MPI

    return MPI.IN_PLACE


@dataclass
class Traffic:
    """What one operation has cost this rank so far."""

    calls: int = 0
    sent: int = 0  # bytes
    received: int = 0  # bytes
    seconds: float = 0.0


class MeasuredCommunicator(Communicator):
    """Another communicator, with its bytes and seconds counted by operation.

    Bytes are those that the bandwidth-optimal form of the operation moves over this rank's link: a ring for
    allreduce, allgather and allgatherv, a binomial tree for bcast. What stays on the rank is not counted.
    """

    def __init__(self, inner):
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.traffic = defaultdict(Traffic)

    @property
    def staging(self):
        """A copy of what the other's staging has taken so far; it is part of the seconds of its operations."""
        return replace(getattr(self._inner, "staging", Staging()))

    def total(self):
        """The sums over all operations."""
        every = self.traffic.values()
        return Traffic(
            sum(t.calls for t in every),
            sum(t.sent for t in every),
            sum(t.received for t in every),
            sum(t.seconds for t in every),
        )

    def close(self):
        self._inner.close()

    def allreduce(self, buffer, op="sum"):
        each = 2 * _bytes(buffer) * (self.size - 1) // self.size
        return self._measure("allreduce", each, each, self._inner.allreduce, buffer, op)

    def allgather(self, buffer):
        each = _bytes(buffer) * (self.size - 1)
        return self._measure("allgather", each, each, self._inner.allgather, buffer)

    def allgatherv(self, buffer, counts):
        item, total = buffer.element_size(), sum(counts)
        sent = item * (total - counts[(self.rank + 1) % self.size])
        received = item * (total - counts[self.rank])
        return self._measure("allgatherv", sent, received, self._inner.allgatherv, buffer, counts)

    def alltoall(self, buffer):
        each = buffer.element_size() * (self.size - 1)
        return self._measure("alltoall", each, each, self._inner.alltoall, buffer)

    def alltoallv(self, buffer, send_counts, receive_counts):
        item = buffer.element_size()
        sent = item * (sum(send_counts) - send_counts[self.rank])
        received = item * (sum(receive_counts) - receive_counts[self.rank])
        return self._measure("alltoallv", sent, received, self._inner.alltoallv, buffer, send_counts, receive_counts)

    def bcast(self, buffer, root=0):
        place = (self.rank - root) % self.size
        rounds = math.ceil(math.log2(self.size)) if self.size > 1 else 0
        children = sum(1 for r in range(rounds) if place < 1 << r and place + (1 << r) < self.size)
        received = _bytes(buffer) if place else 0
        return self._measure("bcast", children * _bytes(buffer), received, self._inner.bcast, buffer, root)

    def send(self, buffer, destination):
        return self._measure("send", _bytes(buffer), 0, self._inner.send, buffer, destination)

    def receive(self, count, dtype, source, device="cpu"):
        size = count * torch.empty(0, dtype=dtype).element_size()
        return self._measure("receive", 0, size, self._inner.receive, count, dtype, source, device)

    def _measure(self, name, sent, received, operation, *arguments):
        start = time.perf_counter()
        result = operation(*arguments)
        record = self.traffic[name]
        record.seconds += time.perf_counter() - start
        record.calls += 1
        record.sent += sent
        record.received += received
        return result


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()
