"""The kernels against the same operations in torch, element for element, and against definitions by sorting."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from algorithms import Accumulated
from compression import ExactTopK, GaussianThreshold, ReusedThreshold
from selection import kth_magnitude, largest
from sparse import CpuOps, Sparse, TorchOps, bits_of

BOTH = pytest.mark.parametrize("ops", [CpuOps, TorchOps])
FLOATS = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 1e-45, -1e-45, 1e37]).map(np.float32).map(float),
)
VECTORS = st.integers(1, 200).flatmap(lambda n: arrays(np.float32, n, elements=FLOATS))


def entries(array):
    return Sparse(torch.arange(len(array), dtype=torch.int32), torch.from_numpy(array))


def assert_same(a, b):
    assert a.indices.dtype == b.indices.dtype == torch.int32
    assert a.values.dtype == b.values.dtype == torch.float32
    assert torch.equal(a.indices, b.indices)
    assert a.values.numpy().tobytes() == b.values.numpy().tobytes()


def assert_sorted_by_definition(chosen, array, k):
    order = np.lexsort((np.arange(len(array)), -np.abs(array.astype(np.float64))))
    order = np.sort([i for i in order[:k] if array[i] != 0])
    assert chosen.indices.tolist() == list(order)
    assert chosen.values.tolist() == array[order.astype(int)].tolist()


@BOTH
@given(array=VECTORS, k=st.integers(1, 250))
def test_largest_are_those_that_sorting_gives(ops, array, k):
    assert_sorted_by_definition(largest(ops, entries(array), k), array, k)


@BOTH
@given(
    gradients=st.integers(1, 200).flatmap(
        lambda n: st.lists(arrays(np.float32, n, elements=FLOATS), min_size=4, max_size=4)
    )
)
def test_exact_choice_is_right_whatever_was_guessed_before(ops, gradients):
    n = len(gradients[0])
    k = max(1, n // 10)
    chooser, residual = ExactTopK(ops, n, k), torch.zeros(n)
    for gradient in gradients:
        acc = residual.numpy() + gradient
        candidates = ops.accumulate(residual, torch.from_numpy(gradient.copy()), chooser.bound, chooser.room)
        assert residual.numpy().tobytes() == acc.tobytes()
        chosen = chooser.choose(Accumulated(residual, candidates))
        assert_sorted_by_definition(chosen, acc, k)
        ops.put_zero(residual, chosen.indices)


@given(array=VECTORS, magnitude=FLOATS)
def test_at_least_and_count_agree(array, magnitude):
    bound, tensor = bits_of(abs(np.float32(magnitude))), torch.from_numpy(array)
    assert_same(CpuOps.at_least(tensor, bound), TorchOps.at_least(tensor, bound))
    assert CpuOps.count_at_least(tensor, bound) == TorchOps.count_at_least(tensor, bound)
    assert CpuOps.count_at_least(tensor, bound) == np.count_nonzero(np.abs(array) >= max(abs(magnitude), 1e-45))


@given(array=VECTORS, room=st.integers(0, 200), magnitude=FLOATS)
def test_accumulate_agrees_and_gives_up_when_there_is_no_room(array, room, magnitude):
    bound, found = bits_of(abs(np.float32(magnitude))), []
    for ops in (CpuOps, TorchOps):
        residual, gradient = torch.full((len(array),), 0.25), torch.from_numpy(array.copy())
        found.append(ops.accumulate(residual, gradient, bound, room))
        assert residual.numpy().tobytes() == (array + np.float32(0.25)).tobytes()
        assert not gradient.any()
    if found[0] is None:
        assert found[1] is None
        assert np.count_nonzero(np.abs(array + np.float32(0.25)) >= max(abs(magnitude), 1e-45)) > room
    else:
        assert_same(*found)


@given(array=VECTORS, shift=st.sampled_from([(19, 12), (7, 12), (0, 7)]))
def test_histograms_agree(array, shift):
    tensor = torch.from_numpy(array)
    prefix = (bits_of(abs(array[0])) & 0x7FFFFFFF) >> sum(shift)
    assert torch.equal(CpuOps.histogram(tensor, *shift, prefix), TorchOps.histogram(tensor, *shift, prefix))


@settings(max_examples=50)
@given(data=st.data(), lists=st.integers(1, 5), low=st.integers(0, 40_000), width=st.integers(1, 70_000))
def test_sums_of_lists_agree_and_are_those_of_a_loop(data, lists, low, width):
    high = low + width
    parts = []
    for _ in range(lists):
        where = sorted(data.draw(st.sets(st.integers(low, high - 1), max_size=30)))
        parts.append((where, data.draw(arrays(np.float32, len(where), elements=st.floats(-2, 2, width=16)))))
    together = Sparse(
        torch.tensor([i for where, _ in parts for i in where], dtype=torch.int32),
        torch.from_numpy(np.concatenate([values for _, values in parts])),
    )
    counts = [len(where) for where, _ in parts]
    expected = np.zeros(high, np.float32)
    for where, values in parts:
        expected[where] += values
    sums = CpuOps.sum_lists(together, counts, low, high)
    assert_same(sums, TorchOps.sum_lists(together, counts, low, high))
    assert sums.indices.tolist() == np.flatnonzero(expected).tolist()
    assert sums.values.tolist() == expected[np.flatnonzero(expected)].tolist()


@given(a=st.sets(st.integers(0, 300)), b=st.sets(st.integers(0, 300)))
def test_common_indices(a, b):
    first, second = (torch.tensor(sorted(s), dtype=torch.int32) for s in (a, b))
    for ops in (CpuOps, TorchOps):
        assert ops.common(first, second).tolist() == sorted(a & b)


@BOTH
def test_put_add_and_clear(ops):
    tensor = torch.ones(100)
    chosen = Sparse(torch.tensor([3, 99], dtype=torch.int32), torch.tensor([5.0, -2.0]))
    ops.put(tensor, chosen)
    ops.add(tensor, chosen)
    ops.put_zero(tensor, torch.tensor([0], dtype=torch.int32))
    assert tensor[[0, 1, 3, 99]].tolist() == [0, 1, 10, -4]


@BOTH
def test_moments_are_not_finite_exactly_when_an_element_is_not(ops):
    assert ops.moments(torch.tensor([1.0, -3.0])) == (-2.0, 10.0)
    assert np.isfinite(ops.moments(torch.full((1000,), 3e38))[1])
    for broken in (np.nan, np.inf, -np.inf):
        assert not np.isfinite(ops.moments(torch.tensor([1.0, broken, 2.0]))[1])


def test_indices_above_2_to_24_are_exact():
    """A float32 cannot hold 2**24 + 1; an int32 can, through every step of a choice."""
    n, where = (1 << 24) + 1000, [5, (1 << 24) + 1, (1 << 24) + 999]
    values = torch.zeros(n)
    values[where] = torch.tensor([1.0, 2.0, 3.0])
    chosen = ExactTopK(CpuOps, n, 3).choose(Accumulated(values))
    assert chosen.indices.tolist() == where
    assert CpuOps.sum_lists(chosen, [3], 0, n).indices.tolist() == where


@BOTH
def test_kth_magnitude_says_how_many_ties_belong_to_the_k_largest(ops):
    values = torch.tensor([2.0, -2.0, 2.0, 5.0, 0.0, -0.0])
    assert kth_magnitude(partial(ops.histogram, values), 3) == (bits_of(2.0), 2)
    assert kth_magnitude(partial(ops.histogram, values), 5) == (0, 0)  # zeros are never chosen


@BOTH
def test_a_reused_threshold_is_recomputed_after_its_period_and_follows_in_between(ops):
    chooser, rng = ReusedThreshold(ops, 10_000, 100, period=4), np.random.default_rng(0)
    counts, bounds = [], []
    for scale in (1, 1.4, 1.4, 1.4, 1.4):
        values = torch.from_numpy((rng.standard_normal(10_000) * scale).astype(np.float32))
        counts.append(chooser.choose(Accumulated(values)).count)
        bounds.append(chooser.bound)
    assert counts[0] == counts[4] == 100  # exact when recomputed
    assert all(count > 400 for count in counts[1:4])  # the scale grew under a threshold that stayed
    assert bounds[0] < bounds[1] < bounds[2] < bounds[3] < bounds[4]


@BOTH
def test_a_gaussian_estimate_lands_in_its_band_on_normal_values(ops):
    n, k = 200_000, 4000
    values = torch.from_numpy(np.random.default_rng(1).standard_normal(n).astype(np.float32))
    chosen = GaussianThreshold(ops, n, k, 0.02).choose(Accumulated(values))
    assert 2 / 3 * k <= chosen.count <= 4 / 3 * k
    assert chosen.values.abs().min() > 2.2  # the quantile itself, not a corrected one


@BOTH
@pytest.mark.parametrize("first", [0.0, 1e-6])
def test_a_reused_threshold_from_other_gradients_is_recomputed_at_once(ops, first):
    chooser, rng = ReusedThreshold(ops, 10_000, 100, period=32), np.random.default_rng(0)
    counts = []
    for scale in (first, 1, 1, 1):
        values = torch.from_numpy((rng.standard_normal(10_000) * scale).astype(np.float32))
        counts.append(chooser.choose(Accumulated(values)).count)
    assert 100 in counts[1:3]
    assert 50 < counts[3] < 200
