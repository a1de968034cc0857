"""Nodes: dense within, sparse between. So as much leaves a node as if it were one rank.

The ranks of a node add up their gradients. Their first one, the leader, reduces the sum with the other leaders, and
hands the mean on. It alone has residuals, velocities and a compressor.
"""

import hashlib
import socket

import torch

from .buffers import zeros
from .entries import BeyondFloat32, no_entries
from .exchange import Exchange
from .reducer import KEPT, Reducer
from .report import Selection
from .wire import AUTO, wire_for

_DIGEST_BYTES = 7  # fits an int64


class Nodes:
    """Communicators of this rank's node, and between the leaders of all (None where this rank is no leader)."""

    def __init__(self, communicator, ranks_per_node=None):
        nodes = _of_one_size(communicator.size, ranks_per_node) if ranks_per_node else ranks_by_host(communicator)
        self.size = len(nodes)
        self.inside = communicator.part(nodes)
        self.between = communicator.part([[node[0] for node in nodes]])
        self.share = self.size / communicator.size  # what the mean over the leaders is of that over all ranks

    def close(self):
        for communicator in (self.inside, self.between):
            if communicator is not None:
                communicator.close()


def _of_one_size(size, ranks_per_node):
    return [list(range(first, min(first + ranks_per_node, size))) for first in range(0, size, ranks_per_node)]


def ranks_by_host(communicator):
    """The ranks of each host, in the order of their first ones."""
    digest = hashlib.sha256(socket.gethostname().encode()).digest()[:_DIGEST_BYTES]
    nodes = {}
    for rank, host in enumerate(communicator.allgather(torch.tensor([int.from_bytes(digest, "big")]))[:, 0].tolist()):
        nodes.setdefault(host, []).append(rank)
    return list(nodes.values())


class NodeReducer(Reducer):
    """A reducer between the leaders, with what goes on within a node around it. Residuals are those of nodes' sums."""

    def __init__(self, merged, compressor, settings, nodes):
        super().__init__(merged, compressor, settings, nodes.between or nodes.inside)
        self._nodes, self._mean, self.share = nodes, None, nodes.share
        self._inside = Exchange(nodes.inside, self.ops, wire_for(AUTO, merged.gradient.device))

    def _reduce(self, report, abstains, unused):
        inside, leads = self._nodes.inside, self._nodes.between is not None
        inside.allreduce(self.merged.gradient)
        loaded = [not leads and getattr(self, name) is not None for name in KEPT]
        flags = torch.tensor([not abstains, *loaded], dtype=torch.int64)
        inside.allreduce(flags, op="max")
        some_take_part, *loaded = flags.tolist()
        self._hand_over([name for name, flag in zip(KEPT, loaded, strict=True) if flag])
        if leads:
            self._lead(report, not some_take_part, unused)
        else:
            self._take(report)

    def _hand_over(self, names):
        """What others than the leader have loaded, of a run whose ranks were other leaders, becomes part of its own."""
        for name in names:
            mine = getattr(self, name)
            flat = zeros(self.merged.size, self.merged.gradient.device) if mine is None else mine
            self._nodes.inside.allreduce(flat)
            setattr(self, name, None if self._nodes.between is None else flat)

    def _lead(self, report, abstains, unused):
        self._mean, is_sparse = None, self.is_sparse_now
        try:
            super()._reduce(report, abstains, unused)
        except BeyondFloat32:  # on all leaders: the others are to hear of it too
            self._tell(is_fine=False)
            raise
        selection = report.selections.get(self.merged.name) if is_sparse else None
        self._tell(True, self._mean is not None, is_sparse, selection.count if selection else 0)
        if self._mean is None:
            self._nodes.inside.bcast(self.merged.gradient)
        else:
            self._inside.broadcast(self._mean)

    def _tell(self, is_fine, has_entries=False, is_sparse=False, selected=0):
        self._nodes.inside.bcast(torch.tensor([is_fine, has_entries, is_sparse, selected]))

    def _take(self, report):
        """What the leader hands on."""
        gradient, told = self.merged.gradient, torch.zeros(4, dtype=torch.int64)
        self._nodes.inside.bcast(told)
        is_fine, has_entries, is_sparse, selected = told.tolist()
        if not is_fine:
            raise BeyondFloat32
        if has_entries:
            gradient.zero_()
            self.ops.put(gradient, self._inside.broadcast(no_entries(gradient.device)))
        else:
            self._nodes.inside.bcast(gradient)
        if is_sparse:
            report.add_sparse(self.merged.name, Selection(self.merged.size, selected), self.k, selected_local=0)

    def _deliver(self, reduction):
        super()._deliver(reduction)
        self._mean = reduction.mean if not self.merged.narrow else None
