"""Dense training on P ranks with batch B, and on rank 0 alone with batch P x B: prints the largest difference.

argv: folder of text, steps, --nsteps-update. The word model has no batch norm; its dropout is switched off.
"""

import json
import sys

import torch
from mpi4py import MPI

from corpora import SMALL
from dl_trainer import DLTrainer
from main_trainer import accumulate, distribute
from oktopk_training.options import parse_options
from oktopk_training.ranks import alone, connect

BATCH = 2


def parameters_after_training(ranks, batch_size, nsteps_update):
    arguments = ["--dnn", "lstm", *SMALL, "--data-dir", sys.argv[1], "--batch-size", str(batch_size)]
    options = parse_options([*arguments, "--lr", "1.0", "--nsteps-update", str(nsteps_update)])
    trainer = DLTrainer(options, ranks.rank, ranks.size)
    trainer.net.dropout.p = trainer.net.layers.dropout = 0.0
    optimizer = distribute(trainer, options, ranks)
    for _ in range(int(sys.argv[2])):
        accumulate(trainer, optimizer, nsteps_update)
        optimizer.synchronize()
        trainer.update_model()
    optimizer.stop()
    return torch.cat([parameter.detach().flatten() for parameter in trainer.net.parameters()])


nsteps_update = int(sys.argv[3])
many = parameters_after_training(connect(), BATCH, nsteps_update)
if MPI.COMM_WORLD.rank == 0:
    one = parameters_after_training(alone(), BATCH * MPI.COMM_WORLD.size, nsteps_update)
    start = parameters_after_training(alone(), BATCH, 1) - one
    found = {"difference": float((many - one).abs().max()), "scale": float(start.abs().max())}
    sys.stdout.write(json.dumps(found) + "\n")
