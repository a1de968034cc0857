"""What `coding` does, over the memory of CPU tensors, compiled by Numba.

Numbers are unsigned: Numba would ask of every place in an array that has a sign whether it counts from the end.
"""

import numpy as np
import torch
from numba import float32, int32, njit, uint8, uint32, uint64, void

from . import entries
from .coding import FAR, FARTHER, FROM_HERE_FARTHER, LOW_BITS, WORD, WORDS
from .kernels import compiled

octets, ints, floats, places = uint8[::1], int32[::1], float32[::1], uint64[::1]
ONE, BYTE = uint64(1), uint32(8)  # bits


@njit(inline="always")
def _write_word(buffer, place, word):
    buffer[place] = word & uint32(255)
    buffer[place + ONE] = word >> BYTE & uint32(255)


@njit(inline="always")
def _word(buffer, place):
    return uint32(buffer[place]) | uint32(buffer[place + ONE]) << BYTE


@njit(inline="always")
def _copy(source, begin, end, target, place):
    """A plain loop, out of which LLVM makes a copy of memory; what Numba makes of slices is ten times slower."""
    taken, given = source[begin:end], target[place : place + (end - begin)]
    for i in range(taken.size):
        given[i] = taken[i]


@compiled(void(ints, octets, places, uint64, octets, places))
def write_parts(indices, values, starts, width, buffer, sizes):
    """Part p has the entries starts[p]:starts[p + 1], of values with `width` bytes; sizes[p] becomes what it takes."""
    begin = uint64(0)
    for p in range(sizes.size):
        first, end = starts[p], starts[p + 1]
        code, word, following = begin, begin + (end - first), uint32(0)
        for j in range(first, end):
            gap = uint32(indices[j]) - following
            following = uint32(indices[j]) + uint32(1)
            if gap < FAR:
                buffer[code] = gap
            else:
                rest = gap - uint32(FAR)
                _write_word(buffer, word, rest)
                word += uint64(WORD)
                buffer[code] = FAR
                if gap >= FROM_HERE_FARTHER:
                    _write_word(buffer, word, rest >> uint32(16))
                    word += uint64(WORD)
                    buffer[code] = FARTHER
            code += ONE
        _copy(values, width * first, width * end, buffer, word)
        sizes[p] = word + width * (end - first) - begin
        begin += sizes[p]


@compiled(void(octets, places, places, uint64, ints, octets))
def read_parts(buffer, sizes, starts, width, indices, values):
    """The reverse of `write_parts`."""
    begin = uint64(0)
    for p in range(sizes.size):
        first, end = starts[p], starts[p + 1]
        code, word, index = begin, begin + (end - first), ~uint32(0)  # one before 0
        for j in range(first, end):
            gap = uint32(buffer[code])
            if gap >= FAR:
                is_farther = gap == FARTHER
                gap = uint32(FAR) + _word(buffer, word)
                word += uint64(WORD)
                if is_farther:
                    gap += _word(buffer, word) << uint32(16)
                    word += uint64(WORD)
            index += gap + uint32(1)
            indices[j] = index
            code += ONE
        _copy(buffer, word, begin + sizes[p], values, width * first)
        begin += sizes[p]


@compiled(void(floats, floats))
def round_to_high_bits(values, rounded):
    magnitude, infinity, low = np.int32(entries.MAGNITUDE), np.int32(entries.INFINITY), np.int32(LOW_BITS)
    old, new = values.view(np.int32), rounded.view(np.int32)
    below_half = np.int32((1 << LOW_BITS - 1) - 1)
    for i in range(old.size):
        bits = old[i]
        nearest = (bits + below_half + (bits >> low & np.int32(1))) >> low << low
        beyond = ((nearest & magnitude) == infinity) & ((bits & magnitude) < infinity)
        new[i] = nearest - (np.int32(beyond) << low)


def encode(indices, values, counts):
    count = indices.numel()
    buffer = torch.empty((1 + WORD * WORDS) * count + values.numel(), dtype=torch.uint8)
    sizes, width = np.empty(len(counts), np.uint64), values.numel() // max(1, count)
    write_parts(indices.numpy(), values.numpy(), _starts(counts), width, buffer.numpy(), sizes)
    return buffer[: int(sizes.sum())], sizes.tolist()


def decode(buffer, sizes, counts, width):
    indices = torch.empty(sum(counts), dtype=torch.int32)
    values = torch.empty(width * sum(counts), dtype=torch.uint8)
    read_parts(buffer.numpy(), np.array(sizes, np.uint64), _starts(counts), width, indices.numpy(), values.numpy())
    return indices, values


def _starts(counts):
    return np.array([0, *np.cumsum(counts)], np.uint64)


def round_off(values):
    rounded = torch.empty_like(values)
    round_to_high_bits(values.numpy(), rounded.numpy())
    return rounded
