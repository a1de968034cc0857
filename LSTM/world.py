"""The ranks that train together: who they are, what they agree on, and how an error on one of them ends the job."""

import os
import sys
from collections import Counter
from contextlib import contextmanager

import torch

from comm import Communicator, MPICommunicator
from errors import INTERRUPTED_STATUS, USER_ERROR_STATUS, UserError
from launch import abort_all_ranks_on_uncaught_errors, end_all_ranks, launched_ranks, ranks_that_mpi_does_not_see

LOCAL_SIZE_VARIABLE = "MPI_LOCALNRANKS"  # set by MPICH's launcher; Open MPI yields by itself when cores are short
YIELD_VARIABLE = "MPIR_CVAR_POLLS_BEFORE_YIELD"


class SharedError(UserError):
    """A UserError that every rank raises at the same place, so that rank 0 can say it for all."""


class Alone(Communicator):
    """The communicator of one rank, without MPI: all that is sent is here already."""

    rank, size = 0, 1

    def allreduce(self, buffer, op="sum"):
        pass

    def allgather(self, buffer):
        return buffer.clone().view(1, -1)

    def allgatherv(self, buffer, counts):
        return buffer.clone()

    def alltoall(self, buffer):
        return buffer.clone()

    def alltoallv(self, buffer, send_counts, receive_counts):
        return buffer.clone()

    def bcast(self, buffer, root=0):
        pass

    def send(self, buffer, destination):
        raise ValueError("one rank alone has nobody to send to")

    def receive(self, count, dtype, source, device="cpu"):
        raise ValueError("one rank alone has nobody to receive from")


class Ranks:
    """One rank alone, without MPI. `MPIRanks` replaces what others take part in; the rest is written for any number."""

    rank, size, local_rank, local_size = 0, 1, 0, 1
    versions = {"mpi4py": None, "mpi_library": None}  # noqa: RUF012 - replaced, never changed

    def __init__(self):
        self._communicator = Alone()

    def new_communicator(self):
        """For the reducer, whose messages must never meet ours."""
        return Alone()

    def everyones(self, value):
        """The value of each rank, in the order of ranks; on all of them."""
        return [value]

    @property
    def is_first(self):
        return self.rank == 0

    def together(self, action):
        """Run the action on every rank. If it fails on any with a UserError, all raise it; so with an end (--help)."""
        result, error = None, None
        try:
            result = action()
        except (UserError, SystemExit) as met:
            error = met
        errors = self.everyones(error)
        rank = next((rank for rank, met in enumerate(errors) if met is not None), None)
        if rank is None:
            return result
        if isinstance(errors[rank], SystemExit):
            raise SystemExit(errors[rank].code)
        raise SharedError(f"on rank {rank}: {errors[rank]}" if rank else str(errors[rank])) from error

    def on_first(self, action):
        """Run the action on rank 0 alone; a UserError there is raised by all. None on the others."""
        return self.together(action if self.is_first else lambda: None)

    def from_first(self, action):
        """What the action returns on rank 0, on every rank."""
        return self.everyones(self.on_first(action))[0]

    def insist_on_the_same(self, what, value):
        values = self.everyones(value)
        other = next((rank for rank, theirs in enumerate(values) if theirs != values[0]), None)
        if other is not None:
            raise SharedError(f"rank {other} has other {what} than rank 0; give all ranks the same")

    def share_cores(self):
        """Nothing to do: see `MPIRanks`."""

    def add_up(self, counts):
        total = Counter()
        for each in self.everyones(counts):
            total.update(each)
        return total

    def mean(self, value):
        return sum(self.everyones(value)) / self.size

    @torch.no_grad()
    def share_model(self, net):
        """Overwrite every rank's parameters and buffers with those of rank 0."""
        for tensor in net.state_dict().values():
            flat = tensor.reshape(-1)
            self._communicator.bcast(flat)
            tensor.copy_(flat.view(tensor.shape))

    @torch.no_grad()
    def average_buffers(self, net):
        """Average the running means and variances of batch norm, which each rank has from its own batches."""
        buffers = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        if self.size == 1 or not buffers:
            return
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        self._communicator.allreduce(flat)
        flat /= self.size
        for buffer, mean in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view(buffer.shape))


class MPIRanks(Ranks):
    """The ranks that mpirun started, or one if nothing did."""

    def __init__(self):
        _yield_if_crowded()
        try:
            import mpi4py
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UserError(
                f"MPI cannot be used ({error}); install an MPI and mpi4py, or train in one process, densely, with "
                "LSTM/dl_trainer.py"
            ) from None
        self._comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        unseen = ranks_that_mpi_does_not_see(self.size)
        if unseen:
            raise UserError(unseen)
        self.versions = {
            "mpi4py": mpi4py.__version__,
            "mpi_library": MPI.Get_library_version().strip("\0\n ").splitlines()[0],
        }
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = local.Get_rank(), local.Get_size()
        self.cores = len(set().union(*local.allgather(_cores())))
        self._communicator = self.new_communicator()
        if self.size > 1:
            abort_all_ranks_on_uncaught_errors()

    def new_communicator(self):
        return MPICommunicator(self._comm)

    def everyones(self, value):
        return self._comm.allgather(value)

    @contextmanager
    def ending_together(self):
        """Whatever ends one rank ends the job, for the others would wait for it in their next collective.

        Errors that are no UserErrors and go uncaught reach sys.excepthook, which does the same (launch.py).
        """
        try:
            yield
        except UserError as error:
            if self.size == 1:
                raise
            shared = isinstance(error, SharedError)
            if self.is_first or not shared:
                sys.stderr.write(f"error: {error if shared else f'on rank {self.rank}: {error}'}\n")
                sys.stderr.flush()
            if not shared:
                end_all_ranks(USER_ERROR_STATUS)
            self._comm.Barrier()  # launchers kill the rest once a rank has ended badly: rank 0 must have spoken
            sys.exit(USER_ERROR_STATUS)
        except KeyboardInterrupt:
            if self.size > 1:
                end_all_ranks(INTERRUPTED_STATUS)
            raise

    def share_cores(self):
        """Divide this node's cores among its ranks' torch threads; the number that each gets, or None if unchanged.

        torch would start a thread for every core on every rank. OMP_NUM_THREADS has the last word.
        """
        if self.local_size == 1 or "OMP_NUM_THREADS" in os.environ:
            return None
        threads = max(1, self.cores // self.local_size)
        torch.set_num_threads(threads)
        return threads


def refuse_several_ranks(program):
    launched = launched_ranks()
    if launched > 1:
        raise UserError(
            f"the launcher started {launched} ranks, but {program} trains in one process; use LSTM/main_trainer.py"
        )


def _cores():
    """The cores that this process may use; a launcher may have bound it to a few."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _yield_if_crowded():
    """With more ranks than cores, let MPICH's ranks that wait make room. It reads this when it starts."""
    if int(os.environ.get(LOCAL_SIZE_VARIABLE, 1)) > len(_cores()):
        os.environ.setdefault(YIELD_VARIABLE, "0")
