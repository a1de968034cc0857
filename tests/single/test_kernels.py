"""The kernels against the same operations in torch, element for element, and against definitions by sorting.

`CpuOps` leaves zeros out where `TorchOps` may keep them, for on a device their number would have to be waited for:
there, what the two leave in a dense tensor is compared.
"""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from values import BOTH, FLOATS, VECTORS, assert_same, assert_sorted_by_definition, entries

from oktopk import cpu_operations, kernels
from oktopk.cpu_operations import CpuOps
from oktopk.entries import RADIX_PARTS, RADIX_PARTS_ON_THE_WIRE, Entries, bits_of, kth_magnitude, magnitude_of
from oktopk.operations import SAMPLE, TorchOps, ops_for

PARTS = st.sampled_from([*RADIX_PARTS, *RADIX_PARTS_ON_THE_WIRE])
N = 60  # of the tensors that entries go to
PLACES = st.sets(st.integers(0, N - 1))
AT_BORDERS = st.integers(0, (1 << 31) // kernels.BLOCK - 1).flatmap(  # of blocks, however far from each other
    lambda block: st.sampled_from([0, 1, 63, 64, kernels.BLOCK - 1]).map(lambda place: block * kernels.BLOCK + place)
)


def non_zeros(array):
    return entries(array)._replace(values=torch.from_numpy(np.where(array == 0, np.float32(1), array)))


def dense(found):
    tensor = torch.zeros(N)
    tensor[found.indices.long()] = found.values
    return tensor


@st.composite
def lists(draw, within=None):
    """Entries at some of the places."""
    places = sorted(draw(PLACES if within is None else st.sets(st.sampled_from(within))) if within != [] else ())
    values = draw(arrays(np.float32, len(places), elements=FLOATS))
    return Entries(torch.tensor(places, dtype=torch.int32), torch.from_numpy(values))


# ---- choosing


@BOTH
@given(array=VECTORS, k=st.integers(1, 250))
def test_largest_are_those_that_sorting_gives(ops, array, k):
    largest, _ = ops.ranking(ops.entries_at_least(entries(array), 1)).largest(k)
    assert_sorted_by_definition(largest, array, k)


@given(array=VECTORS, k=st.integers(1, 250))
def test_both_say_the_same_bound_of_the_k_largest(array, k):
    (largest, bound), (others, magnitude) = (ops.ranking(non_zeros(array)).largest(k) for ops in (CpuOps, TorchOps))
    assert_same(largest, others)
    assert bound == (bits_of(float(magnitude)) if k <= len(array) else 0)
    assert k > len(array) or magnitude_of(bound) == largest.values.abs().min()


@given(array=VECTORS, k=st.integers(1, 250), fewer=st.integers(0, 5))
def test_keep_gives_what_is_above_the_bound_and_the_first_ties(array, k, fewer):
    """Of the ties, those that another rank's entries take the place of are left out."""
    bound, ties = kth_magnitude(CpuOps.ranking(entries(array)).histogram, k)
    ties = max(0, ties - fewer)
    magnitudes = np.abs(array)
    above, at = np.flatnonzero(magnitudes > magnitude_of(bound)), np.flatnonzero(magnitudes == magnitude_of(bound))
    kept = sorted([*above, *at[:ties]])
    for ops in (CpuOps, TorchOps):
        found = ops.ranking(entries(array)).keep(bound, ties, len(kept))
        assert_same(found, Entries(torch.tensor(kept, dtype=torch.int32), torch.from_numpy(array[kept])))


@given(array=VECTORS, part=PARTS, of=st.integers(0, 199))
def test_histograms_agree_and_count_the_magnitudes_that_begin_alike(array, part, of):
    shift, width = part
    magnitudes = array.view(np.int32) & 0x7FFFFFFF
    prefix = int(magnitudes[of % len(array)]) >> shift + width
    mine = magnitudes[magnitudes >> shift + width == prefix]
    expected = np.bincount(mine >> shift & (1 << width) - 1, minlength=1 << width)
    for ops in (CpuOps, TorchOps):
        counts = ops.ranking(entries(array)).histogram(shift, width, prefix)
        assert counts.dtype == torch.int64
        assert counts.tolist() == expected.tolist()


@BOTH
def test_kth_magnitude_says_how_many_ties_belong_to_the_k_largest(ops):
    histogram = ops.ranking(entries(np.array([2.0, -2.0, 2.0, 5.0, 0.0, -0.0], np.float32))).histogram
    for parts in (RADIX_PARTS, RADIX_PARTS_ON_THE_WIRE):
        assert kth_magnitude(histogram, 3, parts) == (bits_of(2.0), 2)
        assert kth_magnitude(histogram, 5, parts) == (0, 0)  # zeros are never chosen


@BOTH
@given(array=VECTORS, k=st.integers(1, 250))
def test_candidates_hold_the_k_largest_and_no_zeros(ops, array, k):
    found = ops.candidates(torch.from_numpy(array), k)
    assert (found.values != 0).all()
    assert found.values.tolist() == array[found.indices.numpy()].tolist()
    assert_sorted_by_definition(ops.ranking(found).largest(k)[0], array, k)


@BOTH
@pytest.mark.parametrize("seen", [0.0, 1e-20, 1e20])
def test_candidates_hold_the_k_largest_where_a_sample_misleads(ops, seen):
    """The sample takes every third element, and those are all of another size."""
    n, k = 3 * SAMPLE, 1000
    array = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    array[::3] *= seen
    largest, _ = ops.ranking(ops.candidates(torch.from_numpy(array), k)).largest(k)
    assert_sorted_by_definition(largest, array, k)


@given(array=VECTORS, magnitude=FLOATS)
def test_at_least_and_count_agree(array, magnitude):
    bound, tensor = bits_of(abs(np.float32(magnitude))), torch.from_numpy(array)
    assert_same(CpuOps.at_least(tensor, bound), TorchOps.at_least(tensor, bound))
    assert_same(CpuOps.at_least(tensor, bound), CpuOps.entries_at_least(entries(array), bound))
    assert_same(CpuOps.at_least(tensor, bound), TorchOps.entries_at_least(entries(array), bound))
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


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(cpu_operations, "SHORTEST_PIECE", kernels.GROUP)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


@pytest.mark.parametrize("where", ["anywhere", "at the end"])  # where the room of one thread is too little
@pytest.mark.parametrize("room", [1, 40, 300, 2000])
def test_threads_accumulate_what_one_does(room, where, three_threads, monkeypatch):
    values = np.random.default_rng(room).standard_normal(1999).astype(np.float32)
    if where == "at the end":
        values[:-250] /= 1000
    found, bound = [], bits_of(1.0)
    for threads in (3, 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        residual, gradient = torch.zeros(1999), torch.from_numpy(values.copy())
        norm = CpuOps.norm(gradient)
        found.append((norm, CpuOps.accumulate(residual, gradient, bound, room)))
        assert residual.numpy().tobytes() == values.tobytes()
        assert not gradient.any()
    assert found[0][0] == found[1][0] == pytest.approx(np.linalg.norm(values.astype(np.float64)))
    if found[1][1] is None:
        assert found[0][1] is None
    else:
        assert_same(found[0][1], found[1][1])


@BOTH
@given(array=VECTORS)
def test_accumulate_without_a_bound_adds_and_finds_nothing(ops, array):
    residual, gradient = torch.full((len(array),), 0.25), torch.from_numpy(array.copy())
    assert ops.accumulate(residual, gradient) is None
    assert residual.numpy().tobytes() == (array + np.float32(0.25)).tobytes()
    assert not gradient.any()


@pytest.mark.parametrize("nesterov", [False, True])
@given(array=VECTORS, momentum=st.floats(0, 1, width=32, exclude_max=True), old=FLOATS)
def test_momentum_is_gathered_alike(nesterov, array, momentum, old):
    found = []
    for ops in (CpuOps, TorchOps):
        velocity, gradient = torch.full((len(array),), old), torch.from_numpy(array.copy())
        ops.gather(velocity, gradient, momentum, nesterov)
        found.append((velocity.numpy().tobytes(), gradient.numpy().tobytes()))
    velocity = np.float32(momentum) * np.float32(old) + array
    assert found[0] == found[1]
    assert found[0][0] == velocity.tobytes()
    assert nesterov or found[0][1] == velocity.tobytes()


def test_threads_gather_all_of_it(three_threads):
    velocity, gradient = torch.arange(1999.0), torch.ones(1999)
    CpuOps.gather(velocity, gradient, 0.5, nesterov=False)
    assert torch.equal(velocity, torch.arange(1999) * 0.5 + 1)
    assert torch.equal(gradient, velocity)


# ---- sums and what is left of them


@settings(max_examples=50)
@given(data=st.data(), count=st.integers(1, 5), low=st.integers(0, 40_000), width=st.integers(1, 70_000))
def test_sums_of_lists_agree_and_are_those_of_a_loop(data, count, low, width):
    high = low + width
    parts = []
    for _ in range(count):
        where = sorted(data.draw(st.sets(st.integers(low, high - 1), max_size=30)))
        values = st.floats(-2, 2, width=16).filter(bool)
        parts.append((where, data.draw(arrays(np.float32, len(where), elements=values))))
    together = Entries(
        torch.tensor([i for where, _ in parts for i in where], dtype=torch.int32),
        torch.from_numpy(np.concatenate([values for _, values in parts])),
    )
    counts = [len(where) for where, _ in parts]
    expected = np.zeros(high, np.float32)
    for where, values in parts:
        expected[where] += values
    found = [ops.without_zeros(ops.sum_lists(together, counts, low, high)) for ops in (CpuOps, TorchOps)]
    assert_same(*found)
    assert found[0].indices.tolist() == np.flatnonzero(expected).tolist()
    assert found[0].values.tolist() == expected[np.flatnonzero(expected)].tolist()


@given(mine=lists(), others=lists())
def test_common_keeps_the_entries_whose_places_the_others_have_too(mine, others):
    expected = torch.zeros(N)
    for i, value in zip(*mine, strict=True):
        expected[i] = value if i in others.indices else 0
    for ops in (CpuOps, TorchOps):
        assert torch.equal(dense(ops.common(mine, others)), expected)


@given(mine=st.sets(AT_BORDERS), others=st.sets(AT_BORDERS), shared=st.sets(AT_BORDERS))
def test_common_entries_are_found_in_blocks_far_and_near(mine, others, shared):
    mine, others = sorted(mine | shared), sorted(others | shared)
    found = CpuOps.common(
        *(Entries(torch.tensor(each, dtype=torch.int32), torch.ones(len(each))) for each in (mine, others))
    )
    assert found.indices.tolist() == sorted(set(mine) & set(others))


@given(data=st.data(), before=lists())
def test_differences_are_what_the_second_list_lacks_of_the_first(data, before):
    after = data.draw(lists(within=before.indices.tolist()))
    found = [ops.differences(before, after) for ops in (CpuOps, TorchOps)]
    assert_same(*found)
    assert torch.equal(dense(found[0]), dense(before) - dense(after))
    assert (found[0].values != 0).all()


# ---- in place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("put", lambda old, value: value),
        ("add", lambda old, value: old + value),
        ("subtract", lambda old, value: old - value),
        ("clear", lambda old, value: old * (value == 0)),  # an entry of zero is none
    ],
)
@BOTH
@given(array=arrays(np.float32, N, elements=FLOATS), found=lists())
def test_entries_change_their_own_places_and_no_others(name, expected, ops, array, found):
    tensor, places = torch.from_numpy(array.copy()), found.indices.long()
    getattr(ops, name)(tensor, found)
    wanted = torch.from_numpy(array)
    wanted[places] = expected(wanted[places], found.values)
    assert torch.equal(tensor, wanted)


# ---- of all elements


@BOTH
def test_the_norm_is_not_finite_exactly_when_an_element_is_not(ops):
    assert ops.norm(torch.tensor([1.0, -3.0])) == pytest.approx(10**0.5)
    assert np.isfinite(ops.norm(torch.full((1000,), 3e38)))
    for broken in (np.nan, np.inf, -np.inf):
        assert not np.isfinite(ops.norm(torch.tensor([1.0, broken, 2.0])))


def test_finite_is_what_has_finite_elements_only():
    assert TorchOps.is_finite(torch.full((1000,), 3e38))
    assert TorchOps.is_finite(torch.empty(0))
    for broken in (np.nan, np.inf, -np.inf):
        assert not TorchOps.is_finite(torch.tensor([1.0, broken, 2.0]))


@BOTH
def test_mean_and_deviation_are_those_of_the_elements(ops):
    assert ops.mean_and_deviation(torch.tensor([1.0, -3.0])) == pytest.approx((-1.0, 2.0))
    assert ops.mean_and_deviation(torch.full((1000,), 0.1)) == pytest.approx((0.1, 0.0), abs=1e-8)


@BOTH
def test_indices_above_2_to_24_are_exact(ops):
    """A float32 cannot hold 2**24 + 1; an int32 can, through every step of a choice."""
    n, where = (1 << 24) + 1000, [5, (1 << 24) + 1, (1 << 24) + 999]
    values = torch.zeros(n)
    values[where] = torch.tensor([1.0, 2.0, 3.0])
    chosen, _ = ops.ranking(ops.candidates(values, 3)).largest(3)
    assert chosen.indices.tolist() == where
    twice = Entries(*(torch.cat((part, part)) for part in chosen))
    assert ops.sum_lists(twice, [3, 3], 0, n).indices.tolist() == where


def test_the_kernels_work_on_the_cpu_where_numba_is_and_torch_does_everywhere_else(monkeypatch):
    assert ops_for("cpu") is CpuOps
    assert ops_for("meta") is TorchOps
    monkeypatch.setitem(sys.modules, "numba", None)
    assert ops_for("cpu") is TorchOps
