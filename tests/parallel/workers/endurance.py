"""Many steps of a small model through the hook: endurance.py STEPS. Prints memory and what was left behind, as JSON."""

import ctypes
import json
import os
import sys
import threading

import torch.distributed as dist
from hooks import Training

SETTLED = 4  # the part of the steps after which memory must be flat: one in so many


class Heap(ctypes.Structure):
    """What glibc's mallinfo2 tells; `resident` grows by what it keeps free, too."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def in_use():
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    return mallinfo().uordblks


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def figures():
    return resident(), in_use(), threading.active_count(), len(os.listdir("/proc/self/fd"))


def main():
    dist.init_process_group("gloo")
    steps = int(sys.argv[1])
    training = Training(density=0.02, warmup_iters=5)
    training.run(max(20, steps // SETTLED))
    before = figures()
    training.run(steps, first=20)
    after = figures()
    if dist.get_rank() == 0:
        found = {"growth": after[0] / before[0] - 1, "in_use": after[1] / before[1] - 1}
        found.update(threads=after[2] - before[2], files=after[3] - before[3])
        sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
