"""TopkA: each rank chooses, all gather everything, everyone sums. 2k(P - 1) words."""

from algorithms import Algorithm
from exchange import counts_of_all, gather, gather_in_one_buffer
from selection import largest


class TopkA(Algorithm):
    """The mean has every entry that any rank chose: up to kP of them."""

    gather = staticmethod(gather)

    def reduce(self, acc):
        mine = self.chooser.choose(acc)
        return self.sparse_reduction(self.sum_of_all(mine), mine, delivered=mine.indices)

    def sum_of_all(self, mine):
        (counts,) = counts_of_all(self.comm, mine.count)
        return self.ops.sum_lists(self.gather(self.comm, mine, counts), counts, 0, self.n)


class ConcatenatedTopkA(TopkA):
    """TopkA with one buffer for indices and values."""

    gather = staticmethod(gather_in_one_buffer)


class TopkA2(TopkA):
    """TopkA, then only the k largest sums; entries that did not make it stay in the residuals."""

    def reduce(self, acc):
        mine = self.chooser.choose(acc)
        sums = largest(self.ops, self.sum_of_all(mine), self.k)
        return self.sparse_reduction(sums, mine, delivered=self.ops.common(mine.indices, sums.indices))
