"""Runs one algorithm after another on this many ranks, and checks the laws after every iteration on rank 0.

Prints a JSON object: for each case, the first law that it broke, or null.
"""

import json
import math
import sys
from functools import partial

import numpy as np
import torch
from gradients import MAKERS, gradient
from mpi4py import MPI
from oracle import Oracle, dense_list, k_of

import oktopk.reducer
import oktopk.registry
from oktopk import GradientAverager, Settings, compressors
from oktopk.kernels import CpuOps
from oktopk.operations import TorchOps

COMM = MPI.COMM_WORLD
NAMES = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
THRESHOLD = ("topkAopt", "gaussiank", "gaussiankconcat", "gaussiankSA")
EXACT = ("topkA", "topkA2", "topkSA", "gtopk", "oktopk")
SIZES = (1, 3, 1000)  # n = 1, n < P, and one with regions, ties and blocks that do not divide it
LONG = 100  # iterations: drift shows late
SHORT = 6
EPSILON = 2.0**-20  # relative to the sum of magnitudes: a few float32 roundings
WIRES = {CpuOps: "separate", TorchOps: "joined"}
SMALLEST = 1.4e-45  # the spacing of denormals: dividing by P cannot be more exact than that


class Ranks:
    """One averager on every rank, and on rank 0 everything that any of them holds."""

    def __init__(self, name, n, density, threshold="exact", ops=CpuOps):
        self.n = n
        oktopk.reducer.ops_for = oktopk.registry.ops_for = lambda device: ops
        settings = Settings(density=density, warmup_iters=0, threshold=threshold, wire=WIRES[ops])
        self.averager = GradientAverager([("p", torch.nn.Parameter(torch.zeros(n)))], name, settings)

    def reduce(self, own_gradient):
        """Returns (mean, residual, report) of every rank on rank 0, None elsewhere."""
        self.averager.hand_in("p", torch.from_numpy(own_gradient.copy()))
        report = self.averager.average()
        mean = self.averager.result("p").numpy().copy()
        residual = self.averager.state_dict()["parameters"]["p"].get("residual", torch.zeros(self.n))
        return COMM.gather((mean, residual.numpy(), report))

    def close(self):
        self.averager.close()


def broken_law(everyone, before, gradients, oracle, name, k, density):
    """The name of the first law that this iteration broke, with figures; None if it kept them all."""
    means = [mean for mean, _, _ in everyone]
    residuals = [residual.astype(np.float64) for _, residual, _ in everyone]
    if any(mean.tobytes() != means[0].tobytes() for mean in means):
        return "1: the ranks' results differ"
    acc = [(g + r) for g, r in zip(gradients, before, strict=True)]
    tolerance = EPSILON * sum(np.abs(a.astype(np.float64)) for a in acc) + SMALLEST * len(acc)
    delivered = sum(a.astype(np.float64) for a in acc) - sum(residuals)
    lost = np.abs(delivered - len(acc) * means[0].astype(np.float64))
    if not (lost <= tolerance).all():
        return f"3: {lost.max()} lost at {int(lost.argmax())}"
    if name == "none" or density == 1:
        dense = sum(gradient.astype(np.float64) for gradient in gradients) / len(acc)
        if (np.abs(means[0] - dense) > tolerance).any():
            return "2: not the dense mean"
    if name in THRESHOLD:
        counts = [step.selected_local for _, _, step in everyone]
        return broken_band(name, k, acc, counts) or broken_threshold_law(
            means[0], acc, [residual for _, residual, _ in everyone]
        )
    if oracle is not None:
        expected = oracle.step(gradients)
        if not np.array_equal(means[0], expected):
            wrong = np.flatnonzero(means[0] != expected)
            return f"5: {len(wrong)} means differ from the oracle's, first at {wrong[0]}"
        for rank, (_, residual, _) in enumerate(everyone):
            if not np.array_equal(residual, oracle.residuals[rank]):
                return f"5: the residual of rank {rank} differs from the oracle's"
        for rank, (_, _, step) in enumerate(everyone):
            if step.selected_local != min(k, np.count_nonzero(acc[rank])):
                return f"4: rank {rank} chose {step.selected_local} of k = {k}"
    return None


def broken_band(name, k, acc, counts):
    """Gaussian choosers keep to 2/3 k and 4/3 k where there are so many non-zeros; a reused threshold to 1.5 k."""
    for rank, (values, count) in enumerate(zip(acc, counts, strict=True)):
        least = min(-(-2 * k // 3), np.count_nonzero(values)) if name.startswith("gaussian") else 0
        most = math.ceil(1.5 * k) if name == "topkAopt" else max(1, 4 * k // 3)
        if not least <= count <= most:
            return f"4: rank {rank} chose {count} of k = {k}"
    return None


def broken_threshold_law(mean, acc, residuals):
    """How many pass a threshold is an estimate; that the largest do, and what becomes of them, is not."""
    sent = []
    for rank, (values, residual) in enumerate(zip(acc, residuals, strict=True)):
        chosen = (residual == 0) & (values != 0)
        if not np.array_equal(values[~chosen], residual[~chosen]):
            return f"5: rank {rank} changed what it did not send"
        if chosen.any() and np.abs(values[chosen]).min() < np.abs(values[~chosen]).max(initial=0):
            return f"4: rank {rank} kept an entry larger than one that it sent"
        sent.append((np.flatnonzero(chosen), values[chosen]))
    expected = dense_list(len(mean), sent) / np.float32(len(acc))
    return None if np.array_equal(mean, expected) else "5: the mean differs from the oracle's sum of what was sent"


def check(name, gradient_of, n, density, iterations, threshold="exact", ops=CpuOps):
    """Run one case, with gradient_of(rank, iteration); returns, on every rank, the first broken law or None."""
    size, k = COMM.size, k_of(n, density)
    ranks = Ranks(name, n, density, threshold, ops)
    oracle = Oracle(name, size, n, k) if name in EXACT and threshold == "exact" else None
    before = [np.zeros(n, np.float32)] * size
    verdict = None
    for iteration in range(iterations):
        gradients = [gradient_of(rank, iteration) for rank in range(size)]
        everyone = ranks.reduce(gradients[COMM.rank])
        if COMM.rank == 0:
            law = broken_law(everyone, before, gradients, oracle, name, k, density)
            before = [residual for _, residual, _ in everyone]
            verdict = f"iteration {iteration}, law {law}" if law else None
        verdict = COMM.bcast(verdict)
        if verdict:
            break
    ranks.close()
    return verdict


def cases():
    """(compressor, gradients, n, density, iterations, threshold, tensor operations)"""
    for name in NAMES:
        for kind in MAKERS:
            yield name, kind, 1000, 0.02, SHORT, "exact", CpuOps
        for n in SIZES:
            yield name, "normal", n, 0.02, SHORT, "exact", CpuOps
            yield name, "ties_and_cancellation", n, 1.0, SHORT, "exact", CpuOps  # k = n
        yield name, "layered", 1000, 0.02, SHORT, "exact", TorchOps
        yield name, "ties_and_cancellation", 1000, 0.3, SHORT, "exact", TorchOps
        yield name, "normal", 20_000, 0.02, LONG, "exact", CpuOps
    for threshold in ("exact", "reuse"):
        yield "oktopk", "moving", 3_000, 0.05, LONG, threshold, CpuOps
    yield "oktopk", "normal", 20_000, 0.02, LONG, "reuse", CpuOps
    yield "oktopk", "all_equal", 1000, 1.0, SHORT, "reuse", CpuOps


def main():
    findings = {}
    for name, kind, n, density, iterations, threshold, ops in cases():
        makes = partial(gradient, kind, n, COMM.size)
        case = f"{name} {kind} n={n} density={density} {threshold} {ops.__name__}"
        findings[case] = check(name, makes, n, density, iterations, threshold, ops)
    if COMM.rank == 0:
        sys.stdout.write(json.dumps(findings) + "\n")


if __name__ == "__main__":
    main()
