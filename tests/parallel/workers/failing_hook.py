"""One rank's hook raises in the third step: failing_hook.py RANK [per_bucket]"""

import sys

import torch.distributed as dist
from ddp_training import Training

from oktopk.exchange import Exchange


def main():
    dist.init_process_group("gloo")
    training = Training(density=0.02, warmup_iters=0, per_bucket="per_bucket" in sys.argv).run(2)

    def fail(*_):
        raise ValueError("the disk of this node is on fire")

    if dist.get_rank() == int(sys.argv[1]):
        Exchange.split_and_reduce = fail
    training.run(3)


if __name__ == "__main__":
    main()
