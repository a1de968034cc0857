"""The DeepSpeech-like model of AN4: convolutions, LSTM layers, a lookahead convolution, one score per label and frame.

Padding is invisible: every frame past an utterance's end is zero wherever a neighbour could read it, and batch norms
take their statistics from frames inside utterances alone, in training too. So the company that an utterance keeps
in its batch changes its output only through batch statistics, and the length of the padding changes nothing.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .audio import BINS, output_frames
from .text import LABELS

_CHANNELS = 32
_FUTURE = 20  # frames that the lookahead convolution sees beyond the current one
_CEILING = 20.0  # of hardtanh


class FrameNorm(nn.BatchNorm1d):
    """Batch norm over dimension 1 whose statistics ignore the frames outside utterances."""

    def _check_input_dim(self, _):
        """Any shape with the channels in dimension 1."""

    def forward(self, x, inside):
        """`inside` broadcasts over x: true where there is a frame of an utterance."""
        if not self.training:
            return super().forward(x)
        across = [dim for dim in range(x.dim()) if dim != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count, mask = inside.expand_as(x[:, :1]).sum(), inside.to(x.dtype)
        mean = (x * mask).sum(across) / count  # `where` gives the same bits and takes seven times as long
        centred = (x - mean.view(shape)).mul_(mask)
        variance = centred.square().sum(across) / count
        self._remember(mean, variance * count / (count - 1).clamp_min(1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return torch.addcmul(self.bias.view(shape), centred, scale.view(shape))

    @torch.no_grad()
    def _remember(self, mean, variance):
        """Statistics that are not finite would stay for ever, while the step that they spoil is skipped."""
        finite = mean.isfinite().all() & variance.isfinite().all()  # a tensor: asking it would wait for the device
        self.num_batches_tracked += finite
        self.running_mean.lerp_(mean.where(finite, self.running_mean), self.momentum)
        self.running_var.lerp_(variance.where(finite, self.running_var), self.momentum)


class Lookahead(nn.Module):
    """Each feature's own weighted sum over the current and the next `_FUTURE` frames."""

    def __init__(self, size):
        super().__init__()
        self.convolution = nn.Conv1d(size, size, _FUTURE + 1, groups=size, bias=False)

    def forward(self, x):
        return self.convolution(F.pad(x.permute(1, 2, 0), (0, _FUTURE))).permute(2, 0, 1)


class LSTMAN4(nn.Module):
    """Sizes are options; the contract's are those of the task.

    Initialised as torch does by default, but for the gain of the last norm: with it, what the scores are made of has
    length 1 in each frame, however wide the layers are. At gain 1 that is sqrt(800), and so steep a loss, summed over
    an utterance, that learning rate 0.01 ruins the weights in a dozen steps.
    """

    def __init__(self, hidden_size, hidden_layers):
        super().__init__()
        self.sizes = {"hidden_size": hidden_size, "hidden_layers": hidden_layers}
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(1, _CHANNELS, (41, 11), stride=(2, 2), padding=(20, 5)),
                nn.Conv2d(_CHANNELS, _CHANNELS, (21, 11), stride=(2, 1), padding=(10, 5)),
            ]
        )
        self.convolution_norms = nn.ModuleList([FrameNorm(_CHANNELS), FrameNorm(_CHANNELS)])
        features = _CHANNELS * ((BINS + 3) // 4)  # two strides of 2 over frequency
        sizes = [features] + [hidden_size] * (hidden_layers - 1)
        # Padded, not packed: a layer that runs forward in time cannot read the padding behind an utterance,
        # and torch's CPU kernels take 2.5 times as long over packed sequences.
        self.layers = nn.ModuleList([nn.LSTM(size, hidden_size) for size in sizes])
        self.layer_norms = nn.ModuleList([FrameNorm(hidden_size) for _ in sizes[1:]])
        self.lookahead = Lookahead(hidden_size)
        self.output_norm = FrameNorm(hidden_size)
        nn.init.constant_(self.output_norm.weight, hidden_size**-0.5)
        self.output = nn.Linear(hidden_size, len(LABELS), bias=False)

    def forward(self, spectrograms, frames):
        """Utterances x bins x frames -> scores (time x utterances x labels) and each utterance's number of frames."""
        frames = output_frames(frames)
        x = spectrograms.unsqueeze(1)
        inside = torch.arange(output_frames(x.shape[-1]), device=x.device) < frames[:, None]  # utterances x time
        mask = inside[:, None, None, :]
        x = F.hardtanh(self.convolution_norms[0](self.convolutions[0](x), mask), 0, _CEILING)
        x = self.convolutions[1](x * mask)
        x = F.hardtanh(self.convolution_norms[1](x, mask), 0, _CEILING).where(mask, 0)

        x = x.flatten(1, 2).permute(2, 0, 1)  # time x utterances x features
        inside = inside.t()[:, :, None]
        for index, layer in enumerate(self.layers):
            if index > 0:
                x = _over_frames(self.layer_norms[index - 1], x, inside)
            x, _ = layer(x)

        x = F.hardtanh(self.lookahead(x.where(inside, 0)), 0, _CEILING)
        return self.output(_over_frames(self.output_norm, x, inside)), frames


def _over_frames(norm, x, inside):
    """Apply a norm to time x utterances x features, whose frames it takes as one batch."""
    return norm(x.flatten(0, 1), inside.flatten(0, 1)).view_as(x)
