"""The sparse allreduces, one small file each.

What an algorithm receives, returns and keeps
---------------------------------------------
It is made once for each flat gradient, with an `Exchange` (the communicator, the operations on entries and their form
on the wire), n, k and the settings, and may keep state between reductions (the cuts of regions).

`reduce(mine)` receives the entries that this rank has chosen to send and returns a `Reduction`: the mean over the
ranks, and what this rank's residual gives up for it. Every rank returns the identical mean, bit for bit, and nothing is
lost: over all ranks, what left the residuals is `size` times the mean. Only the reducer changes residuals.
"""

import abc
from dataclasses import dataclass

import torch

from ..entries import Entries


@dataclass(frozen=True)
class Reduction:
    """The mean over the ranks, as sorted entries or dense, and what becomes of this rank's entries."""

    mean: Entries | None
    delivered: Entries  # what leaves this rank's residual; a zero is none
    returned: tuple = ()  # entries that were dropped on the way and go to this rank's residual
    dense_mean: torch.Tensor | None = None
    selected: int = 0  # entries of the mean
    is_finite: bool | None = None  # None: nobody has looked


class Algorithm(abc.ABC):
    def __init__(self, exchange, n, k, settings):
        self.exchange, self.n, self.k, self.settings = exchange, n, k, settings
        self.comm, self.ops, self.wire = exchange.comm, exchange.ops, exchange.wire

    @abc.abstractmethod
    def reduce(self, mine):
        """From the `Entries` that this rank sends to a `Reduction`."""

    def state_dict(self):
        """What the next reductions depend on: plain numbers, lists and tensors."""
        return {}

    def load_state_dict(self, state):  # noqa: B027 - most have none
        """Take over what `state_dict` gave."""

    def share(self, sums):
        """Every rank's sums as the wire carries them; and what that left over, which goes back to the owner."""
        rounded, returned = self.round_off(sums)
        return self.exchange.gather(rounded)[0], returned

    def round_off(self, sums):
        """The sums as the wire carries them, and what that leaves over: to be done before they leave their owner."""
        rounded = self.wire.rounded(sums)
        return rounded, () if rounded is sums else (self.ops.differences(sums, rounded),)

    def reduction(self, sums, delivered, returned=(), is_finite=None):
        """The `Reduction` for these sums over the ranks, whose values become the mean in place."""
        mean = Entries(sums.indices, sums.values.div_(self.comm.size))
        return Reduction(mean, delivered, tuple(returned), selected=mean.count, is_finite=is_finite)
