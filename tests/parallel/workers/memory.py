"""Ranks whose reducer finds no memory: rank 1's is limited, to so many buffers of its size: memory.py BUFFERS"""

from oktopk_training.job import begin

begin()

import os  # noqa: E402 - what ends all ranks comes first
import resource  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402

from oktopk import GradientAverager, Settings, kernels  # noqa: E402, F401 - compiled before memory is short
from oktopk_training.job import program  # noqa: E402
from oktopk_training.ranks import connect  # noqa: E402

ELEMENTS = 30_000_000


@program
def main():
    ranks = connect()
    parameter = torch.nn.Parameter(torch.empty(ELEMENTS))
    if ranks.rank == 1:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = used + int(float(sys.argv[1]) * 4 * ELEMENTS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    averager = GradientAverager(
        [("p", parameter)], "oktopk", Settings(warmup_iters=0), ranks.new_communicator("reduction")
    )
    averager.average()
    sys.stdout.write("through\n")


if __name__ == "__main__":
    main()
