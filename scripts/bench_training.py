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

import json
import statistics
import sys
import time
from contextlib import closing
from itertools import chain, count, islice

import torch.distributed as dist

from dl_trainer import DLTrainer
from lab import sent_from_here
from oktopk.fields import COUNT, PATH, TEXT
from oktopk_training.command_line import Parser, reading
from oktopk_training.files import atomic_write, refuse_unwritable
from oktopk_training.job import program
from oktopk_training.options import parse_options
from oktopk_training.ranks import connect
from training_methods import EPILOG, MEGABYTE, METHODS, How, choice_of, chosen, meet_by_gloo, started

LEARNING_RATE = 1e-4  # nothing is to be learnt here, nor to diverge
WARM_UP = 4  # steps that are not timed; PowerSGD averages the first densely
EPOCH = 1  # and those after it: the batches of the first come in the order of their lengths


class Method:
    """A net that is trained."""

    def __init__(self, net, called, optimizer):
        self._called, self._optimizer = called, optimizer
        self.choice = choice_of(optimizer)

    def step(self, loss_of):
        self._optimizer.zero_grad()
        loss_of(self._called).backward()
        self._optimizer.step()


@program
def main():
    ranks = connect()
    given, words = ranks.from_first(_parse)
    ranks.share_cores()
    trainer = ranks.together(lambda: DLTrainer(parse_options([*words, "--device", "cpu"]), ranks.rank, ranks.size))
    with closing(trainer):
        epochs = map(trainer.task.batches, count(EPOCH))
        batches = list(islice(chain.from_iterable(epochs), WARM_UP + given.steps))
    net = trainer.net
    ranks.share_model(net)
    meet_by_gloo(ranks)
    methods = {name: Method(*started(name, net, ranks, How(LEARNING_RATE, warmup_iters=0))) for name in given.methods}
    rows = measure(methods, trainer, batches, ranks)
    dist.destroy_process_group()
    if not ranks.is_first:
        return
    size = sum(parameter.numel() for parameter in net.parameters())
    print(f"{ranks.size} ranks, {size:,} parameters, {given.steps} steps of each method")
    print(table(rows))
    if given.json:
        with atomic_write(given.json) as file:
            json.dump({"ranks": ranks.size, "parameters": size, "rows": rows}, file, indent=1)


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
        if ranks.is_first:
            print(f"step {number + 1} of {len(batches)} of each", file=sys.stderr, flush=True)
    return [_row(name, method.choice, _slowest(taken[name], sent[name], ranks)) for name, method in methods.items()]


def _row(name, choice, figures):
    return {"name": name, **({"choice": choice.compression} if choice else {}), **figures}


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


def _parse():
    """What is ours, and the words that the trainer is told."""
    parser = Parser(description=__doc__.splitlines()[0], epilog=EPILOG)
    parser.add_argument("--methods", type=reading(TEXT), metavar="NAME|NAME…", help=f"of {' | '.join(METHODS)}; all")
    parser.add_argument("--steps", type=reading(COUNT), default=12, metavar="N", help="steps that are timed: 12")
    parser.add_argument("--json", type=reading(PATH), metavar="PATH", help="write every figure there too")
    given, words = parser.parse_known_args()
    given.methods = chosen(given.methods)
    if given.json:
        refuse_unwritable(given.json)
    parse_options(words)
    return given, words


if __name__ == "__main__":
    main()
