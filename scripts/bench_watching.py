"""What --trace and --inspect add to a step: the same reduction unwatched, traced and inspected, in turns.

    mpiexec -n 2 python scripts/bench_watching.py          # with OMP_NUM_THREADS=1

Times are those of the slowest rank. Differences are formed between neighbours in the turns, and their median is told.
"""

import _project  # noqa: F401 - puts LSTM on the path

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import statistics
import sys
from types import SimpleNamespace

import torch

from bench_allreduce import LSTMAN4_ELEMENTS, make_gradients, timed
from oktopk import GradientAverager, Settings
from oktopk.fields import COUNT
from oktopk_training.command_line import Parser, reading
from oktopk_training.inspecting import Inspector
from oktopk_training.job import program
from oktopk_training.options import transport_of
from oktopk_training.ranks import connect
from oktopk_training.tracing import MOST, Tracer

WARM_UP = 3  # turns that are not counted
SELDOM = 10**9  # steps from one look to the next: none comes
UNWATCHED = "unwatched"


class Watched:
    """A reducer that can be traced and inspected, or left alone."""

    def __init__(self, elements, ranks):
        self.communicator = ranks.new_communicator("reduction")
        parameter = torch.nn.Parameter(torch.zeros(elements))
        settings = Settings(warmup_iters=0)
        self._averager = GradientAverager([("gradient", parameter)], "oktopk", settings, self.communicator)
        self._tracer = Tracer(ranks.rank, {"reduction": self.communicator}, MOST)
        recorder = self.communicator.recorder
        looking, run = ranks.new_communicator("inspection"), SimpleNamespace(inspection=lambda record: None)
        self.ways = {
            UNWATCHED: (None, None),
            "--trace": (recorder, None),
            "--inspect, a step that is looked at": (None, Inspector(1, looking, run)),
            "--inspect, a step between": (None, Inspector(SELDOM, looking, run)),
        }
        self._number = 0

    def seconds(self, way, gradient):
        recorder, inspector = self.ways[way]
        self._averager.view("gradient").copy_(gradient)
        self._averager.inspect(inspector)
        self.communicator.recorder = None
        self._number += 1  # never 0, at which every inspector looks
        try:
            return timed(lambda: self._step(recorder, inspector), self.communicator)
        finally:
            self.communicator.recorder = None

    def _step(self, recorder, inspector):
        self.communicator.recorder = recorder
        if recorder:
            self._tracer.begin_step()
        if inspector:
            inspector.begin_step(self._number)
        self._averager.average()
        step = SimpleNamespace(iter=self._number, epoch=0, phase="sparse", t_iter=0.0)
        if recorder:
            self._tracer.end_step(step)
        if inspector:
            inspector.end_step(step)


@program
def main():
    ranks = connect(transport_of(sys.argv[1:]))
    given = ranks.from_first(_parser().parse_args)
    drawn = SimpleNamespace(recorded=None, seed=0, gradients="normal", elements=given.elements)
    gradients = ranks.together(lambda: make_gradients(drawn, ranks.rank))
    watched = Watched(given.elements, ranks)
    seconds = {way: [] for way in watched.ways}
    for turn in range(WARM_UP + given.turns):
        for way, taken in seconds.items():
            taken.append(watched.seconds(way, gradients[turn % len(gradients)]))
    if ranks.rank:
        return
    print(f"{ranks.size} ranks, {given.elements} elements, oktopk, {given.turns} turns; medians in ms")
    for way, taken in seconds.items():
        more = statistics.median(a - b for a, b in zip(taken[WARM_UP:], seconds[UNWATCHED][WARM_UP:], strict=True))
        said = "" if way == UNWATCHED else f"  {more * 1e3:+8.2f}"
        print(f"{way:38}{statistics.median(taken[WARM_UP:]) * 1e3:8.1f}{said}")


def _parser():
    parser = Parser(description="Time a reduction unwatched, traced and inspected.")
    parser.add_argument(
        "--elements", type=reading(COUNT), default=LSTMAN4_ELEMENTS, metavar="N", help="of the gradient"
    )
    parser.add_argument("--turns", type=reading(COUNT), default=15, metavar="N", help="steps of each kind")
    return parser


if __name__ == "__main__":
    main()
