"""What entries look like between ranks: whatever is packed into parts comes out of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from values import FLOATS, assert_same

from oktopk import Settings, coding, coding_kernels
from oktopk.entries import Entries
from oktopk.wire import AUTO, Packed, wire_for, wires

FLOAT_MAX = torch.finfo(torch.float32).max
BFLOAT_MAX = torch.finfo(torch.bfloat16).max
AT_BORDERS = [
    0,
    1,
    coding.FAR - 1,
    coding.FAR,
    255,
    256,
    coding.FROM_HERE_FARTHER - 1,
    coding.FROM_HERE_FARTHER,
    1 << 24,
]
BOTH = pytest.mark.parametrize("by", [coding_kernels, coding])
EVERY = pytest.mark.parametrize("name", wires)
COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=1, max_size=8)
LAST = 2**31 - 1
INDICES = st.one_of(st.integers(0, LAST), st.integers(0, 2000), st.sampled_from([*AT_BORDERS, LAST - 1, LAST]))


@st.composite
def parts(draw):
    """Entries, and how many of them go to each rank. Indices ascend within a part, as they do everywhere."""
    counts = draw(COUNTS)
    places = [sorted(draw(st.sets(INDICES, min_size=count, max_size=count))) for count in counts]
    values = draw(arrays(np.float32, sum(counts), elements=FLOATS))
    indices = torch.tensor([index for part in places for index in part], dtype=torch.int32)
    return Entries(indices, torch.from_numpy(values)), counts


def sent(packed, rank):
    """The part of each buffer that goes to a rank."""
    return [each.buffer.split(each.sizes)[rank] for each in packed]


@EVERY
@given(what=parts())
def test_parts_fill_one_buffer_for_each_dtype(name, what):
    entries, counts = what
    wire = wires[name]
    packed = wire.pack(wire.rounded(entries), counts)
    assert [each.buffer.dtype for each in packed] == list(wire.dtypes)
    for each in packed:
        assert each.buffer.dim() == 1
        assert len(each.sizes) == len(counts)
        assert sum(each.sizes) == each.buffer.numel()
        assert [size == 0 for size in each.sizes] == [count == 0 for count in counts]


@EVERY
@given(what=parts())
def test_a_rank_finds_its_part_in_what_is_sent_to_it(name, what):
    entries, counts = what
    wire = wires[name]
    rounded = wire.rounded(entries)
    packed = wire.pack(rounded, counts)
    expected = zip(rounded.indices.split(counts), rounded.values.split(counts), strict=True)
    for rank, part in enumerate(expected):
        arrived = [Packed(buffer, [buffer.numel()]) for buffer in sent(packed, rank)]
        assert_same(wire.unpack(arrived, [counts[rank]]), Entries(*part))


@EVERY
@given(senders=st.lists(parts(), min_size=1, max_size=4))
def test_what_several_ranks_send_arrives_one_after_another(name, senders):
    wire = wires[name]
    senders = [(wire.rounded(entries), counts[0]) for entries, counts in senders]
    senders = [(Entries(entries.indices[:count], entries.values[:count]), count) for entries, count in senders]
    packed = [wire.pack(entries, [count]) for entries, count in senders]
    arrived = [
        Packed(torch.cat([each.buffer for each in same]), [each.sizes[0] for each in same])
        for same in zip(*packed, strict=True)
    ]
    together = Entries(*(torch.cat(same) for same in zip(*(entries for entries, _ in senders), strict=True)))
    assert_same(wire.unpack(arrived, [count for _, count in senders]), together)


@EVERY
@given(what=parts())
def test_what_is_rounded_is_rounded_for_good(name, what):
    """It has the same places: what rounding took of a value can go back to the residual."""
    once = wires[name].rounded(what[0])
    assert_same(wires[name].rounded(once), once)
    assert torch.equal(once.indices, what[0].indices)


@EVERY
def test_a_wire_is_found_by_its_name_on_any_device_and_may_be_set(name):
    assert wire_for(name, "cpu") is wire_for(name, "meta") is wires[name]
    assert Settings(wire=name).wire == name


def test_left_to_itself_shared_memory_copies_nothing_a_network_carries_gaps_and_a_device_sends_half_the_messages():
    entries = Entries(torch.tensor([3, 5], dtype=torch.int32), torch.tensor([1.0, 2.0]))
    addresses = [each.buffer.data_ptr() for each in wire_for(AUTO, "cpu", shares_memory=True).pack(entries, [2])]
    assert addresses == [part.data_ptr() for part in entries]
    assert wire_for(AUTO, "cpu") is wires["gaps"]
    assert len(wire_for(AUTO, "meta").dtypes) == 1


def test_an_unknown_wire_is_refused_by_name():
    with pytest.raises(ValueError, match=r"there is no wire 'pigeon'; there are separate, joined, gaps, gaps16"):
        wire_for("pigeon", "cpu")
    with pytest.raises(ValueError, match="wire is one of auto, separate, joined, gaps, gaps16, not 'pigeon'"):
        Settings(wire="pigeon")


# ---- gaps


def coded(indices, counts, by=coding_kernels, width=4):
    values = torch.arange(width * indices.numel()).byte()
    buffer, sizes = by.encode(indices, values, counts)
    back = by.decode(buffer, sizes, counts, width)
    assert torch.equal(back[0], indices)
    assert torch.equal(back[1], values)
    return buffer, sizes


@given(what=parts())
@pytest.mark.parametrize("width", [2, 4])
def test_gaps_are_the_same_bytes_by_numba_and_by_torch(width, what):
    entries, counts = what
    (buffer, sizes), (other, others) = (coded(entries.indices, counts, by, width) for by in (coding_kernels, coding))
    assert sizes == others
    assert torch.equal(buffer, other)


@BOTH
@pytest.mark.parametrize("left_out", AT_BORDERS)
def test_a_gap_takes_one_byte_three_or_five(left_out, by):
    """In front of the first entry as well as between two, and at the last index that there is."""
    takes = 1 if left_out < 254 else 3 if left_out < 254 + 65536 else 5
    _, sizes = coded(torch.tensor([left_out, 2 * left_out + 1], dtype=torch.int32), [2], by, width=1)
    assert sizes == [2 * (takes + 1)]
    _, sizes = coded(torch.tensor([LAST - 1 - left_out, LAST], dtype=torch.int32), [2], by, width=1)
    assert sizes == [5 + takes + 2]


@pytest.mark.parametrize(("density", "most"), [(1.0, 1.0), (0.1, 1.001), (0.02, 1.02), (0.001, 2.6), (1e-5, 4.1)])
def test_what_an_index_takes(density, most):
    """On average, of places at random; five bytes are the most, where the int32 that it replaces has four."""
    n = 2_000_000
    places = torch.rand(n, generator=torch.Generator().manual_seed(0)) < density
    indices = places.nonzero().squeeze(1).int()
    buffer, _ = coded(indices, [indices.numel()])
    assert buffer.numel() <= (4 + most) * indices.numel() + 8


WIDE = arrays(np.float32, 20, elements=st.one_of(FLOATS, st.floats(-FLOAT_MAX, FLOAT_MAX, width=32)))


@BOTH
@given(values=WIDE)
def test_sixteen_bits_keep_the_nearest_value_that_they_can(by, values):
    values = torch.from_numpy(values)
    rounded = by.round_off(values)
    assert torch.equal(rounded.to(torch.bfloat16).float(), rounded)
    assert rounded.abs().max() <= BFLOAT_MAX
    nearest = values.to(torch.bfloat16).float()
    assert rounded[nearest.isfinite()].numpy().tobytes() == nearest[nearest.isfinite()].numpy().tobytes()


@BOTH
def test_of_finite_values_rounding_makes_no_infinite_ones_and_hides_none(by):
    values = torch.tensor([FLOAT_MAX, -FLOAT_MAX, math.inf, -math.inf, 0.0, -0.0])
    assert by.round_off(values).tolist() == [BFLOAT_MAX, -BFLOAT_MAX, math.inf, -math.inf, 0.0, -0.0]


def test_how_precise_a_wire_says_it_is():
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    for wire in wires.values():
        rounded = wire.rounded(Entries(torch.arange(10_000, dtype=torch.int32), values)).values
        worst = ((rounded - values) / values).abs().max()
        assert wire.precision / 2 <= worst <= wire.precision
