"""The dense allreduce: everything, every time. The baseline, and what the warm-up uses."""

from algorithms import Algorithm, Reduction


class Dense(Algorithm):
    def reduce(self, acc):
        """Sums in place: `acc.values` itself becomes the mean."""
        self.comm.allreduce(acc.values)
        if self.comm.size > 1:
            acc.values.mul_(1 / self.comm.size)
        return Reduction(dense_mean=acc.values, selected_local=self.n, selected_global=self.n)
