"""What a reduction works with: chosen entries, and bounds of their magnitudes.

The magnitude of a float32 sorts like its bits without the sign, so comparisons are made on integers: a *bound* is such
a bit pattern.
"""

from typing import NamedTuple

import numpy as np
import torch

MAGNITUDE = 0x7FFFFFFF
INFINITY = 0x7F800000  # the bits of the first magnitude that is no finite number
OCTAVE = 1 << 23  # bits of a magnitude are a logarithmic scale
# The next guess lies 1/32 of an octave (about 2%) under where the threshold seems to be going: low enough to catch k
# entries in almost every iteration, high enough to catch few more.
GUESS_SLACK = OCTAVE // 32


class BeyondFloat32(FloatingPointError):
    def __init__(self):
        super().__init__("the sum of finite gradients is beyond float32: lower the loss's scale")


class Entries(NamedTuple):
    """Entries of a flat gradient: int32 indices, ascending, and their float32 values."""

    indices: torch.Tensor
    values: torch.Tensor

    @property
    def count(self):
        return self.indices.numel()


def no_entries(device):
    return Entries(torch.empty(0, dtype=torch.int32, device=device), torch.empty(0, device=device))


def bits_of(magnitude):
    """The bound that a float32 magnitude stands for; it is never below 1, so that zeros never pass."""
    with np.errstate(over="ignore"):
        return max(1, int(np.float32(magnitude).view(np.int32)))


def magnitude_of(bits):
    return float(np.int32(bits).view(np.float32))


# ---- the k-th magnitude, by its bits


# The 31 bits of a magnitude, from the top, in parts: (bits below the part, bits in the part). On one rank, few passes
# count; between ranks every bin is a word on the wire, and four small histograms are a twelfth of three large ones.
RADIX_PARTS = ((19, 12), (7, 12), (0, 7))
RADIX_PARTS_ON_THE_WIRE = ((23, 8), (15, 8), (7, 8), (0, 7))


def kth_magnitude(histogram, k, parts=RADIX_PARTS):
    """The bound of the k-th largest magnitude, and how many of the entries at it belong to the k largest.

    Descends from the top bits to the lowest. `histogram(shift, width, prefix)` counts the magnitudes that start with
    `prefix`; it may count over all ranks. Zeros are never chosen: with fewer than k non-zeros the answer is (0, 0).
    """
    prefix, wanted = 0, k
    for shift, width in parts:
        chosen, above = bin_of_kth(histogram(shift, width, prefix), wanted)
        wanted -= above
        prefix = prefix << width | chosen
    return prefix, (wanted if prefix > 0 else 0)


def bin_of_kth(counts, k):
    """The bin that holds the k-th largest (the lowest if there are fewer), and how many lie in higher ones."""
    counts = counts.numpy()
    at_or_above = np.cumsum(counts[::-1])[::-1]
    enough = np.flatnonzero(at_or_above >= k)
    chosen = int(enough[-1]) if len(enough) else 0
    return chosen, int(at_or_above[chosen] - counts[chosen])
