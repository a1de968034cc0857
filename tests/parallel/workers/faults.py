"""What goes wrong on one rank alone: argv[1] says what. The other ranks wait for it in a collective."""

import os
import sys
import threading

import torch

from allreducer import AllReducer, compressors
from oktopk import connect

world, fault = connect(), sys.argv[1]
rank = world.rank
elements = 1001 if fault == "other model" and rank == 1 else 1000
parameter = torch.nn.Parameter(torch.full((elements,), float(fault == "other values" and rank == 1)))
reducer = AllReducer([("p", parameter)], None, None, compressors["oktopk"], sparse=True, density=0.1, warmup_iters=1)
threading.Thread(target=reducer.run, daemon=True).start()
for step in range(4):
    gradient = torch.randn(1000)
    if rank == 1 and step == 2:
        if fault == "thread":
            reducer._reducers[0]._chooser = None
        elif fault == "main":
            raise RuntimeError("rank one's own trouble")
        elif fault == "killed":
            os.kill(os.getpid(), 9)
        elif fault == "nan":
            gradient[5] = float("nan")
    reducer.add_tensor("p", gradient)
    reducer.msg_queue.put("p")
    reducer.msg_queue2.get()
    mean = reducer.get_result("p")
    if fault == "nan":
        assert reducer.last_step.skipped == (step == 2), "all ranks skip the same step"
        assert bool(mean.any()) == (step != 2)
world.allreduce(torch.zeros(1))
if rank == 0:
    sys.stdout.write("through\n")
