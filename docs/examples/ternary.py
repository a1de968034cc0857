"""A compressor of one's own, held against the laws:  mpiexec -n 3 python docs/examples/ternary.py

Sparse ternary compression (F. Sattler et al., 2019): of the k largest entries only the signs are sent, and the mean of
their magnitudes. What that changes of an entry stays in the residual, for the residual gives up what was sent.
"""

import oktopk
from oktopk.algorithms.topka import TopkA
from oktopk.choosers import ExactTopK
from oktopk.entries import Entries
from oktopk.registry import Compressor
from oktopk.testing import check_compressor


class Ternary(TopkA):
    def reduce(self, mine):
        if mine.count and self.k < self.n:  # all of a gradient is sent as it is
            mean = mine.values.double().abs().mean()  # in float32 the sum might be too large
            mine = Entries(mine.indices, (mine.values.sign() * mean).float())
        return super().reduce(mine)


TERNARY = Compressor("ternary", Ternary, ExactTopK)

if __name__ == "__main__":
    comm = oktopk.connect()
    cases = check_compressor(TERNARY, comm, exact=True)
    if comm.rank == 0:
        print(f"{TERNARY.name} keeps every law in {cases} cases on {comm.size} ranks")
