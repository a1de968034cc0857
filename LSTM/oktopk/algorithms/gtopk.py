"""gTopk: a tree of pairwise merges, each of which keeps the k largest sums; then the root's go to everyone.

Works for every number of ranks: a rank without a partner in a round waits for the next. 4k log2(P) words.
"""

import torch

from ..entries import Entries
from . import Algorithm


class GTopk(Algorithm):
    def reduce(self, mine):
        merged, merges = self.merge_up_the_tree(mine)
        sums = self.exchange.broadcast(merged)
        # An entry that did not reach the root stays, whole, with the ranks that chose it. One that did may still have
        # lost a part in another branch of the tree: that part goes to the residual of the rank that dropped it.
        returned = [self.ops.common(self.ops.differences(*merge), sums) for merge in merges]
        return self.reduction(sums, self.ops.common(mine, sums), returned)

    def merge_up_the_tree(self, mine):
        """What this rank held last, and what each merge here had before it dropped the smallest, and after."""
        rank, size = self.comm.rank, self.comm.size
        merged, merges, distance = mine, [], 1
        while distance < size:
            if rank % (2 * distance):
                self.exchange.send(merged, rank - distance)
                break
            if rank + distance < size:
                arrived = self.exchange.receive(rank + distance, mine.values.device)
                both = Entries(*(torch.cat(pair) for pair in zip(merged, arrived, strict=True)))
                sums = self.ops.sum_lists(both, [merged.count, arrived.count], 0, self.n)
                sums = self.ops.without_zeros(sums)
                merged = self.wire.rounded(self.ops.ranking(sums).largest(self.k)[0])
                merges.append((sums, merged))
            distance *= 2
        return merged, merges
