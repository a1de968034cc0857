"""TopkSA (TopkDSA): split and reduce over even regions, then gather the sums, sparse or dense, whichever is smaller."""

import itertools

import torch

from ..exchange import even_cuts, regions
from . import Algorithm, Reduction

FLOAT32 = 4  # bytes


class TopkSA(Algorithm):
    def reduce(self, mine):
        regions_ = self.regions(mine.indices.device)
        sums = self.ops.without_zeros(self.exchange.split_and_reduce(mine, regions_))
        (counts,) = self.exchange.counts_of_all(sums.count)
        if self.wire.entry_bytes * sum(counts) < FLOAT32 * self.n:
            everyone, returned = self.share(sums)
            return self.reduction(everyone, mine, returned)
        return Reduction(None, mine, dense_mean=self.gather_dense(sums, regions_.cuts), selected=sum(counts))

    def regions(self, device):
        return regions(even_cuts(self.n, self.comm.size), device)

    def gather_dense(self, sums, cuts):
        low, high = cuts[self.comm.rank], cuts[self.comm.rank + 1]
        region = torch.zeros(high - low, device=sums.values.device)
        region[(sums.indices - low).long()] = sums.values / self.comm.size
        widths = [end - start for start, end in itertools.pairwise(cuts)]
        return self.comm.allgatherv(region, widths)
