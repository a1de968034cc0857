"""Ok-Topk: S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP'22.

A reduction, in its five steps:

1. Choose the k largest of this rank.
2. Split and reduce: each region of the index space has an owner; the owner sums what the others chose in its region.
   Regions are cut so that the owners' loads balance, and the cut is kept for a number of reductions.
3. Choose the k largest sums over all regions.
4. Balance, if one owner holds far more of them than the others, and gather them.
5. Delivered is what this rank chose and the global choice took. The rest stays, whole, in the residual.

At most 2k(P - 1)/P words a rank for step 2 and 4k(P - 1)/P for step 4: under 6k, whatever P.
"""

import torch

from algorithms import Algorithm
from exchange import even_cuts, even_out, gather, split_and_reduce
from selection import GlobalExactTopK, GlobalReusedThreshold

IMBALANCE = 4  # largest share over mean share, from which on balancing costs less than it saves (section 3.1.2)


class OkTopk(Algorithm):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.choose_globally = (
            GlobalReusedThreshold(self.comm, self.ops, self.k, self.options.threshold_period)
            if self.options.threshold == "reuse" and self.k < self.n
            else GlobalExactTopK(self.comm, self.ops, self.k)
        )
        self.cuts, self.reductions = None, 0

    def reduce(self, acc):
        mine = self.chooser.choose(acc)  # 1
        sums = split_and_reduce(self.comm, self.ops, mine, self.current_cuts(mine.indices))  # 2
        kept, counts = self.choose_globally(sums)  # 3
        if max(counts) * self.comm.size > IMBALANCE * sum(counts):  # 4
            kept, counts = even_out(self.comm, kept, counts)
        sums = gather(self.comm, kept, counts)
        return self.sparse_reduction(sums, mine, delivered=self.ops.common(mine.indices, sums.indices))  # 5

    def current_cuts(self, indices):
        """The borders of the regions, cut anew every `region_period` reductions."""
        if self.reductions % self.options.region_period == 0:
            self.cuts = self.balanced_cuts(indices)
        self.reductions += 1
        return self.cuts

    def balanced_cuts(self, indices):
        """The ranks' quantiles of their chosen indices, averaged; in int64, for their sum may pass 2^31."""
        size = self.comm.size
        cuts = even_cuts(self.n, size)
        if size == 1:
            return cuts
        if indices.numel():
            cuts[1:-1] = indices[even_cuts(indices.numel(), size)[1:-1]].tolist()
        total = torch.tensor(cuts[1:-1], dtype=torch.int64)
        self.comm.allreduce(total)
        return [0, *(total // size).tolist(), self.n]
