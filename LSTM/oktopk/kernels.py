"""The passes over large float32 arrays that a reduction on the CPU consists of, compiled by Numba.

The magnitude of a float32 sorts like its bits without the sign, so every comparison here is one of integers: a
*bound* is such a bit pattern. Large arrays are walked 64 elements at a time: one vector comparison gives a 64-bit mask
of the elements that pass, and only those are visited. At a density of 2% that reads memory at nearly the speed of a
bare copy. Every kernel runs without the GIL. Their types are written down, so they are compiled (or, the next time,
read from the cache) on import, and no step waits for that. `cpu_operations.CpuOps` is what the others call.
"""

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint64, void
from numba.extending import intrinsic

from . import entries

MAGNITUDE = np.int32(entries.MAGNITUDE)
LANES = 16  # one AVX-512 register, or two of AVX2: LLVM splits the vector for the machine it is on
GROUP = 64  # elements per mask
COUNTERS = 4  # of each bin: the same bin again would wait until the last addition to it is done
LINE = 16  # float32 of a line of the cache
AHEAD = 2048  # elements, two pages: the processor's own prefetching stops at the end of each
AT_ONCE = 4  # elements of a mask that are collected without asking: seldom are there more, and a wrong guess waits
BLOCK = 1 << 15  # elements that `sum_lists` holds dense, and `common` marks, at a time: 128 KiB, inside the L2 cache

floats, ints, counts = float32[::1], int32[::1], int64[::1]


def compiled(signature, **options):
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
    """The position of the lowest set bit of a word; 64 if there is none."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@intrinsic
def _set_bits(typingctx, word):
    """How many bits of the word are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def _magnitude_at(typingctx, address):
    """The magnitude bits of the float32 at `address`."""

    def codegen(context, builder, signature, args):
        bits = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))
        return builder.and_(bits, ir.Constant(ir.IntType(32), int(MAGNITUDE)))

    return types.int32(types.uintp), codegen


@intrinsic
def _prefetch(typingctx, address):
    """Have the line at `address` brought near; an address behind the end does nothing."""

    def codegen(context, builder, signature, args):
        number, place = ir.IntType(32), ir.IntType(8).as_pointer()
        wanted = ir.FunctionType(ir.VoidType(), [place, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [place], wanted)
        for_reading, near, data = 0, 3, 1
        how = [ir.Constant(number, each) for each in (for_reading, near, data)]
        builder.call(prefetch, [builder.inttoptr(args[0], place), *how])
        return context.get_dummy_value()

    return types.void(types.uintp), codegen


@njit(inline="always")
def _prefetch_group(address):
    for i in range(0, GROUP, LINE):
        _prefetch(address + 4 * (AHEAD + i))


# It takes an address, for an array would be counted in and out of each call; and it is inlined, for compiled by itself
# it would be called through a pointer.
@njit(inline="always")
def _group_at_least(address, left, bound):
    """The mask of the (at most 64) float32 at `address`, of those that are left, whose magnitude bits reach `bound`."""
    mask = uint64(0)
    if left >= GROUP:
        for q in range(GROUP // LANES):
            mask |= _lanes_at_least(address + 4 * LANES * q, bound) << uint64(LANES * q)
    else:
        for i in range(left):
            if _magnitude_at(address + 4 * i) >= bound:
                mask |= uint64(1) << uint64(i)
    return mask


@njit(inline="always")
def _collect(mask, start, array, indices, values, count):
    """Append the elements of the mask, whose bit 0 stands for `start`; there must be room. Returns the new count."""
    end = count + _set_bits(mask)
    if count + AT_ONCE <= indices.size:
        for j in range(count, count + AT_ONCE):
            i = start + (_trailing_zeros(mask) & (GROUP - 1))  # of an empty mask: the element at `start`, for nothing
            indices[j] = i
            values[j] = array[i]
            mask &= mask - uint64(1)
        count += AT_ONCE
    while mask != 0:
        i = start + _trailing_zeros(mask)
        indices[count] = i
        values[count] = array[i]
        count += 1
        mask &= mask - uint64(1)
    return end


@compiled(int64(floats, floats, int32, ints, floats))
def accumulate(residual, gradient, bound, indices, values):
    """residual += gradient; gradient = 0; on the way collect what then reaches `bound`.

    Returns how many were collected, or -1 if there were more than `indices` has room for (the sum is whole all the
    same).
    """
    count, room, address, other_address = 0, indices.size, residual.ctypes.data, gradient.ctypes.data
    for start in range(0, residual.size, GROUP):
        _prefetch_group(address + 4 * start)
        _prefetch_group(other_address + 4 * start)
        old, new = residual[start : start + GROUP], gradient[start : start + GROUP]
        for j in range(old.size):
            old[j] += new[j]
            new[j] = 0
        mask = _group_at_least(address + 4 * start, residual.size - start, bound)
        if count + GROUP > room and count + _set_bits(mask) > room:
            count, room = 0, -1
        if room >= 0:
            count = _collect(mask, start, residual, indices, values, count)
    return count if room >= 0 else -1


@compiled(void(floats, floats, float32))
def gather(velocity, gradient, momentum):
    """velocity = momentum * velocity + gradient; gradient = velocity."""
    address, other_address = velocity.ctypes.data, gradient.ctypes.data
    for start in range(0, velocity.size, GROUP):
        _prefetch_group(address + 4 * start)
        _prefetch_group(other_address + 4 * start)
        old, new = velocity[start : start + GROUP], gradient[start : start + GROUP]
        for j in range(old.size):
            old[j] = momentum * old[j] + new[j]
            new[j] = old[j]


@compiled(int64(floats, int32))
def count_at_least(array, bound):
    """How many magnitudes reach `bound`."""
    count, address = 0, array.ctypes.data
    for start in range(0, array.size, GROUP):
        _prefetch_group(address + 4 * start)
        count += _set_bits(_group_at_least(address + 4 * start, array.size - start, bound))
    return count


@compiled(void(floats, int32, ints, floats))
def collect_at_least(array, bound, indices, values):
    """Write the entries whose magnitudes reach `bound`, in order, into arrays that have room for all of them."""
    count, address = 0, array.ctypes.data
    for start in range(0, array.size, GROUP):
        _prefetch_group(address + 4 * start)
        mask = _group_at_least(address + 4 * start, array.size - start, bound)
        count = _collect(mask, start, array, indices, values, count)


@compiled(int64(ints, floats, int32, int64, ints, floats))
def keep(indices, values, bound, ties, kept_indices, kept_values):
    """Copy the entries above `bound` and the first `ties` of those equal to it; returns how many that are."""
    count, address = 0, values.ctypes.data
    for start in range(0, values.size, GROUP):
        left = values.size - start
        mask = _group_at_least(address + 4 * start, left, bound + np.int32(1))
        if ties > 0:
            at_bound = _group_at_least(address + 4 * start, left, bound) ^ mask
            while at_bound != 0 and ties > 0:
                mask |= uint64(1) << uint64(_trailing_zeros(at_bound))
                at_bound &= at_bound - uint64(1)
                ties -= 1
        while mask != 0 and count < kept_indices.size:
            i = start + _trailing_zeros(mask)
            kept_indices[count] = indices[i]
            kept_values[count] = values[i]
            count += 1
            mask &= mask - uint64(1)
    return count


@njit(inline="always")
def _count_all(bits, shift, bin_mask, counts):
    """The first histogram, of the top bits of every magnitude."""
    others = np.zeros((COUNTERS - 1, counts.size), np.int64)
    a, b, c = others[0], others[1], others[2]
    whole = bits.size // COUNTERS * COUNTERS
    for i in range(0, whole, COUNTERS):
        w, x, y, z = bits[i] & MAGNITUDE, bits[i + 1] & MAGNITUDE, bits[i + 2] & MAGNITUDE, bits[i + 3] & MAGNITUDE
        counts[(w >> shift) & bin_mask] += 1
        a[(x >> shift) & bin_mask] += 1
        b[(y >> shift) & bin_mask] += 1
        c[(z >> shift) & bin_mask] += 1
    for i in range(whole, bits.size):
        counts[((bits[i] & MAGNITUDE) >> shift) & bin_mask] += 1
    for i in range(counts.size):
        counts[i] += a[i] + b[i] + c[i]


@compiled(void(floats, int32, int32, int32, counts))
def histogram(values, shift, width, prefix, counts):
    """Count the magnitudes that start with `prefix` by their next `width` bits, which end above bit `shift`."""
    bits, shift, above = values.view(np.int32), np.int32(shift), shift + width
    bin_mask = np.int32((1 << width) - 1)
    counts[:] = 0
    if above >= 31:
        _count_all(bits, shift, bin_mask, counts)
        return
    address, low, high = values.ctypes.data, np.int32(int64(prefix) << above), int64(prefix + 1) << above
    for start in range(0, bits.size, GROUP):
        left = bits.size - start
        mask = _group_at_least(address + 4 * start, left, low)
        if high <= MAGNITUDE:
            mask &= ~_group_at_least(address + 4 * start, left, np.int32(high))
        while mask != 0:
            i = start + _trailing_zeros(mask)
            counts[((bits[i] & MAGNITUDE) >> shift) & bin_mask] += 1
            mask &= mask - uint64(1)


@njit(inline="always")
def _take_sums(mask, first, block, dense, sum_indices, sum_values, count):
    """Append the sums of the mask, whose bit 0 stands for dense[first], and leave zeros. Returns the new count."""
    if count + uint64(AT_ONCE) < uint64(sum_indices.size):
        for _ in range(AT_ONCE):
            i = first + uint64(_trailing_zeros(mask) & (GROUP - 1))  # of an empty mask: a zero, for nothing
            sum_indices[count] = block + i
            sum_values[count] = dense[i]
            count += uint64((mask != 0) & (dense[i] != 0))
            dense[i] = 0
            mask &= mask - uint64(1)
    while mask != 0:
        i = first + uint64(_trailing_zeros(mask))
        if dense[i] != 0:
            sum_indices[count] = block + i
            sum_values[count] = dense[i]
            count += uint64(1)
            dense[i] = 0
        mask &= mask - uint64(1)
    return count


@compiled(int64(ints, floats, counts, int64, int64, ints, floats))
def sum_lists(indices, values, starts, low, high, sum_indices, sum_values):
    """Add up sorted lists (list p is starts[p]:starts[p+1]) over the region low:high, list after list.

    Writes the sums that are not zero in the order of their indices and returns how many there are. The region is
    walked in blocks that stay in the cache, so nothing of the region's size is ever allocated.
    """
    position = starts[:-1].copy()
    dense = np.zeros(BLOCK, np.float32)
    touched = np.zeros(BLOCK // GROUP, np.uint64)
    count = uint64(0)
    for block in range(low, high, BLOCK):
        end = min(block + BLOCK, high)
        for p in range(position.size):
            j, after = uint64(position[p]), uint64(starts[p + 1])
            while j < after and indices[j] < end:
                i = uint64(indices[j] - block)
                dense[i] += values[j]
                touched[i >> uint64(6)] |= uint64(1) << (i & uint64(63))
                j += uint64(1)
            position[p] = j
        for word in range(touched.size):
            mask = touched[word]
            touched[word] = 0
            count = _take_sums(mask, uint64(word * GROUP), block, dense, sum_indices, sum_values, count)
    return int64(count)


@compiled(int64(ints, floats, ints, ints, floats))
def common(indices, values, others, both, both_values):
    """The entries whose indices stand in `others` too; both lists are sorted, and there is room for one entry more.

    A bit for each index of a block says whether it stands there. To walk both lists side by side takes three times as
    long: where to look next would hang on the comparison before. Places have no sign: of one that has, Numba asks each
    time whether it counts from the end.
    """
    i = j = count = uint64(0)
    after, others_after = uint64(indices.size), uint64(others.size)
    marks = np.zeros(BLOCK // GROUP, np.uint64)
    while i < after and j < others_after:
        block = uint64(indices[i]) // uint64(BLOCK) * uint64(BLOCK)
        while j < others_after and uint64(others[j]) < block:
            j += uint64(1)
        first, end = j, block + uint64(BLOCK)
        while j < others_after and uint64(others[j]) < end:
            place = uint64(others[j]) - block
            marks[place >> uint64(6)] |= uint64(1) << (place & uint64(63))
            j += uint64(1)
        while i < after and uint64(indices[i]) < end:
            place = uint64(indices[i]) - block
            both[count] = indices[i]
            both_values[count] = values[i]
            count += marks[place >> uint64(6)] >> (place & uint64(63)) & uint64(1)
            i += uint64(1)
        for marked in range(first, j):
            marks[(uint64(others[marked]) - block) >> uint64(6)] = 0
    return int64(count)


@compiled(int64(ints, floats, ints, floats, ints, floats))
def differences(indices, values, others, other_values, lost, lost_values):
    """What the second list lacks of the first, which holds all its indices; returns how many entries that are."""
    j = count = 0
    for i in range(indices.size):
        value = values[i]
        if j < others.size and others[j] == indices[i]:
            value -= other_values[j]
            j += 1
        if value != 0:
            lost[count] = indices[i]
            lost_values[count] = value
            count += 1
    return count


@njit(inline="always")
def _prefetch_entry(array, indices, j):
    """What entry j belongs to, which is no place that a processor could guess."""
    if j < indices.size:
        _prefetch(array.ctypes.data + 4 * int64(indices[j]))


@compiled(void(floats, ints, floats))
def put(array, indices, values):
    for j in range(indices.size):
        _prefetch_entry(array, indices, j + GROUP)
        array[indices[j]] = values[j]


@compiled(void(floats, ints, floats, float32))
def add(array, indices, values, factor):
    for j in range(indices.size):
        _prefetch_entry(array, indices, j + GROUP)
        array[indices[j]] += factor * values[j]


@compiled(void(floats, ints, floats))
def clear(array, indices, values):
    for j in range(indices.size):
        if values[j] != 0:
            array[indices[j]] = 0


@compiled(types.UniTuple(float64, 2)(floats), fastmath={"reassoc", "contract"})
def moments(array):
    """The sum and the sum of squares, in float64: neither overflows, and they are finite only if every element is."""
    total, squares, address = 0.0, 0.0, array.ctypes.data
    for start in range(0, array.size, 4 * GROUP):
        part = array[start : start + 4 * GROUP]
        for i in range(0, 4 * GROUP, GROUP):
            _prefetch_group(address + 4 * (start + i))
        for i in range(part.size):
            x = np.float64(part[i])
            total += x
            squares += x * x
    return total, squares
