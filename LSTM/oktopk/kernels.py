"""The passes over large float32 arrays that a reduction on the CPU consists of, compiled by Numba.

The magnitude of a float32 sorts like its bits without the sign, so every comparison here is one of integers: a
*bound* is such a bit pattern. Large arrays are walked 64 elements at a time: one vector comparison gives a 64-bit mask
of the elements that pass, and only those are visited. At a density of 2% that reads memory at nearly the speed of a
bare copy. Every kernel runs without the GIL. Their types are written down, so they are compiled (or, the next time,
read from the cache) on import, and no step waits for that. `CpuOps`, at the end, is what the others call.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint64, void
from numba.extending import intrinsic

from . import entries
from .entries import GUESS_SLACK, OCTAVE, RADIX_PARTS, Entries, bin_of_kth, kth_magnitude

MAGNITUDE = np.int32(entries.MAGNITUDE)
LANES = 16  # one AVX-512 register, or two of AVX2: LLVM splits the vector for the machine it is on
GROUP = 64  # elements per mask
COUNTERS = 4  # of each bin: the same bin again would wait until the last addition to it is done
SHORTEST_PIECE = 1 << 18  # elements, for a thread
PIECES_OF_MOMENTS = 64
BLOCK = 1 << 15  # elements that `sum_lists` holds dense at a time: 128 KiB, inside the L2 cache

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


@intrinsic
def _magnitude_at(typingctx, address):
    """The magnitude bits of the float32 at `address`."""

    def codegen(context, builder, signature, args):
        bits = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))
        return builder.and_(bits, ir.Constant(ir.IntType(32), int(MAGNITUDE)))

    return types.int32(types.uintp), codegen


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


@compiled(int64(floats, floats, int32, ints, floats))
def accumulate(residual, gradient, bound, indices, values):
    """residual += gradient; gradient = 0; on the way collect what then reaches `bound`.

    Returns how many were collected, or -1 if there were more than `indices` has room for (the sum is whole all the
    same).
    """
    count, room, address = 0, indices.size, residual.ctypes.data
    for start in range(0, residual.size, GROUP):
        old, new = residual[start : start + GROUP], gradient[start : start + GROUP]
        for j in range(old.size):
            old[j] += new[j]
            new[j] = 0
        mask = _group_at_least(address + 4 * start, residual.size - start, bound)
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


@compiled(int64(floats, int32))
def count_at_least(array, bound):
    """How many magnitudes reach `bound`."""
    count, address = 0, array.ctypes.data
    for start in range(0, array.size, GROUP):
        count += _set_bits(_group_at_least(address + 4 * start, array.size - start, bound))
    return count


@compiled(void(floats, int32, ints, floats))
def collect_at_least(array, bound, indices, values):
    """Write the entries whose magnitudes reach `bound`, in order, into arrays that have room for all of them."""
    count, address = 0, array.ctypes.data
    for start in range(0, array.size, GROUP):
        mask = _group_at_least(address + 4 * start, array.size - start, bound)
        while mask != 0:
            i = start + _trailing_zeros(mask)
            indices[count] = i
            values[count] = array[i]
            count += 1
            mask &= mask - uint64(1)


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


@compiled(void(floats, int32, int32, int32, counts))
def histogram(values, shift, width, prefix, counts):
    """Count the magnitudes that start with `prefix` by their next `width` bits, which end above bit `shift`."""
    bits = values.view(np.int32)
    bin_mask = np.int32((1 << width) - 1)
    above = np.int32(min(shift + width, 31))
    counts[:] = 0
    others = np.zeros((3, counts.size), np.int64)
    a, b, c = others[0], others[1], others[2]
    whole = bits.size // 4 * 4
    for i in range(0, whole, 4):
        w, x, y, z = bits[i] & MAGNITUDE, bits[i + 1] & MAGNITUDE, bits[i + 2] & MAGNITUDE, bits[i + 3] & MAGNITUDE
        counts[(w >> np.int32(shift)) & bin_mask] += (w >> above) == prefix
        a[(x >> np.int32(shift)) & bin_mask] += (x >> above) == prefix
        b[(y >> np.int32(shift)) & bin_mask] += (y >> above) == prefix
        c[(z >> np.int32(shift)) & bin_mask] += (z >> above) == prefix
    for i in range(whole, bits.size):
        w = bits[i] & MAGNITUDE
        counts[(w >> np.int32(shift)) & bin_mask] += (w >> above) == prefix
    for i in range(counts.size):
        counts[i] += a[i] + b[i] + c[i]


@compiled(int64(ints, floats, counts, int64, int64, ints, floats))
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


@compiled(int64(ints, floats, ints, ints, floats))
def common(indices, values, others, both, both_values):
    """The entries whose indices stand in `others` too; both lists are sorted, and there is room for one entry more.

    A bit for each index, block after block: walking the two lists side by side would wait for each comparison.
    """
    marks = np.zeros(BLOCK // GROUP, np.uint64)
    i = j = count = 0
    while i < indices.size and j < others.size:
        block = min(indices[i], others[j]) // BLOCK * BLOCK
        end, first = block + BLOCK, j
        while j < others.size and others[j] < end:
            place = others[j] - block
            marks[place >> 6] |= uint64(1) << uint64(place & 63)
            j += 1
        while i < indices.size and indices[i] < end:
            place = indices[i] - block
            both[count] = indices[i]
            both_values[count] = values[i]
            count += np.int64((marks[place >> 6] >> uint64(place & 63)) & uint64(1))
            i += 1
        while first < j:
            marks[(others[first] - block) >> 6] = 0
            first += 1
    return count


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


@compiled(void(floats, ints, floats))
def put(array, indices, values):
    for j in range(indices.size):
        array[indices[j]] = values[j]


@compiled(void(floats, ints, floats, float32))
def add(array, indices, values, factor):
    for j in range(indices.size):
        array[indices[j]] += factor * values[j]


@compiled(void(floats, ints, floats))
def clear(array, indices, values):
    for j in range(indices.size):
        if values[j] != 0:
            array[indices[j]] = 0


@compiled(types.UniTuple(float64, 2)(floats), fastmath={"reassoc", "contract"})
def moments(array):
    """The sum and the sum of squares, in float64: neither overflows, and they are finite only if every element is."""
    total, squares = 0.0, 0.0
    for i in range(array.size):
        x = np.float64(array[i])
        total += x
        squares += x * x
    return total, squares


# ---- several threads: as many as torch has, for what passes over the whole gradient


@cache
def _pool(threads):
    return ThreadPoolExecutor(threads, "oktopk")


def _pieces(size, most):
    """Borders of even pieces of an array, `most` of them at most, and none too short to be worth a thread."""
    count = max(1, min(most, size // SHORTEST_PIECE))
    return [size * i // count // GROUP * GROUP for i in range(count)] + [size]


def _for_each(work, borders):
    """What `work(start, end)` returns for each piece."""
    starts, ends, threads = borders[:-1], borders[1:], torch.get_num_threads()
    if threads == 1 or len(starts) == 1:
        return list(map(work, starts, ends))
    return list(_pool(threads).map(work, starts, ends))


# ---- what algorithms and choosers are written against


class CpuOps:
    """What `operations.TorchOps` does, over the memory of CPU tensors; nothing is copied on the way in or out."""

    @staticmethod
    def norm(tensor):
        return _moments(tensor)[1] ** 0.5

    @staticmethod
    def is_finite(tensor):
        return CpuOps.count_at_least(tensor, entries.INFINITY) == 0

    @staticmethod
    def mean_and_deviation(tensor):
        total, squares = _moments(tensor)
        mean = total / tensor.numel()
        return mean, max(0.0, squares / tensor.numel() - mean * mean) ** 0.5

    @staticmethod
    def accumulate(residual, gradient, bound=None, room=0):
        """residual += gradient; gradient = 0. With a bound: also the entries that reach it, or None if over `room`."""
        if bound is None:
            residual.add_(gradient)
            gradient.zero_()
            return None
        indices, values = _empty(room)
        count = _accumulate(residual.numpy(), gradient.numpy(), np.int32(bound), indices, values)
        return None if count < 0 else _entries(indices, values, count)

    @staticmethod
    def count_at_least(tensor, bound):
        return int(count_at_least(tensor.numpy(), np.int32(bound)))

    @staticmethod
    def at_least(tensor, bound):
        array = tensor.numpy()
        indices, values = _empty(count_at_least(array, np.int32(bound)))
        collect_at_least(array, np.int32(bound), indices, values)
        return _entries(indices, values, len(indices))

    @staticmethod
    def candidates(tensor, k):
        """Entries of a dense tensor among which the k largest are: all from the bin of the k-th on."""
        shift, width = RADIX_PARTS[0]
        chosen, _ = bin_of_kth(_histogram(tensor, shift, width, 0), k)
        return CpuOps.at_least(tensor, max(1, chosen << shift))

    @staticmethod
    def guess(bound, last):
        change = 0 if last is None else bound - last
        return max(1, bound + min(change, change // 2, OCTAVE) - GUESS_SLACK)

    @staticmethod
    def ranking(entries):
        return CpuRanking(entries)

    @staticmethod
    def entries_at_least(entries, bound):
        return CpuRanking(entries).keep(bound - 1, 0, entries.count)

    @staticmethod
    def sum_lists(lists, counts, low, high):
        if lists.count in counts:
            return lists
        starts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        indices, values = _empty(min(lists.count, high - low))
        count = sum_lists(lists.indices.numpy(), lists.values.numpy(), starts, int(low), int(high), indices, values)
        return _entries(indices, values, count)

    @staticmethod
    def without_zeros(entries):
        return entries  # `sum_lists` left them out

    @staticmethod
    def common(entries, others):
        indices, values = _empty(min(entries.count, others.count) + 1)
        count = common(entries.indices.numpy(), entries.values.numpy(), others.indices.numpy(), indices, values)
        return _entries(indices, values, count)

    @staticmethod
    def differences(before, after):
        indices, values = _empty(before.count)
        arrays = (part.numpy() for part in (*before, *after))
        return _entries(indices, values, differences(*arrays, indices, values))

    @staticmethod
    def put(tensor, entries):
        put(tensor.numpy(), entries.indices.numpy(), entries.values.numpy())

    @staticmethod
    def subtract(tensor, entries):
        add(tensor.numpy(), entries.indices.numpy(), entries.values.numpy(), np.float32(-1))

    @staticmethod
    def add(tensor, entries):
        add(tensor.numpy(), entries.indices.numpy(), entries.values.numpy(), np.float32(1))

    @staticmethod
    def clear(tensor, entries):
        clear(tensor.numpy(), entries.indices.numpy(), entries.values.numpy())


class CpuRanking:
    """Entries ranked by histograms of their magnitudes' bits, without sorting."""

    def __init__(self, entries):
        self._entries = entries

    def largest(self, k):
        bound, ties = kth_magnitude(self.histogram, k)
        return self.keep(bound, ties, min(k, self._entries.count)), bound

    def keep(self, bound, ties, count):
        indices, values = _empty(count)
        arrays = (part.numpy() for part in self._entries)
        return _entries(indices, values, keep(*arrays, np.int32(bound), int(ties), indices, values))

    def histogram(self, shift, width, prefix):
        return _histogram(self._entries.values, shift, width, prefix)


def _moments(tensor):
    """In pieces that do not depend on the number of threads, for sums of others would differ in their last bits."""
    array = tensor.numpy()
    parts = _for_each(lambda start, end: moments(array[start:end]), _pieces(array.size, PIECES_OF_MOMENTS))
    return sum(total for total, _ in parts), sum(squares for _, squares in parts)


def _accumulate(residual, gradient, bound, indices, values):
    """`accumulate`, by all threads: each fills its share of the room, and all move up."""
    borders = _pieces(residual.size, torch.get_num_threads())
    rooms = [indices.size * i // (len(borders) - 1) for i in range(len(borders))]
    first = dict(zip(borders, rooms, strict=False))
    last = dict(zip(borders[1:], rooms[1:], strict=True))

    def collect(start, end):
        room = slice(first[start], last[end])
        return accumulate(residual[start:end], gradient[start:end], bound, indices[room], values[room])

    found = _for_each(collect, borders)
    if min(found) < 0:
        return _collect(residual, bound, indices, values) if len(found) > 1 else -1
    count = 0
    for start, some in zip(borders, found, strict=False):
        there = slice(first[start], first[start] + some)
        np.add(indices[there], np.int32(start), out=indices[count : count + some])
        values[count : count + some] = values[there]
        count += some
    return count


def _collect(array, bound, indices, values):
    """What reaches the bound, or -1 if there is more than there is room for."""
    count = count_at_least(array, bound)
    if count > indices.size:
        return -1
    collect_at_least(array, bound, indices[:count], values[:count])
    return count


def _histogram(values, shift, width, prefix):
    bins = np.empty(1 << width, np.int64)
    histogram(values.numpy(), shift, width, prefix, bins)
    return torch.from_numpy(bins)


def _empty(count):
    return np.empty(count, np.int32), np.empty(count, np.float32)


def _entries(indices, values, count):
    return Entries(torch.from_numpy(indices[:count]), torch.from_numpy(values[:count]))
