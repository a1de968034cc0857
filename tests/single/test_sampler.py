"""The laws of distributed batches, for any number of ranks, without MPI."""

import itertools

import numpy as np
import pytest

from oktopk_training.errors import UserError
from oktopk_training.tasks.speech.sampler import BucketSampler

LENGTHS = np.random.default_rng(0).integers(8_000, 80_000, 203)


def plans(size, epoch, batch_size=4, seed=0):
    return [BucketSampler(LENGTHS, batch_size, rank, size, seed).batches(epoch) for rank in range(size)]


@pytest.mark.parametrize("size", range(1, 9))
def test_ranks_take_equally_many_steps_over_disjoint_utterances(size):
    ranks = plans(size, epoch=3)
    assert {len(batches) for batches in ranks} == {203 // (4 * size)}
    assert all(len(batch) == 4 for batches in ranks for batch in batches)
    seen = [index for batches in ranks for batch in batches for index in batch]
    assert len(seen) == len(set(seen)) == 203 // (4 * size) * 4 * size


@pytest.mark.parametrize("size", range(1, 9))
def test_every_epoch_has_another_order_and_leaves_others_out(size):
    first, second = plans(size, epoch=0), plans(size, epoch=1)
    assert first != second

    def left_out(ranks):
        return set(range(203)) - {index for batches in ranks for batch in batches for index in batch}

    assert left_out(first) != left_out(second)


@pytest.mark.parametrize("size", range(1, 9))
def test_the_same_seed_and_epoch_give_the_same_plan_and_another_seed_another(size):
    assert plans(size, epoch=2) == plans(size, epoch=2)
    assert plans(size, epoch=2) != plans(size, epoch=2, seed=1)


@pytest.mark.parametrize("size", range(1, 9))
def test_the_ranks_of_a_step_see_similar_lengths(size):
    steps = zip(*plans(size, epoch=0), strict=True)
    spans = [np.ptp([LENGTHS[index] for batch in step for index in batch]) for step in steps]
    fair_share = np.ptp(LENGTHS) * 4 * size / len(LENGTHS)  # a global batch's part of all lengths
    assert np.mean(spans) < fair_share + 0.2 * LENGTHS.mean()


def test_several_ranks_together_see_what_one_rank_sees_with_their_joint_batch():
    together = [
        sorted(index for batch in step for index in batch)
        for step in zip(*plans(4, epoch=5, batch_size=2), strict=True)
    ]
    alone = [sorted(batch) for batch in plans(1, epoch=5, batch_size=8)[0]]
    assert together == alone


@pytest.mark.parametrize(("epoch", "in_order"), [(0, True), (1, False), (2, False)])
def test_only_the_first_epoch_goes_from_short_to_long(epoch, in_order):
    means = [LENGTHS[batch].mean() for batch in plans(1, epoch)[0]]
    longer = sum(after > before for before, after in itertools.pairwise(means)) / (len(means) - 1)
    assert (longer > 0.9) == in_order


def test_too_few_utterances_are_an_error_that_names_both_numbers():
    with pytest.raises(UserError, match=r"203 training utterances.* 256 "):
        BucketSampler(LENGTHS, 32, size=8)
