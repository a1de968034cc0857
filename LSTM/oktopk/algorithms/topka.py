"""TopkA: each rank chooses, all gather everything, everyone sums. 2k(P - 1) words."""

from . import Algorithm


class TopkA(Algorithm):
    """The mean has every entry that any rank chose: up to kP of them."""

    def reduce(self, mine):
        return self.reduction(self.sum_of_all(mine), delivered=mine)

    def sum_of_all(self, mine):
        everyone, counts = self.exchange.gather(mine)
        return self.ops.without_zeros(self.ops.sum_lists(everyone, counts, 0, self.n))


class TopkA2(TopkA):
    """TopkA, then only the k largest sums; entries that did not make it stay in the residuals."""

    def reduce(self, mine):
        sums, _ = self.ops.ranking(self.sum_of_all(mine)).largest(self.k)
        return self.reduction(sums, delivered=self.ops.common(mine, sums))
