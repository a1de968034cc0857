"""Checkpoints of a job: which count, which is taken, and what becomes of residuals on another number of ranks."""

import logging
import os
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oktopk.checkpoints import CheckpointError, Checkpoints
from oktopk.shares import regrouped, sources
from oktopk.transports.alone import Alone
from runs import files_up_to


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", Alone())


def state(number):
    return {"weights": torch.full((100,), float(number)), "number": number}


def saved(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, state(step), {"common": step})
    return checkpoints


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_where_there_is_none_there_is_none(checkpoints):
    assert checkpoints.load() is None
    assert checkpoints.steps() == []
    with pytest.raises(CheckpointError, match="no whole checkpoint of step 3"):
        checkpoints.load(3)


def test_the_newest_is_taken_or_the_one_that_is_asked_for(checkpoints):
    saved(checkpoints, 1, 2, 3)
    found = checkpoints.load()
    assert (found.step, found.ranks, found.common, found.state["number"]) == (3, 1, {"common": 3}, 3)
    assert torch.equal(found.state["weights"], state(3)["weights"])
    assert checkpoints.load(2).state["number"] == 2


def test_the_newest_are_kept(checkpoints):
    saved(checkpoints, 1, 5, 10, 200)
    assert checkpoints.steps() == [200, 10, 5]
    assert len(os.listdir(checkpoints.folder)) == 3


STRANGE = {
    "a Counter": (Counter("ab"), "['mine'][0] is of the type collections.Counter"),
    "a parameter": (torch.nn.Parameter(torch.zeros(2)), "of the type torch.nn.parameter.Parameter"),
    "a number of NumPy": (np.float64(1), "of the type numpy.float64"),
    "a key": ({(1, frozenset()): 1}, "['mine'][0]['a key'][1] is of the type builtins.frozenset"),
    "bytes of a sign": (torch.zeros(2, dtype=torch.int8), "a tensor of torch.strided and torch.int8"),
    "too much": (list(range(3_000_000)), "put them into a tensor"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_could_not_be_read_is_not_written(kind, checkpoints):
    value, said = STRANGE[kind]
    saved(checkpoints, 1)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        checkpoints.save(2, {"mine": [value]})
    assert os.listdir(checkpoints.folder) == ["step-00000001"]


def test_what_is_of_another_past_goes_when_somebody_goes_on_before_it(checkpoints):
    saved(checkpoints, 10, 20, 30)
    checkpoints.load(10)
    saved(checkpoints, 15)
    assert checkpoints.steps() == [15, 10]
    saved(checkpoints, 18, 21)
    assert checkpoints.steps() == [21, 18, 15]


def test_nothing_goes_of_a_past_that_nobody_looked_at(checkpoints):
    saved(checkpoints, 100, 200)
    another = Checkpoints(checkpoints.folder, Alone())
    with pytest.raises(CheckpointError, match="of step 200 from before, which is later than 1: go on from"):
        saved(another, 1)
    assert another.steps() == [200, 100]
    saved(another, 300)


def test_folders_may_lie_elsewhere(checkpoints, tmp_path):
    saved(checkpoints, 1, 2)
    for step in (1, 2):
        place = checkpoints.folder / f"step-0000000{step}"
        place.rename(tmp_path / place.name)
        place.symlink_to(tmp_path / place.name)
    assert checkpoints.load().step == 2
    saved(checkpoints, 3, 4)
    assert checkpoints.steps() == [4, 3, 2]
    assert not (checkpoints.folder / "step-00000001").is_symlink()
    assert (tmp_path / "step-00000001" / "whole.json").exists()


def test_there_is_a_least_of_everything(checkpoints, tmp_path):
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, Alone(), keep=0)
    with pytest.raises(ValueError, match="step -1"):
        saved(checkpoints, -1)


def test_what_is_not_whole_does_not_count_and_makes_room(checkpoints):
    saved(checkpoints, 1, 2)
    (checkpoints.folder / "step-00000002" / "whole.json").unlink()
    (checkpoints.folder / "notes").write_text("")
    (checkpoints.folder / "step-9").symlink_to("nowhere")
    assert checkpoints.load().step == 1
    checkpoints.save(2, state(7))
    assert checkpoints.load().state["number"] == 7
    assert checkpoints.load().common is None


def test_a_checkpoint_of_the_same_step_counts_until_its_successor_is_whole(checkpoints):
    saved(checkpoints, 4)
    with files_up_to(1000), pytest.raises(CheckpointError, match="too large"):
        checkpoints.save(4, {"much": torch.zeros(10_000)})
    assert checkpoints.load().state["number"] == 4
    checkpoints.save(4, state(5))
    assert checkpoints.load().state["number"] == 5
    assert os.listdir(checkpoints.folder) == ["step-00000004"]


def test_a_save_of_the_same_step_that_was_killed_leaves_the_one_before(checkpoints):
    saved(checkpoints, 3, 4)
    (checkpoints.folder / "step-00000004").rename(checkpoints.folder / "step-00000004.before")
    (checkpoints.folder / "step-00000004").mkdir()
    assert checkpoints.load().step == 4
    saved(checkpoints, 5)
    assert sorted(os.listdir(checkpoints.folder)) == ["step-00000003", "step-00000004.before", "step-00000005"]
    checkpoints.load(4)
    saved(checkpoints, 4)
    assert sorted(os.listdir(checkpoints.folder)) == ["step-00000003", "step-00000004"]


def test_a_full_disk_leaves_the_last_good_one_and_no_rubbish(checkpoints):
    saved(checkpoints, 1)
    with files_up_to(1000), pytest.raises(CheckpointError, match=r"rank-0\.pt.*too large"):
        checkpoints.save(2, {"much": torch.zeros(10_000)})
    assert os.listdir(checkpoints.folder) == ["step-00000001"]
    assert checkpoints.load().step == 1


def test_a_folder_that_cannot_be_written_is_an_error_of_its_own(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        Checkpoints(tmp_path / "file", Alone()).save(1, {})


@pytest.mark.parametrize("name", ["rank-0.pt", "common.pt", "whole.json"])
def test_a_damaged_one_is_said_and_the_one_before_is_taken(name, checkpoints, caplog):
    saved(checkpoints, 1, 2)
    flip(checkpoints.folder / "step-00000002" / name, 40)
    with caplog.at_level(logging.WARNING, "oktopk"):
        assert checkpoints.load().state["number"] == 1
    (said,) = caplog.messages
    assert f"step-00000002/{name}" in said
    assert "the checkpoint before it is taken" in said
    (checkpoints.folder / "step-00000001" / "rank-0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*step-00000001/rank-0.pt is missing"):
        checkpoints.load()
    with pytest.raises(CheckpointError, match=f"step-00000002/{name}"):
        checkpoints.load(2)


def test_no_bit_of_the_index_can_change_unnoticed(checkpoints):
    saved(checkpoints, 4)
    index = checkpoints.folder / "step-00000004" / "whole.json"
    for place in range(index.stat().st_size):
        for bit in range(8):
            flip(index, place, bit)
            with pytest.raises(CheckpointError):
                checkpoints.load()
            flip(index, place, bit)
    assert checkpoints.load().step == 4


INDICES = [
    *("", "{", "[]", "null", "7", '"x"', "[" * 100_000, "{}", '{"ranks": 1}', '{"step": 4, "ranks": 1, "files": []}'),
    *(
        '{"step": 4, "ranks": 1000000000000, "files": {}}',
        '{"step": 4, "ranks": true, "files": {"rank-0.pt": [1, ""]}}',
    ),
    *('{"step": 4, "ranks": 1, "files": {"rank-0.pt": 5}}', '{"step": 4, "ranks": -1, "files": {}}'),
    '{"step": 4, "ranks": 1, "files": {"../../rank-0.pt": [1, ""]}}',
]


@pytest.mark.parametrize("content", INDICES, ids=range(len(INDICES)))
def test_an_index_that_is_none_is_refused(content, checkpoints):
    saved(checkpoints, 4)
    (checkpoints.folder / "step-00000004" / "whole.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"whole\.json is not the index of a checkpoint, or it is damaged"):
        checkpoints.load()


def test_parts_of_another_checkpoint_are_not_taken(checkpoints):
    saved(checkpoints, 1, 2)
    older, newer = (checkpoints.folder / f"step-0000000{step}" for step in (1, 2))
    (newer / "rank-0.pt").write_bytes((older / "rank-0.pt").read_bytes())
    assert checkpoints.load().step == 1


def test_what_lies_after_the_step_that_is_gone_on_from_is_discarded(checkpoints):
    saved(checkpoints, 1, 2, 3)
    checkpoints.discard_after(1)
    assert checkpoints.steps() == [1]


# ---- another number of ranks


def state_of(rank, size, random, leads=True):
    """What a rank of so many saves, two optimizers' shares among it; one that leads no node has neither buffer."""
    keys = ("residual", "velocity") if leads else ()

    def share():
        kept = {key: torch.tensor(random.normal(size=(3, 2)), dtype=torch.float32) for key in keys}
        compressors = {"merged": {"name": "oktopk"}}
        return {
            "parameters": {"a": {**kept, "reductions": 9}},
            "compressors": compressors,
            "rank_and_size": (rank, size),
        }

    return {"place": rank, "sums": {f"of rank {rank}": 1}, "optimizers": [share(), {"oktopk": share()}]}


def shares_of(state):
    first, second = state["optimizers"]
    return first, second["oktopk"]


@given(leads=st.lists(st.booleans(), min_size=1, max_size=9), after=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_residuals_are_shared_out_among_another_number_of_ranks_and_none_is_lost(leads, after, seed):
    random, before = np.random.default_rng(seed), len(leads)
    states, taken = [state_of(rank, before, random, leads[rank]) for rank in range(before)], []
    for rank in range(after):
        old, takers = sources(rank, after, before)
        taken.append(regrouped([states[each] for each in old], rank, after, takers))
        assert taken[-1]["place"] == old[0] == rank % before
        for share in shares_of(taken[-1]):
            assert share["rank_and_size"] == (rank, after)
            assert share["compressors"] == {}  # thresholds of other sums
            assert share["parameters"]["a"]["reductions"] == 9

    def total(everyones, which, key):
        kept = (shares_of(each)[which]["parameters"]["a"].get(key) for each in everyones)
        return sum((each.double() for each in kept if each is not None), torch.zeros(3, 2, dtype=torch.float64))

    for which in range(2):
        lost = total(taken, which, "residual") - total(states, which, "residual")
        assert lost.abs().max() < 1e-5
        if before % after == 0:
            mean = total(taken, which, "velocity") / after
            torch.testing.assert_close(mean, total(states, which, "velocity") / before)


def test_a_share_that_some_rank_lacks_is_an_error_and_not_a_loss():
    states = [state_of(rank, 2, np.random.default_rng(0)) for rank in range(2)]
    del states[1]["optimizers"]
    with pytest.raises(LookupError):
        regrouped(states, 0, 1, 1)
