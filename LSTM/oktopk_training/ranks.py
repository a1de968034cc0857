"""The ranks that train together: who they are, what they agree on, and what they do at once."""

import os
import pickle
import socket
from collections import Counter

import torch

from oktopk import transports
from oktopk.launchers import ranks_that_are_not_seen
from oktopk.starting import cores
from oktopk.transports.alone import Alone

from . import job
from .errors import SharedError, UserError


def connect(transport=transports.AUTO):
    """The ranks that were started, by now known to `job`."""
    try:
        communicator = transports.connect(transport)
    except RuntimeError as error:
        raise UserError(str(error)) from None
    ranks = Ranks(communicator)
    unseen = ranks_that_are_not_seen(ranks.size)
    if unseen:
        raise UserError(unseen)
    job.enlist(ranks)
    return ranks


def alone():
    return Ranks(Alone())


class Ranks:
    """Over a communicator of its own, "control". Messages of others, by `new_communicator`, never meet its."""

    def __init__(self, communicator):
        self._communicator, self.communicators = communicator, {"control": communicator}
        self.rank, self.size = communicator.rank, communicator.size
        self.versions = {"mpi4py": None, "mpi_library": None, **communicator.versions()}
        places = self.everyones((socket.gethostname(), cores()))
        self.hosts = [host for host, _ in places]
        here = [rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank]]
        self.local_rank, self.local_size = here.index(self.rank), len(here)
        self.cores = len(set().union(*(places[rank][1] for rank in here)))

    @property
    def is_first(self):
        return self.rank == 0

    def new_communicator(self, name):
        """Of all ranks, which call it alike; a trace knows it by the name."""
        self.communicators[name] = self._communicator.duplicate()
        return self.communicators[name]

    def everyones(self, value):
        """The value of each rank, in the order of ranks; on all of them."""
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = self._communicator.allgather(torch.tensor([own.numel()])).flatten().tolist()
        pickled = self._communicator.allgatherv(own, lengths).split(lengths)
        return [pickle.loads(each.numpy().tobytes()) for each in pickled]

    def barrier(self):
        """Nobody goes on before all have come."""
        self._communicator.allreduce(torch.zeros(1))

    def may_speak(self):
        """Whether this rank, which fails, is the one to say why: others may have met the same."""
        return self._communicator.may_speak()

    def abort(self, status, cause=None):
        """End the job on all ranks, whatever they are doing, once what this one has said was passed on."""
        if cause is not None:
            self._communicator.tell_failure(cause)
        self._communicator.abort(status)

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

    def add_up(self, counts):
        total = Counter()
        for each in self.everyones(counts):
            total.update(each)
        return total

    def mean(self, value):
        return sum(self.everyones(value)) / self.size

    def share_cores(self, threads=None):
        """Divide this node's cores among its ranks' torch threads; the number that each gets, or None if unchanged.

        torch would start a thread for every core on every rank. OMP_NUM_THREADS goes before that, `threads` before all.
        """
        if threads is None and (self.local_size == 1 or "OMP_NUM_THREADS" in os.environ):
            return None
        threads = threads or max(1, self.cores // self.local_size)
        torch.set_num_threads(threads)
        return threads

    @torch.no_grad()
    def share_model(self, net):
        """Overwrite every rank's parameters and buffers with rank 0's: as bytes, for a transport knows few dtypes."""
        for tensor in net.state_dict().values():
            flat = tensor.reshape(-1)
            self._communicator.bcast(flat.view(torch.uint8))
            tensor.copy_(flat.view(tensor.shape))

    @torch.no_grad()
    def average_buffers(self, net):
        """Average the running means and variances of batch norm, which each rank has from its own batches."""
        buffers = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        if self.size == 1 or not buffers:
            return
        flat = torch.cat([buffer.reshape(-1).float() for buffer in buffers])
        self._communicator.allreduce(flat)
        flat /= self.size
        for buffer, mean in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view(buffer.shape))
