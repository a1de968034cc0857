"""Runs main_trainer with the arguments after the first, which says what goes wrong: on rank 1, in the third step.

The last line of rank 0's output says whether all ranks ended with the same parameters and buffers, and their digest.
"""

import hashlib
import json
import math
import sys
from dataclasses import replace

from mpi4py import MPI

import main_trainer
from dl_trainer import DLTrainer
from oktopk_training.errors import UserError
from oktopk_training.tasks import TASKS

COMM = MPI.COMM_WORLD
fault, arguments = sys.argv[1], sys.argv[2:]
trainers = []


class Faulty(DLTrainer):
    def __init__(self, *arguments):
        if fault == "start" and COMM.rank == 1:
            raise UserError("rank one has no data")
        super().__init__(*arguments)
        if fault == "other data" and COMM.rank == 1:
            self.task = TASKS[self.options.dnn](replace(self.options, data_dir=self.options.data_dir / "other"), 1, 2)
        trainers.append(self)

    def _forward_backward(self, batch):
        if COMM.rank != 1 or self.train_iter < 2:
            return super()._forward_backward(batch)
        if fault == "user error":
            raise UserError("a recording has gone")
        if fault == "nan always" or (fault == "nan" and self.train_iter == 2):
            poison = next(self.net.parameters()).register_hook(lambda gradient: gradient * math.nan)
            loss = super()._forward_backward(batch)
            poison.remove()
            return loss
        return super()._forward_backward(batch)


main_trainer.DLTrainer = Faulty
main_trainer.main(arguments)
state = trainers[0].net.state_dict()
digests = COMM.gather(hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest())
if COMM.rank == 0:
    sys.stdout.write(json.dumps({"same": len(set(digests)) == 1, "digest": digests[0]}) + "\n")
