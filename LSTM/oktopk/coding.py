"""How entries become bytes, and fewer of them: indices as gaps, values of 16 bits. In torch, for any device.

A part of entries is, in this order: a code of one byte for each; words of two bytes, which the highest codes call for;
and the entries' values. A code is the number of indices left out before this one (before the first: from 0 on) if that
is below `FAR`. The code `FAR` says that one word has what is left of the number above `FAR`; `FARTHER`, that two words
have it, the lower one first. `coding_kernels` does the same by Numba on the CPU, to the bit.
"""

import itertools

import torch

from .entries import INFINITY, MAGNITUDE

FAR, FARTHER = 254, 255
FROM_HERE_FARTHER = FAR + (1 << 16)
WORD = 2  # bytes
WORDS = 2  # at most
LOW_BITS = 16  # of a float32, which a bfloat16 does without


def encode(indices, values, counts):
    """One buffer of parts with these counts, and the size of each. `values` are bytes, as many for each entry."""
    gaps = _left_out(indices, counts)
    far, farther = gaps >= FAR, gaps >= FROM_HERE_FARTHER
    codes = (gaps.clamp(max=FAR) + farther).to(torch.uint8)
    rest = (gaps[far] - FAR).view(torch.int16).view(-1, WORDS)
    words = rest[_in_use(farther[far])].view(torch.uint8)
    words_of = torch.stack([part.sum() for part in (far.int() + farther.int()).split(counts)]).tolist()
    width = values.numel() // max(1, indices.numel())
    lengths = (counts, [WORD * count for count in words_of], [width * count for count in counts])
    pieces = (stream.split(of_parts) for stream, of_parts in zip((codes, words, values), lengths, strict=True))
    sizes = [sum(of_part) for of_part in zip(*lengths, strict=True)]
    return torch.cat(list(itertools.chain(*zip(*pieces, strict=True)))), sizes


def decode(buffer, sizes, counts, width):
    """The indices of the parts, one part after another, and the bytes of their values, `width` each."""
    lengths = [(count, size - (1 + width) * count, width * count) for size, count in zip(sizes, counts, strict=True)]
    pieces = buffer.split([length for of_part in lengths for length in of_part])
    codes, words, values = (torch.cat(pieces[first::3]) for first in range(3))
    far, gaps = codes >= FAR, codes.int()
    in_use = _in_use(codes[far] == FARTHER)
    rest = torch.zeros(in_use.shape, dtype=torch.int16, device=buffer.device)
    rest[in_use] = words.view(torch.int16)
    gaps[far] = rest.view(torch.int32).view(-1) + FAR
    return torch.cat([(part + 1).cumsum(0) for part in gaps.split(counts)]).sub_(1).int(), values


def _left_out(indices, counts):
    """Before each index, since the one before it in its part."""
    gaps = indices.clone()
    for part, before in zip(gaps.split(counts), indices.split(counts), strict=True):
        part[1:] -= before[:-1] + 1
    return gaps


def _in_use(farther):
    """Which of the words of far entries there are."""
    return torch.stack((torch.ones_like(farther), farther), 1)


def round_off(values):
    """The nearest values whose low bits are zero, of two the even one; of finite ones none becomes infinite."""
    bits = values.view(torch.int32)
    rounded = bits + (1 << LOW_BITS - 1) - 1 + (bits >> LOW_BITS & 1) & -1 << LOW_BITS
    beyond = ((rounded & MAGNITUDE) == INFINITY) & ((bits & MAGNITUDE) < INFINITY)
    return (rounded - (beyond.int() << LOW_BITS)).view(torch.float32)
