"""The passes over large float32 arrays that a reduction on the CPU consists of, compiled by Numba.

The magnitude of a float32 sorts like its bits without the sign, so every comparison here is one of integers: a
*bound* is such a bit pattern. Large arrays are walked 64 elements at a time: one vector comparison gives a 64-bit mask
of the elements that pass, and only those are visited. At a density of 2% that reads memory at nearly the speed of a
bare copy. Every kernel runs without the GIL, so the reducer's thread does not stop the trainer's. Their types are
written down, so they are compiled (or, the next time, read from the cache) on import, and no step waits for that.
"""

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint64, void
from numba.extending import intrinsic

MAGNITUDE = np.int32(0x7FFFFFFF)
LANES = 16  # one AVX-512 register, or two of AVX2: LLVM splits the vector for the machine it is on
GROUP = 64  # elements per mask
BLOCK = 1 << 15  # elements that `sum_lists` holds dense at a time: 128 KiB, inside the L2 cache

floats, ints, counts = float32[::1], int32[::1], int64[::1]


def _compiled(signature, **options):
    """Decorate a kernel: compiled for the machine and cached; where nothing can be cached, compiled by each process."""

    def compile_now(kernel):
        try:
            return njit(signature, nogil=True, cache=True, **options)(kernel)
        except (OSError, RuntimeError):  # the disk is full; no folder can be written
            return njit(signature, nogil=True, **options)(kernel)

    return compile_now


@intrinsic
def _lanes_at_least(typingctx, address, bound):
    """A bit for each of the 16 float32 at `address` whose magnitude bits are at least `bound`."""

    def codegen(context, builder, signature, args):
        lane, lanes = ir.IntType(32), ir.VectorType(ir.IntType(32), LANES)
        bits = builder.load(builder.inttoptr(args[0], lanes.as_pointer()))
        bits.align = 4
        magnitudes = builder.and_(bits, ir.Constant(lanes, [int(MAGNITUDE)] * LANES))
        empty = ir.Constant(lanes, ir.Undefined)
        first = builder.insert_element(empty, args[1], ir.Constant(lane, 0))
        bounds = builder.shuffle_vector(first, empty, ir.Constant(lanes, [0] * LANES))
        passed = builder.icmp_signed(">=", magnitudes, bounds)
        return builder.zext(builder.bitcast(passed, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(types.uintp, types.int32), codegen


@intrinsic
def _trailing_zeros(typingctx, word):
    """The position of the lowest set bit of a non-zero word."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic
def _set_bits(typingctx, word):
    """How many bits of the word are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@_compiled(uint64(floats, int64, int32))
def _group_at_least(values, start, bound):
    """The mask of the (at most 64) elements from `start` on whose magnitude bits are at least `bound`."""
    mask = uint64(0)
    if start + GROUP <= values.size:
        address = values.ctypes.data + 4 * start
        for q in range(GROUP // LANES):
            mask |= _lanes_at_least(address + 4 * LANES * q, bound) << uint64(LANES * q)
    else:
        bits = values.view(np.int32)
        for i in range(start, values.size):
            if (bits[i] & MAGNITUDE) >= bound:
                mask |= uint64(1) << uint64(i - start)
    return mask


@_compiled(int64(floats, floats, int32, ints, floats))
def accumulate(residual, gradient, bound, indices, values):
    """residual += gradient; gradient = 0; on the way collect what then reaches `bound`.

    Returns how many were collected, or -1 if there were more than `indices` has room for (the sum is whole all the
    same).
    """
    count, room = 0, indices.size
    for start in range(0, residual.size, GROUP):
        old, new = residual[start : start + GROUP], gradient[start : start + GROUP]
        for j in range(old.size):
            old[j] += new[j]
            new[j] = 0
        mask = _group_at_least(residual, start, bound)
        if count + GROUP > room and count + _set_bits(mask) > room:
            count, room = 0, -1
        if room < 0:
            continue
        while mask != 0:
            i = start + _trailing_zeros(mask)
            indices[count] = i
            values[count] = residual[i]
            count += 1
            mask &= mask - uint64(1)
    return count if room >= 0 else -1


@_compiled(int64(floats, int32))
def count_at_least(array, bound):
    """How many magnitudes reach `bound`."""
    count = 0
    for start in range(0, array.size, GROUP):
        count += _set_bits(_group_at_least(array, start, bound))
    return count


@_compiled(void(floats, int32, ints, floats))
def collect_at_least(array, bound, indices, values):
    """Write the entries whose magnitudes reach `bound`, in order, into arrays that have room for all of them."""
    count = 0
    for start in range(0, array.size, GROUP):
        mask = _group_at_least(array, start, bound)
        while mask != 0:
            i = start + _trailing_zeros(mask)
            indices[count] = i
            values[count] = array[i]
            count += 1
            mask &= mask - uint64(1)


@_compiled(int64(ints, floats, int32, int64, ints, floats))
def keep(indices, values, bound, ties, kept_indices, kept_values):
    """Copy the entries above `bound` and the first `ties` of those equal to it; returns how many that are."""
    bits = values.view(np.int32)
    count = 0
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        tie = (magnitude == bound) & (ties > 0)
        ties -= tie
        if count < kept_indices.size:
            kept_indices[count] = indices[i]
            kept_values[count] = values[i]
        count += (magnitude > bound) | tie
    return count


@_compiled(void(floats, int32, int32, int32, counts))
def histogram(values, shift, width, prefix, counts):
    """Count the magnitudes that start with `prefix` by their next `width` bits, which end above bit `shift`."""
    counts[:] = 0
    bits = values.view(np.int32)
    bin_mask = np.int32((1 << width) - 1)
    everything = shift + width >= 31
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if everything or (magnitude >> np.int32(shift + width)) == prefix:
            counts[(magnitude >> np.int32(shift)) & bin_mask] += 1


@_compiled(int64(ints, floats, counts, int64, int64, ints, floats))
def sum_lists(indices, values, starts, low, high, sum_indices, sum_values):
    """Add up sorted lists (list p is starts[p]:starts[p+1]) over the region low:high, list after list.

    Writes the sums that are not zero in the order of their indices and returns how many there are. The region is
    walked in blocks that stay in the cache, so nothing of the region's size is ever allocated.
    """
    position = starts[:-1].copy()
    dense = np.zeros(BLOCK, np.float32)
    touched = np.zeros(BLOCK // GROUP, np.uint64)
    count = 0
    for block in range(low, high, BLOCK):
        end = min(block + BLOCK, high)
        for p in range(position.size):
            j = position[p]
            while j < starts[p + 1] and indices[j] < end:
                i = indices[j] - block
                dense[i] += values[j]
                touched[i >> 6] |= uint64(1) << uint64(i & 63)
                j += 1
            position[p] = j
        for word in range(touched.size):
            mask = touched[word]
            touched[word] = 0
            while mask != 0:
                i = word * GROUP + _trailing_zeros(mask)
                total = dense[i]
                dense[i] = 0
                if total != 0:
                    sum_indices[count] = block + i
                    sum_values[count] = total
                    count += 1
                mask &= mask - uint64(1)
    return count


@_compiled(int64(ints, ints, ints))
def common(a, b, both):
    """The indices that stand in both sorted lists; `both` has room for one more than the shorter list."""
    i = j = count = 0
    while i < a.size and j < b.size:
        x, y = a[i], b[j]
        both[count] = x
        count += x == y
        i += x <= y
        j += y <= x
    return count


@_compiled(void(floats, ints, floats))
def put(array, indices, values):
    for j in range(indices.size):
        array[indices[j]] = values[j]


@_compiled(void(floats, ints))
def put_zero(array, indices):
    for j in range(indices.size):
        array[indices[j]] = 0


@_compiled(void(floats, ints, floats))
def add(array, indices, values):
    for j in range(indices.size):
        array[indices[j]] += values[j]


@_compiled(types.UniTuple(float64, 2)(floats), fastmath={"reassoc", "contract"})
def moments(array):
    """The sum and the sum of squares, in float64: neither overflows, and they are finite only if every element is."""
    total, squares = 0.0, 0.0
    for i in range(array.size):
        x = np.float64(array[i])
        total += x
        squares += x * x
    return total, squares
