"""Each reader on files that are damaged by chance: taken, or refused in one sentence. tests/fuzz searches longer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS, attempt

CASES = {"plot": 3}  # which draws pictures
USUAL_CASES = 40
STRANGE = [
    b"\0",
    b"\xff\xff\xff\xff",
    b"\n",
    b'"',
    b",",
    b"9" * 30,
    b"[" * 2000,
    b"-1",
    b"NaN",
    b"1e999",
    b"../",
    b"null",
]


@st.composite
def damaged(draw, seeds):
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        end = place + draw(st.sampled_from([0, 1, 4, 100]))
        kept = bytes(content[place:end])
        content[place:end] = draw(
            st.one_of(
                st.sampled_from([*STRANGE, b"", kept * 2]),
                st.binary(min_size=len(kept), max_size=len(kept)),
                st.integers(0, 7).map(lambda bit, kept=kept: bytes([kept[0] ^ 1 << bit]) + kept[1:] if kept else kept),
            )
        )
    return bytes(content)


@pytest.fixture(params=TARGETS)
def target(request):
    return request.param, list(TARGETS[request.param].seeds())


def test_a_damaged_file_is_taken_or_refused_in_one_sentence(target):
    name, seeds = target

    @settings(max_examples=CASES.get(name, USUAL_CASES), derandomize=True, database=None)
    @given(damaged(seeds))
    def holds(content):
        attempt(name, content)

    holds()


def test_honest_files_are_taken(target):
    name, seeds = target
    assert attempt(name, seeds[0])
