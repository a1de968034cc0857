"""TopkSA (TopkDSA): split and reduce over even regions, then gather the sums, sparse or dense, whichever is smaller."""

import torch

from algorithms import Algorithm, Reduction
from exchange import counts_of_all, even_cuts, gather, split_and_reduce

WORDS_PER_ENTRY = 2  # an index and a value


class TopkSA(Algorithm):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cuts = even_cuts(self.n, self.comm.size)

    def reduce(self, acc):
        mine = self.chooser.choose(acc)
        sums = split_and_reduce(self.comm, self.ops, mine, self.cuts)
        (counts,) = counts_of_all(self.comm, sums.count)
        if WORDS_PER_ENTRY * sum(counts) < self.n:
            return self.sparse_reduction(gather(self.comm, sums, counts), mine, delivered=mine.indices)
        return Reduction(
            dense_mean=self.gather_dense(sums),
            delivered=mine.indices,
            selected_local=mine.count,
            selected_global=sum(counts),
        )

    def gather_dense(self, sums):
        low, high = self.cuts[self.comm.rank], self.cuts[self.comm.rank + 1]
        region = torch.zeros(high - low, device=sums.values.device)
        region[(sums.indices - low).long()] = sums.values / self.comm.size
        widths = [end - start for start, end in zip(self.cuts[:-1], self.cuts[1:], strict=True)]
        return self.comm.allgatherv(region, widths)
