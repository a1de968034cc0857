"""Which entries choosers send: on one rank, step after step, what was sent leaves the residual and the rest stays."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from values import BOTH, FLOATS, assert_same, assert_sorted_by_definition, entries

from oktopk import Settings
from oktopk.choosers import (
    MOST_PER_K,
    ExactTopK,
    GaussianThreshold,
    GlobalExactTopK,
    GlobalReusedThreshold,
    ReusedThreshold,
)
from oktopk.entries import BeyondFloat32
from oktopk.exchange import Exchange
from oktopk.transports.alone import Alone
from oktopk.wire import wires

CHOOSERS = pytest.mark.parametrize("make", [ExactTopK, ReusedThreshold, GaussianThreshold])
STEPS = 30
N, K = 5000, 100


def normal(step, rng):
    return rng.standard_normal(N)


def heavy_tailed(step, rng):
    return rng.standard_cauchy(N)


def all_equal(step, rng):
    return np.full(N, 0.5)


def two_valued(step, rng):
    return rng.choice([1.0, -1e-3], N)


def few_non_zeros(step, rng):
    values = np.zeros(N)
    values[rng.integers(0, N, K // 10)] = rng.standard_normal(K // 10)
    return values


def moving_scale(step, rng):
    return rng.standard_normal(N) * 10.0 ** (step * 7 % 9 - 4)


def zeros_in_between(step, rng):
    return rng.standard_normal(N) * (step % 3 == 0)


def rising(step, rng):
    return rng.standard_normal(N) * 1.2**step


def falling(step, rng):
    return rng.standard_normal(N) * 0.5**step


KINDS = pytest.mark.parametrize(
    "kind",
    [normal, heavy_tailed, all_equal, two_valued, few_non_zeros, moving_scale, zeros_in_between, rising, falling],
)


def steps(chooser, kind, first=0, residual=None, seed=0):
    """(residual before, what is chosen of it, residual after) of one step after another."""
    residual = torch.zeros(N) if residual is None else residual
    for step in range(first, first + STEPS):
        rng = np.random.default_rng([seed, step])
        gradient = torch.from_numpy(kind(step, rng).astype(np.float32))
        whole = residual + gradient
        chosen = chooser.choose(residual, gradient)
        assert torch.equal(residual, whole)
        assert not gradient.any()
        residual[chosen.indices] = 0
        yield whole, chosen, residual


def assert_largest(chosen, whole):
    """As they stand in the residual, and none that stays is larger."""
    assert chosen.indices.diff().gt(0).all()
    assert torch.equal(chosen.values, whole[chosen.indices])
    rest = whole.clone()
    rest[chosen.indices] = 0
    assert chosen.count == 0 or chosen.values.abs().min() >= rest.abs().max()


# ---- exact


@BOTH
@given(
    share=st.floats(0.001, 1),
    gradients=st.integers(1, 100).flatmap(
        lambda n: st.lists(arrays(np.float32, n, elements=FLOATS), min_size=4, max_size=4)
    ),
)
def test_exact_choice_is_right_whatever_was_guessed_before(ops, share, gradients):
    n = len(gradients[0])
    k = max(1, int(share * n))
    chooser, residual = ExactTopK(ops, n, k, Settings()), torch.zeros(n)
    for values in gradients:
        acc, gradient = residual.numpy() + values, torch.from_numpy(values.copy())
        chosen = chooser.choose(residual, gradient)
        assert residual.numpy().tobytes() == acc.tobytes()
        assert not gradient.any()
        assert_sorted_by_definition(chosen, acc, k)
        residual[chosen.indices] = 0


@BOTH
@pytest.mark.parametrize("scales", [(2.0**100, 1e-45, 0, 1), (1e-45, 2.0**100, 1e-45, 0), (0, 1e-45, 0, 0)])
def test_zeros_are_never_chosen_however_far_thresholds_fall(ops, scales):
    n, k = 8, 3
    chooser = ExactTopK(ops, n, k, Settings())
    for scale in scales:
        array = np.array([scale, -scale, 0, -0.0, 0, 0, 0, scale], np.float32)
        assert_sorted_by_definition(chooser.choose(torch.zeros(n), torch.from_numpy(array.copy())), array, k)


@BOTH
@KINDS
def test_exact_choice_is_the_k_largest_in_every_step(ops, kind):
    for whole, chosen, _ in steps(ExactTopK(ops, N, K, Settings()), kind):
        assert_sorted_by_definition(chosen, whole.numpy(), K)


@BOTH
def test_exact_choice_takes_one_pass_where_gradients_go_on_as_they_were(ops):
    """`candidates` is the second pass: the guess has to catch k entries, and not many more."""
    searches = []

    class Counting(ops):
        @staticmethod
        def candidates(tensor, k):
            searches.append(k)
            return ops.candidates(tensor, k)

    for _ in steps(ExactTopK(Counting, N, K, Settings()), normal):
        pass
    assert len(searches) <= STEPS // 4


# ---- a reused threshold


def values_of(scale, rng, n=10_000):
    return torch.from_numpy((rng.standard_normal(n) * scale).astype(np.float32))


@BOTH
def test_a_reused_threshold_is_recomputed_after_its_period_and_follows_in_between(ops):
    chooser, rng = ReusedThreshold(ops, 10_000, 100, Settings(threshold_period=4)), np.random.default_rng(0)
    counts, bounds = [], []
    for scale in (1, 1.05, 1.05, 1.05, 1.05):
        counts.append(chooser.choose(torch.zeros(10_000), values_of(scale, rng)).count)
        bounds.append(chooser.state_dict()["_bound"])
    assert counts[0] == counts[4] == 100  # exact when recomputed
    assert all(100 < count <= 150 for count in counts[1:4])  # the scale grew under a threshold that stayed
    assert bounds[0] < bounds[1] < bounds[2] < bounds[3]


@BOTH
def test_a_reused_threshold_sinks_while_fewer_than_k_reach_it(ops):
    chooser, rng = ReusedThreshold(ops, 10_000, 100, Settings(threshold_period=32)), np.random.default_rng(0)
    bounds = []
    for scale in (1, 0.9, 0.9, 0.9):
        assert chooser.choose(torch.zeros(10_000), values_of(scale, rng)).count <= 100
        bounds.append(chooser.state_dict()["_bound"])
    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == 4


@BOTH
@KINDS
def test_a_reused_threshold_never_lets_through_more_than_1_5_k_and_those_are_the_largest(ops, kind):
    for whole, chosen, _ in steps(ReusedThreshold(ops, N, K, Settings(threshold_period=32)), kind):
        assert chosen.count <= math.ceil(MOST_PER_K * K)
        assert_largest(chosen, whole)


@BOTH
@pytest.mark.parametrize("first", [0.0, 1e6])
def test_a_reused_threshold_that_hardly_anything_reaches_is_recomputed_at_once(ops, first):
    chooser, rng = ReusedThreshold(ops, 10_000, 100, Settings(threshold_period=32)), np.random.default_rng(0)
    counts = [chooser.choose(torch.zeros(10_000), values_of(scale, rng)).count for scale in (first, 1, 1, 1)]
    assert 100 in counts[1:3]
    assert 50 < counts[3] <= 150


@BOTH
def test_a_reused_threshold_that_far_too_many_reach_becomes_that_of_the_largest(ops):
    chooser, rng = ReusedThreshold(ops, 10_000, 100, Settings(threshold_period=32)), np.random.default_rng(0)
    for scale in (1e-6, 1, 1, 1, 1):
        chosen = chooser.choose(torch.zeros(10_000), values_of(scale, rng))
        assert 100 <= chosen.count <= 150
        assert chosen.values.abs().min() > 2 * scale


# ---- a Gaussian estimate


@BOTH
def test_a_gaussian_estimate_lands_in_its_band_on_normal_values(ops):
    n, k = 200_000, 4000
    values = torch.from_numpy(np.random.default_rng(1).standard_normal(n).astype(np.float32))
    chosen = GaussianThreshold(ops, n, k, Settings()).choose(torch.zeros(n), values)
    assert 2 / 3 * k <= chosen.count <= 4 / 3 * k
    assert 2.2 < chosen.values.abs().min() < 2.4  # the quantile itself is 2.33: not halved, nor raised by half


@BOTH
@KINDS
def test_a_gaussian_choice_keeps_to_its_band_in_every_step(ops, kind):
    """That is also: wherever there are non-zeros, some are sent."""
    for whole, chosen, _ in steps(GaussianThreshold(ops, N, K, Settings()), kind):
        assert min(math.ceil(2 * K / 3), whole.count_nonzero()) <= chosen.count <= 4 * K // 3
        assert (chosen.values != 0).all()
        assert_largest(chosen, whole)


@BOTH
@given(
    share=st.floats(0.001, 0.99),
    gradients=st.integers(2, 100).flatmap(
        lambda n: st.lists(arrays(np.float32, n, elements=FLOATS), min_size=4, max_size=4)
    ),
)
def test_a_gaussian_choice_keeps_to_its_band_on_any_values(ops, share, gradients):
    n = len(gradients[0])
    k = max(1, int(share * n))
    chooser, residual = GaussianThreshold(ops, n, k, Settings()), torch.zeros(n)
    for values in gradients:
        chosen = chooser.choose(residual, torch.from_numpy(values.copy()))
        assert min(math.ceil(2 * k / 3), residual.count_nonzero()) <= chosen.count <= 4 * k // 3
        assert (chosen.values != 0).all()
        assert_largest(chosen, residual)
        residual[chosen.indices] = 0


# ---- state


@BOTH
@CHOOSERS
@KINDS
def test_a_chooser_that_takes_over_anothers_state_goes_on_with_the_same_choices(make, ops, kind):
    settings = Settings(threshold_period=7)
    first, second = make(ops, N, K, settings), make(ops, N, K, settings)
    *_, (_, _, residual) = steps(first, kind)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))  # plain numbers
    going_on = zip(
        steps(first, kind, STEPS, residual.clone()), steps(second, kind, STEPS, residual.clone()), strict=True
    )
    for (_, chosen, _), (_, others, _) in going_on:
        assert_same(chosen, others)
    assert first.state_dict() == second.state_dict()


# ---- over all ranks; here, over one


def exchange(ops):
    return Exchange(Alone(), ops, wires["separate"])


@BOTH
@given(array=arrays(np.float32, st.integers(1, 100), elements=FLOATS), k=st.integers(1, 120))
def test_the_global_choice_is_the_k_largest_of_all(ops, array, k):
    kept, counts = GlobalExactTopK(exchange(ops), k)(entries(array))
    assert_sorted_by_definition(kept, array, k)
    assert counts == [kept.count]


@BOTH
@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_sums_beyond_float32_are_noticed_by_the_global_choice(ops, broken):
    with pytest.raises(BeyondFloat32, match="lower the loss's scale"):
        GlobalExactTopK(exchange(ops), 1)(entries(np.array([1, broken, 2], np.float32)))


@BOTH
def test_the_global_threshold_is_reused_for_its_period_and_its_state_goes_over(ops):
    choose, rng = GlobalReusedThreshold(exchange(ops), 100, 4), np.random.default_rng(0)
    other = GlobalReusedThreshold(exchange(ops), 100, 4)
    counts = []
    for step in range(9):
        array = rng.standard_normal(10_000).astype(np.float32) * np.float32(1.02**step)
        other.load_state_dict(json.loads(json.dumps(choose.state_dict())))
        kept, of_ranks = choose(entries(array))
        assert_same(kept, other(entries(array))[0])
        assert of_ranks == [kept.count]
        counts.append(kept.count)
    assert counts[0] == counts[4] == counts[8] == 100
    assert 100 not in counts[1:4]


@BOTH
@pytest.mark.parametrize(("scale", "direction"), [(1.05, 1), (0.95, -1)])
def test_the_global_threshold_follows_the_number_of_sums_that_reach_it(ops, scale, direction):
    choose, rng = GlobalReusedThreshold(exchange(ops), 100, 32), np.random.default_rng(0)
    bounds = []
    for factor in (1, scale, scale, scale):
        choose(entries(values_of(factor, rng).numpy()))
        bounds.append(direction * choose.state_dict()["bound"])
    assert bounds == sorted(set(bounds))


@BOTH
@pytest.mark.parametrize("first", [0.0, 1e-6, 1e6])
def test_a_global_threshold_from_other_sums_is_recomputed_at_once(ops, first):
    choose, rng = GlobalReusedThreshold(exchange(ops), 100, 32), np.random.default_rng(0)
    counts = [choose(entries(values_of(scale, rng).numpy()))[0].count for scale in (first, 1, 1, 1)]
    assert 100 in counts[1:3]
    assert 50 < counts[3] < 200
