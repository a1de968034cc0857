"""What every algorithm must compute, in plain NumPy, on one process that holds all ranks' gradients.

Written from the definitions, by sorting; it shares nothing with the code under test. Sums run in the order of ranks in
float32, as the definitions say, so that results can be compared bit for bit.
"""

import numpy as np


def k_of(n, density):
    return max(1, int(n * density))


def top(indices, values, k):
    """The k largest non-zero magnitudes, of equal ones the lowest indices, in the order of their indices."""
    alive = values != 0
    indices, values = indices[alive], values[alive]
    order = np.lexsort((indices, -np.abs(values.astype(np.float64))))[:k]
    order = order[np.argsort(indices[order])]
    return indices[order], values[order]


def dense_list(n, pairs):
    """Sum of sparse lists, list after list, as a dense array."""
    total = np.zeros(n, np.float32)
    for indices, values in pairs:
        total[indices] += values
    return total


class Oracle:
    """All ranks of one algorithm with exact choices: `step` takes the ranks' gradients and returns the mean."""

    def __init__(self, name, ranks, n, k):
        self.n, self.k, self.ranks = n, k, ranks
        self.residuals = [np.zeros(n, np.float32) for _ in range(ranks)]
        self._sum = {
            "topkA": self._sum_of_all,
            "topkSA": self._sum_of_all,
            "topkA2": self._largest_of_sum,
            "oktopk": self._largest_of_sum,
            "gtopk": self._tree,
        }[name]

    def step(self, gradients):
        acc = [gradient + residual for gradient, residual in zip(gradients, self.residuals, strict=True)]
        everything = np.arange(self.n)
        chosen = [top(everything, a, self.k) for a in acc]
        total = self._sum(acc, chosen)
        self.residuals = acc
        return total / np.float32(self.ranks)

    def _sum_of_all(self, acc, chosen):
        for a, (indices, _) in zip(acc, chosen, strict=True):
            a[indices] = 0
        return dense_list(self.n, chosen)

    def _largest_of_sum(self, acc, chosen):
        kept_indices, kept = top(np.arange(self.n), dense_list(self.n, chosen), self.k)
        self._clear(acc, chosen, kept_indices)
        return dense_list(self.n, [(kept_indices, kept)])

    def _tree(self, acc, chosen):
        held, returned, distance = list(chosen), [], 1
        while distance < self.ranks:
            for rank in range(0, self.ranks - distance, 2 * distance):
                total = dense_list(self.n, [held[rank], held[rank + distance]])
                held[rank] = top(np.arange(self.n), total, self.k)
                total[held[rank][0]] = 0
                returned.append((rank, total))
            distance *= 2
        indices, values = held[0]
        self._clear(acc, chosen, indices)
        for rank, dropped in returned:
            acc[rank][indices] += dropped[indices]
        return dense_list(self.n, [(indices, values)])

    @staticmethod
    def _clear(acc, chosen, kept):
        for a, (indices, _) in zip(acc, chosen, strict=True):
            a[np.intersect1d(indices, kept)] = 0
