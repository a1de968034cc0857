"""Many steps of a small model through the hook: endurance.py STEPS. Prints memory and what was left behind, as JSON."""

import json
import os
import sys
import threading

import torch.distributed as dist
from hooks import Training

SETTLED = 10  # the part of the steps after which memory must be flat: one in so many


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main():
    dist.init_process_group("gloo")
    steps = int(sys.argv[1])
    training = Training(density=0.02, warmup_iters=5)
    training.run(max(20, steps // SETTLED))
    before = resident(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    training.run(steps, first=20)
    after = resident(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    if dist.get_rank() == 0:
        found = {"growth": after[0] / before[0] - 1, "threads": after[1] - before[1], "files": after[2] - before[2]}
        sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
