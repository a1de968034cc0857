"""Ok-Topk: S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP'22.

A reduction, in its five steps:

1. Choose the k largest of this rank (its chooser has done that).
2. Split and reduce: each region of the index space has an owner; the owner sums what the others chose in its region.
   Regions are cut so that the owners' loads balance, and the cut is kept for a number of reductions.
3. Choose the k largest sums over all regions.
4. Balance, if one owner holds far more of them than the others, and gather them.
5. Delivered is what this rank chose and the global choice took. The rest stays, whole, in the residual.

At most 2k(P - 1)/P words a rank for step 2 and 4k(P - 1)/P for step 4: under 6k, whatever P.
"""

import torch

from ..choosers import GlobalExactTopK, GlobalReusedThreshold
from ..exchange import even_cuts, regions
from . import Algorithm

IMBALANCE = 4  # largest share over mean share, from which on balancing costs less than it saves (section 3.1.2)


class OkTopk(Algorithm):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.reuses = self.settings.threshold == "reuse" and self.k < self.n
        self.choose_globally = (
            GlobalReusedThreshold(self.exchange, self.k, self.settings.threshold_period)
            if self.reuses
            else GlobalExactTopK(self.exchange, self.k)
        )
        self.cuts, self.regions, self.reductions = None, None, 0

    def reduce(self, mine):
        sums = self.exchange.split_and_reduce(mine, self.current_regions(mine.indices))  # 2
        kept, counts = self.choose_globally(sums)  # 3
        kept, returned = self.round_off(kept)
        if max(counts) * self.comm.size > IMBALANCE * sum(counts):  # 4
            kept = self.exchange.even_out(kept, counts)
        sums, _ = self.exchange.gather(kept)
        return self.reduction(  # 5
            sums, self.ops.common(mine, sums), returned, is_finite=None if self.reuses else True
        )

    def current_regions(self, indices):
        """Cut anew every `region_period` reductions."""
        if self.cuts is None or self.reductions % self.settings.region_period == 0:
            self.cuts, self.regions = self.balanced_cuts(indices), None
        if self.regions is None:
            self.regions = regions(self.cuts, indices.device)
        self.reductions += 1
        return self.regions

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

    def state_dict(self):
        threshold = self.choose_globally.state_dict()
        return {"cuts": self.cuts, "reductions": self.reductions, "threshold": threshold}

    def load_state_dict(self, state):
        self.reductions, self.regions = state["reductions"], None
        of_as_many_ranks = state["cuts"] is not None and len(state["cuts"]) == self.comm.size + 1
        self.cuts = state["cuts"] if of_as_many_ranks and state["cuts"][-1] == self.n else None
        self.choose_globally.load_state_dict(state["threshold"])
