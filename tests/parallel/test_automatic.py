"""The compressor "auto": the same on all ranks, found without a trace, and kept by a state."""

import pytest
from ranks import findings_of, run_ranks, run_torch_ranks


@pytest.mark.parametrize("launch", [run_ranks, run_torch_ranks])
def test_ranks_agree_on_what_was_tried_and_a_state_keeps_its_choice(launch):
    found = findings_of(2, "automatic.py", launch=launch)
    assert len(set(found["reasons"])) == 1
    assert "dense" in found["reasons"][0]
    assert "oktopk over the wire gaps" in found["reasons"][0]
    assert found["untouched"]
    assert found["zeros before the first"]
    assert found["resumed with"] == ["oktopk", "gaps", "sparse"]
    assert found["bytes counted of a step"]
