"""Steps a minute of training, by how gradients are averaged: ours beside PyTorch's DDP and its communication hooks.

    mpiexec -n 2 python scripts/bench_training.py --hidden-size 256 --hidden-layers 3
    python scripts/lab.py --hosts 2 --rate 100mbit -- python scripts/bench_training.py --json slow.json

Each method trains a copy of the same model on the same batches, all of them in turns: ours over MPI, DDP over Gloo, as
it is without a GPU. All steps are of the phase that lasts: ours after the dense warm-up, PowerSGD once it has
begun. Times are those of whole steps, data in memory; in a lab, "link" is what the busiest host's link carried.
"""

import _project  # noqa: F401 - puts LSTM on the path

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import copy
import json
import socket
import statistics
import time
from contextlib import closing
from itertools import islice

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dl_trainer import MOMENTUM, DLTrainer
from lab import sent_from_here
from oktopk import DistributedOptimizer
from oktopk.fields import COUNT, PATH, TEXT
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, refuse_unwritable
from oktopk_training.job import program
from oktopk_training.options import parse_options
from oktopk_training.ranks import connect

LEARNING_RATE = 1e-4  # nothing is to be learnt here, nor to diverge
WARM_UP = 4  # steps that are not timed; PowerSGD averages the first densely
POWER_SGD_BEGINS = 2
EPOCH = 1  # the batches of the first come in the order of their lengths
MEGABYTE = 1e6


class Method:
    """A net that is trained; `start(net, communicator)` gives it as it is called, and its optimizer."""

    def __init__(self, start, net, communicator):
        self._net, self._optimizer = start(net, communicator)

    def step(self, loss_of):
        self._optimizer.zero_grad()
        loss_of(self._net).backward()
        self._optimizer.step()


def ours(compression, **settings):
    def start(net, communicator):
        is_sparse = compression != "dense"
        how = {"is_sparse": is_sparse, "momentum_correction": is_sparse, "warmup_iters": 0, **settings}
        named = net.named_parameters()
        return net, DistributedOptimizer(_sgd(net), named, compression, communicator=communicator, **how)

    return start


def ddp(hook=None, one_bucket=False):
    """With a hook or without; `hook()` gives its state and the function.

    A hook that sends more once an answer has come needs `one_bucket`: over Gloo, ranks would mix up those of several.
    """

    def start(net, communicator):
        whole = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters()) / MEGABYTE
        wrapped = DistributedDataParallel(net, bucket_cap_mb=whole if one_bucket else None)
        if hook:
            wrapped.register_comm_hook(*hook())
        return wrapped, _sgd(net)

    return start


def _sgd(net):
    return torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def float16():
    return None, default_hooks.fp16_compress_hook


def bfloat16():
    """As torch's own, which refuses CPUs, though Gloo takes the type."""

    def hook(_, bucket):
        narrow = bucket.buffer().div(dist.get_world_size()).bfloat16()
        future = dist.all_reduce(narrow, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    return None, hook


def power_sgd(rank):
    def hook():
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=POWER_SGD_BEGINS)
        return state, powerSGD_hook.powerSGD_hook

    return hook


METHODS = {
    "DDP": ddp(),
    "DDP, float16 hook": ddp(float16),
    "DDP, bfloat16 hook": ddp(bfloat16),
    **{f"DDP, PowerSGD rank {rank}": ddp(power_sgd(rank), one_bucket=True) for rank in (1, 2, 4)},
    **{name: ours(name) for name in ("dense", "topkA", "gtopk", "oktopk")},
    "oktopk, bfloat16": ours("oktopk", wire="gaps16"),
    "auto": ours("auto"),
}


@program
def main():
    ranks = connect()
    given, words = ranks.from_first(_parse)
    methods = ranks.together(lambda: [name for name in METHODS if given.methods is None or name in given.methods])
    ranks.share_cores()
    trainer = ranks.together(lambda: DLTrainer(parse_options([*words, "--device", "cpu"]), ranks.rank, ranks.size))
    with closing(trainer):
        batches = list(islice(trainer.task.batches(EPOCH), WARM_UP + given.steps))
    net = copy.deepcopy(trainer.net)
    ranks.share_model(net)
    _meet_by_gloo(ranks)
    started = {name: Method(METHODS[name], copy.deepcopy(net), ranks.new_communicator(name)) for name in methods}
    rows = measure(started, trainer, batches, ranks)
    dist.destroy_process_group()
    if not ranks.is_first:
        return
    count = sum(parameter.numel() for parameter in net.parameters())
    print(f"{ranks.size} ranks, {count:,} parameters, {given.steps} steps of each method")
    print(table(rows))
    if given.json:
        with atomic_write(given.json) as file:
            json.dump({"ranks": ranks.size, "parameters": count, "rows": rows}, file, indent=1)


def measure(methods, trainer, batches, ranks):
    """Of each, the median seconds of a step on the slowest rank, and bytes on the busiest link."""
    taken, sent = ({name: [] for name in methods} for _ in range(2))
    for number, batch in enumerate(batches):
        for name, method in methods.items():
            ranks.barrier()
            before, began = sent_from_here(), time.perf_counter()
            method.step(lambda net, batch=batch: trainer.task.loss(net, batch)[0])
            ranks.barrier()
            if number >= WARM_UP:
                taken[name].append(time.perf_counter() - began)
                sent[name].append(None if before is None else sent_from_here() - before)
    return [{"name": name, **_slowest(taken[name], sent[name], ranks)} for name in methods]


def _slowest(taken, sent, ranks):
    link = None if None in sent else statistics.median(sent)
    seconds, links = zip(*ranks.everyones((statistics.median(taken), link)), strict=True)
    return {"seconds": max(seconds), "bytes_on_link": None if None in links else max(links)}


def table(rows):
    yardstick = rows[0]
    lines = [f"| | ms a step | steps a minute | times {yardstick['name']} | link, MB a step |", "| --- " * 5 + "|"]
    for row in rows:
        link = "–" if row["bytes_on_link"] is None else f"{row['bytes_on_link'] / MEGABYTE:.2f}"
        seconds = row["seconds"]
        cells = (f"{seconds * 1e3:.0f}", f"{60 / seconds:.1f}", f"{yardstick['seconds'] / seconds:.2f}", link)
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _meet_by_gloo(ranks):
    """Under torchrun they have met."""
    if dist.is_initialized():
        return
    address = ranks.from_first(_free_address)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=ranks.rank, world_size=ranks.size)


def _free_address():
    """Of this host: its name in a lab, where all know it, or of the machine itself."""
    host = socket.gethostname() if sent_from_here() is not None else "127.0.0.1"
    with socket.socket() as free:
        free.bind((host, 0))
        return f"{host}:{free.getsockname()[1]}"


def _parse():
    """What is ours, and the words that the trainer is told."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=reading(TEXT), metavar="NAME|NAME…", help=f"of {' | '.join(METHODS)}; all")
    parser.add_argument("--steps", type=reading(COUNT), default=12, metavar="N", help="steps that are timed: 12")
    parser.add_argument("--json", type=reading(PATH), metavar="PATH", help="write every figure there too")
    given, words = parser.parse_known_args()
    if given.methods is not None:
        given.methods = [name.strip() for name in given.methods.split("|")]
        for name in given.methods:
            if name not in METHODS:
                raise UserError(f"--methods: there is no {name!r}; there are {' | '.join(METHODS)}")
    if given.json:
        refuse_unwritable(given.json)
    parse_options(words)
    return given, words


if __name__ == "__main__":
    main()
