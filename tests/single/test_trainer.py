"""The trainer in this process: loss, steps, skipped steps, learning rates, accumulation, seeds."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from corpora import SMALL, make_text
from dl_trainer import MAX_SKIPPED_IN_A_ROW, DLTrainer
from main_trainer import is_validated
from oktopk_training.errors import UserError
from oktopk_training.options import parse_options
from oktopk_training.tasks.language.task import LanguageTask
from oktopk_training.tasks.speech.batches import collate
from oktopk_training.tasks.speech.task import SpeechTask, count_infeasible, ctc_losses


@pytest.fixture
def options(corpus):
    return parse_options([*SMALL, "--data-dir", str(corpus)])


@pytest.fixture
def text_options(text_corpus):
    return parse_options(["--dnn", "lstm", *SMALL, "--data-dir", str(text_corpus)])


@pytest.fixture
def start():
    """Make trainers that are closed at the end."""
    trainers = []

    def make(*arguments, **settings):
        trainers.append(DLTrainer(*arguments, **settings))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


def parameters(trainer):
    return [parameter.detach().clone() for parameter in trainer.net.parameters()]


def poison(trainer, steps):
    """Make the gradients of the next steps NaN."""
    left = iter(range(steps))
    first = next(iter(trainer.net.parameters()))
    first.register_hook(lambda gradient: gradient * (math.nan if next(left, None) is not None else 1))


def batch_of(*pairs):
    return collate([torch.zeros(161, frames) for frames, _ in pairs], [spoken for _, spoken in pairs])


# ---- loss


def test_the_loss_of_an_utterance_is_minus_the_log_of_the_sum_over_its_alignments():
    """Two frames, all labels equally likely: A comes out of `AA`, `A_` and `_A`, three of 29² paths."""
    scores = torch.zeros(2, 2, 29)
    batch = batch_of((3, "A"), (1, "A"))
    losses = ctc_losses(scores, torch.tensor([2, 1]), batch)
    torch.testing.assert_close(losses, torch.tensor([-math.log(3 / 29**2), math.log(29)]))


def test_the_batch_loss_is_the_mean_of_the_utterances_sums(options, start):
    task = start(options).task
    batch = batch_of((3, "A"), (1, "A"))

    def net(_spectrograms, _frames):
        return torch.zeros(2, 2, 29), torch.tensor([2, 1])

    loss, infinite = task.loss(net, batch)
    assert loss.item() == pytest.approx((math.log(29**2 / 3) + math.log(29)) / 2)
    assert infinite == 0


def test_an_utterance_with_too_few_frames_counts_as_zero_and_is_counted():
    # 5 frames give 3 of output. HEY needs 3, HEEY and AA-like repetitions need one more each.
    batch = batch_of((5, "HEY"), (5, "AAB"), (5, "AA"), (5, "ABCD"))
    scores = torch.zeros(3, 4, 29, requires_grad=True)
    losses = ctc_losses(scores, torch.tensor([3, 3, 3, 3]), batch)
    assert (losses > 0).tolist() == [True, False, True, False]
    assert count_infeasible(batch) == 2
    losses.sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad[:, 1].count_nonzero() == 0


# ---- steps


def test_training_lowers_the_loss(options, start):
    trainer = start(options)
    losses = []
    for _ in range(10):
        losses.append(trainer.train(trainer.steps_per_epoch))
        trainer.update_model()
    assert losses[-1] < losses[0] / 2


def test_a_step_whose_gradient_is_not_finite_changes_nothing_and_is_counted(options, start):
    trainer = start(options)
    poison(trainer, steps=1)
    before = parameters(trainer)
    trainer.train(1)
    trainer.update_model()
    assert all(torch.equal(old, new) for old, new in zip(before, parameters(trainer), strict=True))
    assert (trainer.skipped_steps, trainer.grad_norm) == (1, None)
    trainer.train(1)
    trainer.update_model()
    assert not all(torch.equal(old, new) for old, new in zip(before, parameters(trainer), strict=True))
    assert trainer.skipped_steps == 1
    assert trainer.grad_norm > 0


def test_ten_skipped_steps_in_a_row_end_the_training(options, start):
    trainer = start(options)
    poison(trainer, steps=MAX_SKIPPED_IN_A_ROW)
    for _ in range(9):
        trainer.train(1)
        trainer.update_model()
    trainer.train(1)
    with pytest.raises(UserError, match=r"10 steps in a row were not finite .* --lr"):
        trainer.update_model()


def test_a_good_step_between_starts_the_count_again(options, start):
    trainer = start(options)
    for _ in range(2):
        poison(trainer, steps=9)
        for _ in range(10):
            trainer.train(1)
            trainer.update_model()
    assert trainer.skipped_steps == 18


def test_the_gradient_is_clipped_to_its_longest_norm(options, start):
    trainer = start(replace(options, max_grad_norm=0.5))
    trainer.train(1)
    trainer.update_model()
    assert trainer.grad_norm > 0.5  # as it was
    norm = torch.stack([parameter.grad.norm() for parameter in trainer.net.parameters()]).norm().item()
    assert norm == pytest.approx(0.5, rel=1e-4)


def test_the_longest_gradient_is_400_for_speech_and_a_quarter_for_text(options, text_options):
    assert (options.max_grad_norm, text_options.max_grad_norm) == (400, 0.25)


def test_a_replaced_optimizer_makes_the_steps(options, start):
    trainer = start(options)
    steps = Counter()

    class Wrapper(type(trainer.optimizer)):
        def step(self, closure=None):
            steps["made"] += 1
            return super().step(closure)

    trainer.update_optimizer(Wrapper(trainer.net.parameters(), lr=0.1, momentum=0.9))
    trainer.train(1)
    trainer.update_model()
    assert steps["made"] == 1


def test_accumulated_batches_step_as_one_larger_batch(text_corpus, text_options, start, monkeypatch):
    """Text has no batch norm: two batches of 4 streams, taken together, are a batch of 8."""
    large = start(replace(text_options, batch_size=8))
    small = start(replace(text_options, nsteps_update=2))
    for trainer in (large, small):
        trainer.net.eval()  # no dropout
    whole = [next(iter(large.task.batches(0)))]
    halves = [tuple(part[:, side] for part in whole[0]) for side in (slice(0, 4), slice(4, 8))]
    monkeypatch.setattr(large.task, "batches", lambda *_: iter(whole))
    monkeypatch.setattr(small.task, "batches", lambda *_: iter(halves))
    original = small.task.loss

    def without_memory(net, batch):
        small.task._state = None
        return original(net, batch)

    monkeypatch.setattr(small.task, "loss", without_memory)
    losses = [large.train(1), small.train(2)]
    for trainer in (large, small):
        trainer.update_model()
    assert losses[0] == pytest.approx(losses[1])
    torch.testing.assert_close(parameters(large), parameters(small), rtol=1e-5, atol=1e-7)


def test_an_epoch_ends_after_its_whole_steps_and_the_next_one_has_another_order(options, start):
    trainer = start(replace(options, nsteps_update=2))  # 12 utterances: 3 batches of 4, 1 step of 2
    assert trainer.steps_per_epoch == 1
    epochs = []
    for _ in range(3):
        trainer.train(2)
        epochs.append(trainer.train_epoch)
    assert epochs == [0, 1, 2]
    assert trainer.train_iter == 6


def test_more_accumulation_than_batches_is_an_error(options):
    with pytest.raises(UserError, match=r"3 batches an epoch, fewer than --nsteps-update 4"):
        DLTrainer(replace(options, nsteps_update=4))


# ---- rules


def test_speech_divides_the_learning_rate_by_1_01_after_each_epoch(options, start):
    trainer = start(options)
    rates = []
    for _ in range(3):
        trainer.train(trainer.steps_per_epoch)
        rates.append(trainer.lr)
    assert rates == pytest.approx([0.01, 0.01 / 1.01, 0.01 / 1.01**2])


def test_text_multiplies_the_learning_rate_by_a_tenth_in_steps(text_options):
    task = LanguageTask(text_options)
    rates = [task.learning_rate(1.0, epoch) for epoch in range(100)]
    drops = [later / earlier for earlier, later in pairwise(rates) if later != earlier]
    assert drops == pytest.approx([0.1] * 3)
    assert rates[0] == 1.0


@pytest.mark.parametrize(
    ("epochs", "interval", "validated"), [(12, 5, [0, 4, 9, 11]), (10, 5, [0, 4, 9]), (1, 5, [0]), (4, 2, [0, 1, 3])]
)
def test_validation_is_after_the_first_epoch_every_interval_and_at_the_end(options, epochs, interval, validated):
    options = replace(options, max_epochs=epochs, val_interval=interval)
    assert [epoch for epoch in range(epochs) if is_validated(epoch, options)] == validated


def test_validation_in_shards_gives_the_figures_of_the_whole(options, start):
    trainer = start(options)
    whole = trainer.test(0)
    totals = Counter()
    for rank in range(3):
        totals.update(SpeechTask(replace(options, batch_size=1), rank, size=3).validate(trainer.net))
    assert trainer.task.summarise(totals) == pytest.approx(
        {key: whole[key] for key in ("loss", "wer", "wer_mean", "cer")}
    )


def test_validation_leaves_the_model_training_and_its_statistics_alone(options, start):
    trainer = start(options)
    before = [buffer.clone() for buffer in trainer.net.buffers()]
    trainer.test(0)
    assert trainer.net.training
    assert all(torch.equal(old, new) for old, new in zip(before, trainer.net.buffers(), strict=True))


def test_the_same_seed_gives_the_same_parameters_and_another_seed_others(options, start):
    def trained(seed):
        trainer = start(replace(options, seed=seed))
        for _ in range(4):
            trainer.train(1)
            trainer.update_model()
        return parameters(trainer)

    first, again, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_an_utterance_is_augmented_alike_whatever_batch_and_rank_it_is_in(options):
    """One rank with a batch of 4 and two with 2 each read the same augmented frames in the same step."""

    def read(batch_size, rank, size):
        task = SpeechTask(replace(options, batch_size=batch_size), rank, size)
        return [
            list(zip(batch.texts, batch.frames.tolist(), batch.spectrograms[:, 0, 0].tolist(), strict=True))
            for batch in task.batches(1)
        ]

    alone = [sorted(batch) for batch in read(4, 0, 1)]
    together = [sorted(first + second) for first, second in zip(read(2, 0, 2), read(2, 1, 2), strict=True)]
    assert together == alone


def test_perplexity_is_the_exponential_of_the_mean_loss(text_options, start):
    figures = start(text_options).test(0)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures.get("wer") is None


def test_the_text_task_cuts_streams_for_each_rank(tmp_path):
    options = parse_options(["--dnn", "lstm", *SMALL, "--data-dir", str(make_text(tmp_path / "t"))])
    whole = LanguageTask(replace(options, batch_size=8)).train_streams
    halves = [LanguageTask(options, rank, size=2).train_streams for rank in range(2)]
    assert torch.equal(torch.cat(halves, dim=1), whole)
