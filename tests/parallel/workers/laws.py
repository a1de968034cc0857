"""Runs one compressor after another on this many ranks, under any launcher, and checks the laws of each.

The laws are the library's own (oktopk.testing); here are added the oracle's, and those of thresholds. Prints a JSON
object: for each case, the first law that it broke, or null. With arguments: what the kit says of these broken
compressors, on each rank.
"""

import itertools
import json
import math
import sys
from dataclasses import replace

import numpy as np
from oracle import Oracle, dense_list

import oktopk
import oktopk.reducer
import oktopk.registry
import oktopk.testing.bench
from oktopk import compressors
from oktopk.algorithms.topka import TopkA
from oktopk.choosers import ExactTopK
from oktopk.cpu_operations import CpuOps
from oktopk.operations import TorchOps
from oktopk.registry import Compressor
from oktopk.testing import Case, LawBroken, broken_law, cases, check_compressor
from oktopk.testing.meeting import texts_of_all
from oktopk.wire import wires

COMM = oktopk.connect()
NAMES = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
THRESHOLD = ("topkAopt", "gaussiank", "gaussiankconcat", "gaussiankSA")
EXACT = ("topkA", "topkA2", "topkSA", "gtopk", "oktopk")
FEW = COMM.size <= 3  # ranks: with more, on few cores, iterations cost more and show little else
LONG = 100 if FEW else 12  # iterations: drift shows late
SHORT = 6 if FEW else 3
WITH_MORE = (1, 2, 3, 5)  # ranks on which wires that round and nodes of several ranks are tried too
NODES = {"hierarchical": True, "ranks_per_node": 2}  # with an odd number of ranks, the last one has a node of its own
LOSSLESS = [name for name, wire in wires.items() if not wire.precision]
ROUNDED = [name for name, wire in wires.items() if wire.precision]


class OracleLaw:
    """Means and residuals are the oracle's, bit for bit."""

    def __init__(self, name, case):
        self.oracle = Oracle(name, COMM.size, case.n, max(1, int(case.n * case.density)))

    def __call__(self, step):
        expected = self.oracle.step(step.gradients)
        if not np.array_equal(step.means[0], expected):
            wrong = np.flatnonzero(step.means[0] != expected)
            return f"{len(wrong)} means differ from the oracle's, first at {wrong[0]}"
        for rank, residual in enumerate(step.residuals):
            if not np.array_equal(residual, self.oracle.residuals[rank]):
                return f"the residual of rank {rank} differs from the oracle's"
        return None


class ThresholdLaw:
    """How many pass a threshold is an estimate within a band; that the largest do, and what becomes of them, is not."""

    def __init__(self, name):
        self.name = name

    def __call__(self, step):
        return self.broken_band(step) or self.broken_choice(step)

    def broken_band(self, step):
        """Gaussian choosers keep to 2/3 k and 4/3 k where there are so many non-zeros; a reused threshold to 1.5 k."""
        k = step.k
        for rank, (values, count) in enumerate(zip(step.acc, step.selected, strict=True)):
            least = min(-(-2 * k // 3), np.count_nonzero(values)) if self.name.startswith("gaussian") else 0
            most = math.ceil(1.5 * k) if self.name == "topkAopt" else max(1, 4 * k // 3)
            if not least <= count <= most:
                return f"rank {rank} chose {count} of k = {k}"
        return None

    def broken_choice(self, step):
        sent = []
        for rank, (values, residual) in enumerate(zip(step.acc, step.residuals, strict=True)):
            chosen = (residual == 0) & (values != 0)
            if not np.array_equal(values[~chosen], residual[~chosen]):
                return f"rank {rank} changed what it did not send"
            if chosen.any() and np.abs(values[chosen]).min() < np.abs(values[~chosen]).max(initial=0):
                return f"rank {rank} kept an entry larger than one that it sent"
            sent.append((np.flatnonzero(chosen), values[chosen]))
        expected = dense_list(len(values), sent) / np.float32(len(sent))
        return None if np.array_equal(step.means[0], expected) else "the mean differs from the sum of what was sent"


def check(name, case, ops=CpuOps):
    """The first law that a case broke, on every rank, or None."""
    oktopk.reducer.ops_for = oktopk.registry.ops_for = lambda device: ops
    of_nodes = "hierarchical" in case.settings  # whose leaders choose among sums
    exact = name in EXACT and case.settings.get("threshold") != "reuse" and not of_nodes
    also = OracleLaw(name, case) if exact else ThresholdLaw(name) if name in THRESHOLD else None
    if of_nodes or "momentum" in case.settings or case.settings["wire"] in ROUNDED:  # neither knows what those change
        also = None
    broken = broken_law(name, case, COMM, exact=exact, also=also, in_step=False)
    return None if broken is None else str(broken)


def over(wire, case):
    return replace(case, settings=case.settings | {"wire": wire})


def every_case():
    """(compressor, case, tensor operations); the lossless wires take turns."""
    turns = itertools.cycle(LOSSLESS)
    for name in NAMES:
        for case in cases(iterations=SHORT):
            yield name, over(next(turns), case), CpuOps
        yield name, over("joined", Case("layered", 1000, iterations=SHORT)), TorchOps
        yield name, over("joined", Case("ties_and_cancellation", 1000, 0.3, SHORT)), TorchOps
        yield name, over("joined", Case("moving", 1000, iterations=SHORT, event="resume")), TorchOps
        yield name, over("separate", Case("normal", 20_000, iterations=LONG)), CpuOps
        if COMM.size in WITH_MORE:
            yield from cases_of_rounding(name)
            yield from cases_of_nodes(name)
    for wire in ("gaps", *ROUNDED):
        yield "oktopk", over(wire, Case("moving", 3_000, 0.05, LONG)), CpuOps
    yield "oktopk", over("gaps", Case("moving", 3_000, 0.05, LONG, settings={"threshold": "reuse"})), CpuOps
    yield "oktopk", over("separate", Case("normal", 20_000, iterations=LONG, settings={"threshold": "reuse"})), CpuOps
    yield "oktopk", over("gaps", Case("all_equal", 1000, 1.0, settings={"threshold": "reuse"})), CpuOps


def cases_of_rounding(name):
    """Where what rounding leaves over might get lost: in sums that move on, near zero and infinity, in a resume."""
    for wire in ROUNDED:
        for kind in ("one_region", "extremes"):
            yield name, over(wire, Case(kind, 1000, iterations=4)), CpuOps
        yield name, over(wire, Case("normal", 1)), CpuOps
        yield name, over(wire, Case("layered", 1000, 0.3, iterations=4)), CpuOps
        yield name, over(wire, Case("normal", 1000, 1.0, iterations=4)), CpuOps
        resumed = Case("moving", 1000, iterations=4, event="resume", settings={"momentum": 0.9})
        yield name, over(wire, resumed), CpuOps


def cases_of_nodes(name):
    yield name, over("gaps", Case("layered", 1000, 0.3, settings=NODES)), CpuOps
    yield name, over("separate", Case("ties_and_cancellation", 1000, 1.0, settings=NODES)), CpuOps
    yield name, over("gaps16", Case("moving", 1000, event="resume", settings=NODES | {"momentum": 0.9})), CpuOps
    yield name, over("gaps", Case("one_rank_zero", 1000, event="overflow", settings=NODES)), CpuOps
    yield name, over("joined", Case("normal", 7, settings=NODES)), CpuOps  # whose one entry is handed on in a node


def few_cases():
    """Where another transport might carry what MPI carries well: little, nothing, uneven parts, every wire."""
    for name in NAMES:
        yield name, over("gaps", Case("normal", 1, iterations=2)), CpuOps
        yield name, over("separate", Case("normal", 3, 1.0, iterations=2)), CpuOps
        yield name, over("gaps", Case("one_rank_zero", 1000, iterations=3)), CpuOps
        yield name, over("joined", Case("one_region", 1000, iterations=3)), TorchOps
        yield (
            name,
            over("gaps16", Case("moving", 1000, iterations=4, event="resume", settings={"momentum": 0.9})),
            CpuOps,
        )
        yield name, over("separate", Case("layered", 1000, iterations=2, event="overflow")), CpuOps
        yield name, over("gaps", Case("layered", 1000, 0.3, iterations=3, settings=NODES)), CpuOps


def findings(every):
    found = {}
    for name, case, ops in every:
        found[f"{name} {case.event or 'steps'} {case} {ops.__name__}"] = check(name, case, ops)
    return found


# ---- compressors that break a law where there are several ranks


class Differs(TopkA):
    def reduce(self, mine):
        reduction = super().reduce(mine)
        reduction.mean.values.mul_(1 + (self.comm.rank == 1))
        return reduction


class Raises(TopkA):
    def reduce(self, mine):
        if self.comm.rank == 1:
            raise ValueError("rank one's own trouble")
        return super().reduce(mine)


class LeavesOut(TopkA):
    """Who has little to send does not take part."""

    def reduce(self, mine):
        return super().reduce(mine) if self.comm.rank != 1 else self.reduction(mine, delivered=mine)


class Waits(Raises):
    """For a message of the rank that fails."""

    def reduce(self, mine):
        if self.comm.rank == 0:
            self.exchange.receive(1, "cpu")
        return super().reduce(mine)


BROKEN = {each.__name__: each for each in (Differs, Raises, LeavesOut, Waits)}


def sentences(name):
    """What each rank hears of a broken compressor; the communicator is as good as before."""
    oktopk.testing.bench.SECONDS = 3
    try:
        check_compressor(Compressor(name, BROKEN[name], ExactTopK), COMM)
    except LawBroken as broken:
        return texts_of_all(COMM, str(broken))
    return None


def main():
    broken = sys.argv[1:]
    found = {name: sentences(name) for name in broken} if broken else findings(every_case())
    if COMM.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
