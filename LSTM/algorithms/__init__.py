"""The sparse allreduces, one small file each.

What an algorithm receives, returns and keeps
---------------------------------------------
It is made once for each merged gradient, with the communicator, the tensor operations (`sparse.CpuOps` or `TorchOps`),
n, k and a chooser, and may keep state between reductions (a bound, the cuts of regions).

`reduce(acc)` receives what this rank has accumulated (gradient + residual) and returns a `Reduction`: the mean over the
ranks, and what has become of this rank's entries. It changes nothing in `acc`: only the reducer adds and clears
residuals. Every rank returns the identical mean, bit for bit, and nothing is lost: over all ranks, what left the
residuals is `size` times the mean.
"""

import abc
from dataclasses import dataclass

import torch

from sparse import Sparse


@dataclass(frozen=True)
class Accumulated:
    """gradient + residual of one rank. `candidates` holds every entry that reaches the chooser's bound, or is None."""

    values: torch.Tensor
    candidates: Sparse | None = None


@dataclass(frozen=True)
class Reduction:
    """The mean over the ranks, as sorted entries or dense, and what the residual of this rank gives up for it."""

    mean: Sparse | None = None
    dense_mean: torch.Tensor | None = None
    delivered: torch.Tensor | None = None  # indices whose accumulated values leave the residual
    returned: Sparse | None = None  # sums that were dropped on the way and go to this rank's residual
    selected_local: int = 0  # entries that this rank chose to send
    selected_global: int = 0  # entries of the mean


class Algorithm(abc.ABC):
    """What the algorithms share: who talks, with which operations, about how many of how many elements."""

    def __init__(self, comm, ops, n, k, chooser, options):
        self.comm, self.ops, self.n, self.k = comm, ops, n, k
        self.chooser, self.options = chooser, options

    @abc.abstractmethod
    def reduce(self, acc):
        """From an `Accumulated` to a `Reduction`."""

    def sparse_reduction(self, sums, mine, delivered, returned=None):
        """The `Reduction` for these sums over the ranks, whose values become the mean in place."""
        mean = Sparse(sums.indices, sums.values.div_(self.comm.size))
        return Reduction(mean, None, delivered, returned, mine.count, mean.count)
