"""A training loop as somebody else wrote it: it knows the contract's names and nothing of how they are built.

Trains one small model twice on every rank: once through AllReducer, its queues and its own thread, once through
DistributedOptimizer; and that with each of the compressors that are named. Prints, from rank 0, the losses, whether
all ranks ended with the same parameters, and what the trainer heard.
"""

import json
import queue
import sys
import threading
import time

import torch
from mpi4py import MPI

import distributed_optimizer
from allreducer import AllReducer, compressors
from distributed_optimizer import DistributedOptimizer

comm = MPI.COMM_WORLD
STEPS = 140  # the default warm-up is 128


class Trainer:
    def __init__(self):
        self.sparsities = []
        self.compression_ratios = []
        self.communication_sizes = []


def model_and_data():
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
    weights = torch.randn(20, 1)
    torch.manual_seed(100 + comm.rank)
    return model, [(x, x @ weights) for x in torch.randn(STEPS, 16, 20)]


def with_all_reducer(name):
    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trainer, msg_queue, msg_queue2 = Trainer(), queue.Queue(), queue.Queue()
    allreducer = AllReducer(
        model.named_parameters(), threading.Lock(), threading.Lock(), compressors[name], sparse=True, density=0.02,
        msg_queue=msg_queue, msg_queue2=msg_queue2, trainer=trainer,
    )  # fmt: skip
    thread = threading.Thread(name="allreducer", target=allreducer.run)
    thread.start()
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for key, parameter in reversed(list(model.named_parameters())):
            allreducer.add_tensor(key, parameter.grad.data)
            msg_queue.put(key)
        while msg_queue2.get() != "DONE":
            time.sleep(0.001)
        for key, parameter in model.named_parameters():
            parameter.grad.data = allreducer.get_result(key)
        optimizer.step()
        losses.append(float(loss.detach()))
    msg_queue.put("STOP")
    thread.join()
    counts = list(allreducer._allreduce_counter.values())
    return model, losses, trainer, counts


def with_distributed_optimizer(name):
    model, data = model_and_data()
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), named_parameters=model.named_parameters(),
        compression=compressors[name], is_sparse=True, err_handler=None, layerwise_times=None, sigma_scale=2.5,
        density=0.02, norm_clip=None, writer=None,
    )  # fmt: skip
    trainer = Trainer()
    optimizer.set_trainer(trainer)
    reducer = optimizer._allreducer
    assert (distributed_optimizer.rank(), distributed_optimizer.size()) == (reducer.rank(), reducer.size())
    assert (reducer.rank(), reducer.size()) == (comm.rank, comm.size)
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.synchronize()
        optimizer.step()
        losses.append(float(loss.detach()))
        if len(losses) % 70 == 0:
            optimizer._allreducer.train_epoch += 1
    assert optimizer._allreducer.train_epoch == 2
    counts = list(optimizer._allreducer._allreduce_counter.values())
    optimizer.stop()
    return model, losses, trainer, counts


def report(model, losses, trainer, counts):
    flat = torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()
    everyone = comm.gather(flat.tobytes())
    return {
        "first": losses[0],
        "last": losses[-1],
        "same": comm.rank == 0 and all(each == everyone[0] for each in everyone),
        "sparsities": trainer.sparsities,
        "ratios": trainer.compression_ratios,
        "sizes": trainer.communication_sizes,
        "elements": flat.size,
        "counts": counts,
        "parameters": flat[:20].tolist(),
    }


found = {
    name: {"reducer": report(*with_all_reducer(name)), "optimizer": report(*with_distributed_optimizer(name))}
    for name in sys.argv[1:]
}
if comm.rank == 0:
    sys.stdout.write(json.dumps(found) + "\n")
