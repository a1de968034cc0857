"""What entries look like between ranks: whatever is packed into parts comes out of them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from values import FLOATS, assert_same

from oktopk import Settings
from oktopk.entries import Entries
from oktopk.wire import AUTO, Packed, wire_for, wires

EVERY = pytest.mark.parametrize("name", wires)
COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=1, max_size=8)
INDICES = st.integers(0, 2**31 - 1)


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


def test_left_to_itself_the_cpu_copies_nothing_and_a_device_sends_half_the_messages():
    entries = Entries(torch.tensor([3, 5], dtype=torch.int32), torch.tensor([1.0, 2.0]))
    addresses = [each.buffer.data_ptr() for each in wire_for(AUTO, "cpu").pack(entries, [2])]
    assert addresses == [part.data_ptr() for part in entries]
    assert len(wire_for(AUTO, "meta").dtypes) == 1


def test_an_unknown_wire_is_refused_by_name():
    with pytest.raises(ValueError, match=r"there is no wire 'pigeon'; there are separate, joined"):
        wire_for("pigeon", "cpu")
    with pytest.raises(ValueError, match="wire is one of auto, separate, joined, not 'pigeon'"):
        Settings(wire="pigeon")
