"""Gradients that have broken sparse allreduces before. Each maker gives one rank's gradient for one iteration.

They depend on (seed, rank, iteration) alone, so that any rank can compute all ranks' without trusting them.
"""

import numpy as np


def rng_of(*key):
    return np.random.default_rng(list(key))


def normal(n, ranks, rank, iteration, rng):
    return rng.standard_normal(n)


def laplace(n, ranks, rank, iteration, rng):
    return rng.laplace(size=n)


def layered(n, ranks, rank, iteration, rng):
    """Layers of different scales, every other one with most rows at zero."""
    values = rng.standard_normal(n)
    for i, layer in enumerate(np.array_split(values, 6)):
        layer *= 10.0 ** -(i % 4)
        if i % 2:
            layer[: layer.size * 9 // 10] = 0
    return values


def all_zero(n, ranks, rank, iteration, rng):
    return np.zeros(n)


def all_equal(n, ranks, rank, iteration, rng):
    return np.full(n, 0.5)


def few_nonzeros(n, ranks, rank, iteration, rng):
    """Fewer than k on every rank."""
    values = np.zeros(n)
    values[rng.integers(0, n, 3)] = 1.5
    return values


def one_rank_zero(n, ranks, rank, iteration, rng):
    return np.zeros(n) if rank == ranks - 1 else rng.standard_normal(n)


def one_region(n, ranks, rank, iteration, rng):
    """All mass in the last twentieth of the index space: one owner would hold everything."""
    values = np.zeros(n)
    start = n - max(1, n // 20)
    values[start:] = rng.standard_normal(n - start)
    return values


def moving(n, ranks, rank, iteration, rng):
    """The mass moves on with the iterations, away from where the regions were cut."""
    values = rng.standard_normal(n) * 1e-3
    width = max(1, n // 10)
    start = (iteration * width // 2) % n
    values[start : start + width] *= 1e4
    return values


def extremes(n, ranks, rank, iteration, rng):
    """1e-30 and 1e30 side by side."""
    return rng.choice([1e-30, -1e-30, 1e30, -1e30, 1.0], n)


def negative_zeros(n, ranks, rank, iteration, rng):
    return rng.choice([-0.0, 0.0, -0.0, 1.0, -1.0], n)


def denormals(n, ranks, rank, iteration, rng):
    return rng.choice([1e-45, -3e-42, 1e-39, 0.0], n)


def ties_and_cancellation(n, ranks, rank, iteration, rng):
    """Many equal magnitudes, and sums over ranks that vanish."""
    return rng.choice([-1.0, 1.0], n) * (1 + rng.integers(0, 2, n))


def sudden(n, ranks, rank, iteration, rng):
    """The scale jumps up and down by orders of magnitude: a remembered threshold is of no use."""
    return rng.standard_normal(n) * 10.0 ** ((iteration * 7) % 5 - 2)


MAKERS = {
    maker.__name__: maker
    for maker in (
        normal,
        laplace,
        layered,
        all_zero,
        all_equal,
        few_nonzeros,
        one_rank_zero,
        one_region,
        moving,
        extremes,
        negative_zeros,
        denormals,
        ties_and_cancellation,
        sudden,
    )
}


def gradient(kind, n, ranks, rank, iteration, seed=0):
    rng = rng_of(seed, rank, iteration, len(kind))
    return MAKERS[kind](n, ranks, rank, iteration, rng).astype(np.float32)
