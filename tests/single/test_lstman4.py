"""The speech model: its size, and that padding is invisible."""

import math

import pytest
import torch

from oktopk_training.tasks.speech.audio import output_frames
from oktopk_training.tasks.speech.model import LSTMAN4, FrameNorm
from oktopk_training.tasks.speech.task import SpeechTask

FRAMES = torch.tensor([61, 40, 52])


def small_model():
    torch.manual_seed(1)
    return LSTMAN4(hidden_size=16, hidden_layers=3)


def spectrograms(extra=0):
    """Three utterances of different lengths with zeros behind, `extra` frames more than needed."""
    random = torch.Generator().manual_seed(2)
    batch = torch.zeros(len(FRAMES), 161, int(FRAMES.max()) + extra)
    for row, frames in zip(batch, FRAMES.tolist(), strict=True):
        row[:, :frames] = torch.randn(161, frames, generator=random)
    return batch


def valid_scores(net, batch, frames=FRAMES):
    scores, lengths = net(batch, frames)
    return [scores[:length, index] for index, length in enumerate(lengths.tolist())]


def test_the_full_model_has_27_569_568_parameters_in_40_tensors():
    parameters = list(LSTMAN4(SpeechTask.hidden_size, SpeechTask.hidden_layers).parameters())
    assert (sum(parameter.numel() for parameter in parameters), len(parameters)) == (27_569_568, 40)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_more_padding_changes_neither_outputs_nor_gradients_nor_statistics(training):
    results = []
    for extra in (0, 37):
        net = small_model().double().train(training)  # doubles: what is left is not rounding
        scores = valid_scores(net, spectrograms(extra).double())
        sum(
            (part * torch.linspace(-1, 1, part.numel(), dtype=torch.double).view_as(part)).sum() for part in scores
        ).backward()
        results.append((scores, [p.grad for p in net.parameters()], [b.double() for b in net.buffers()]))
    for tight, loose in zip(*results, strict=True):
        torch.testing.assert_close(loose, tight, rtol=1e-9, atol=1e-9)


def test_in_evaluation_an_utterance_alone_gives_what_it_gives_in_a_batch():
    net = small_model().eval()
    together = valid_scores(net, spectrograms())
    for index, frames in enumerate(FRAMES.tolist()):
        (alone,) = valid_scores(net, spectrograms()[index : index + 1, :, :frames], FRAMES[index : index + 1])
        torch.testing.assert_close(alone, together[index], rtol=1e-4, atol=1e-5)


def test_what_stands_in_the_padding_of_hidden_layers_never_reaches_a_frame():
    """The norms' statistics are those of the valid frames, gathered by hand."""
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(3))
    inside = torch.tensor([1, 1, 0, 1, 0, 1, 1], dtype=torch.bool)
    norm, plain = FrameNorm(5), torch.nn.BatchNorm1d(5)
    torch.testing.assert_close(norm(x, inside[:, None])[inside], plain(x[inside]))
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    torch.testing.assert_close(norm.running_var, plain.running_var)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_batch_that_is_not_finite_leaves_the_running_statistics(value):
    net = small_model()
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    net(torch.full((1, 161, 40), value), torch.tensor([40]))
    for name, buffer in net.named_buffers():
        assert buffer.isfinite().all(), name
    first = "convolution_norms.0.running_mean"
    assert torch.equal(net.state_dict()[first], before[first])
    net(torch.randn(1, 161, 40), torch.tensor([40]))
    assert not torch.equal(net.state_dict()[first], before[first])


def test_the_model_puts_out_as_many_frames_as_it_says():
    net = small_model().eval()
    for frames in (1, 2, 3, 30, 31):
        scores, _ = net(torch.zeros(1, 161, frames), torch.tensor([frames]))
        assert scores.shape == (output_frames(frames), 1, 29)


def test_the_output_sees_twenty_frames_ahead_of_the_convolutions_and_no_further():
    net = small_model().eval()
    batch = torch.randn(1, 161, 120, generator=torch.Generator().manual_seed(4), requires_grad=True)
    scores, _ = net(batch, torch.tensor([120]))
    scores[0].sum().backward()
    seen = batch.grad.abs().sum(dim=(0, 1)).nonzero().max().item()
    # 20 frames of the halved rate, and what the two convolutions add: 5 frames each, the second at the halved rate
    assert seen == (20 + 5) * 2 + 5


@pytest.mark.parametrize("width", [16, 128])
def test_what_the_first_scores_are_made_of_has_length_1_at_any_width(width):
    torch.manual_seed(3)
    net = LSTMAN4(hidden_size=width, hidden_layers=2)
    seen = []
    net.output.register_forward_pre_hook(lambda _, features: seen.append(features[0]))
    _, frames = net(spectrograms(), FRAMES)
    inside = torch.arange(len(seen[0]))[:, None] < frames  # time x utterances
    squares = seen[0].square().sum(-1)[inside]
    assert squares.mean().item() == pytest.approx(1, rel=0.05)
