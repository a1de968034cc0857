"""Predicts a reduction on machines that are not here, from costs measured on one that is: a table and a picture.

    mpiexec -n 2 python scripts/bench_allreduce.py --compressors all --json dense.json
    mpiexec -n 2 python scripts/bench_allreduce.py --compressors all --density 0.005 --json thin.json
    python scripts/predict.py dense.json thin.json --check 1gbit:lab.json --out prediction.png

A reduction takes as long as its passes over the gradient (so much for each element), its work on entries (so much for
each that it sends or receives), its messages (a latency each) and its bytes (by the bandwidth of a rank's link). The
first two are fitted to the files, all ranks having cores of their own; the last two are counted from the algorithms.
With --check, a file that was measured on links of that rate (in lab.py) is predicted too, and the errors are said.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import _project  # noqa: F401 - puts LSTM on the path
from drawing import picture
from lab import RATE, mbit
from oktopk.fields import COUNT, NOT_NEGATIVE, PATH, POSITIVE, SHARE, TEXT, Kind, up_to
from oktopk.wire import wires
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.inputs import read_json
from oktopk_training.job import program

RANKS = [2**power for power in range(1, 11)]
RATES = (0.1, 1, 10, 25, 200)  # Gbit/s
WORD = 4  # bytes
MOST_SECONDS = 1e6  # of a reduction
GIGABIT = 125e6  # bytes
FRAMES = 1.055  # what goes over a link for each byte of a message: headers of TCP, IP and Ethernet
MOST_OF_A_FILE = 1 << 24
HISTOGRAMS, BINS = 4, 256  # of oktopk's global choice, and 8 bytes each
BUSY = 0.95  # the share of a step that is computing
STAGES = ("merge", "compression", "communication", "demerge")  # of a reduction; there is no device
COMPUTING = ("merge", "compression", "demerge")
NAMES = ("dense", "topkA", "topkSA", "gtopk", "oktopk")
COLOURS = ("#222222", "#d68910", "#7d3c98", "#2e8b57", "#1f5fa8")


@dataclass(frozen=True)
class Task:
    """What is reduced: n elements over so many ranks, k of them chosen, an entry of so many bytes."""

    n: int
    ranks: int
    k: int
    entry: float

    @property
    def share(self):
        return (self.ranks - 1) / self.ranks

    @property
    def rounds(self):
        return math.ceil(math.log2(self.ranks))

    @property
    def union(self):
        """What ranks choose between them, where they choose at random."""
        return self.n * (1 - (1 - self.k / self.n) ** self.ranks)


@dataclass(frozen=True)
class Volume:
    """Of one rank, one way: bytes and messages on the wire, entries that are worked on."""

    bytes: float
    messages: float
    entries: float


def volume(name, task):
    n, p, k, entry, share = task.n, task.ranks, task.k, task.entry, task.share
    if name == "dense":
        return Volume(2 * n * share * WORD, 2 * task.rounds, 0)
    if name == "topkA":
        return Volume(k * (p - 1) * entry, task.rounds + 2, k * p)
    if name == "topkSA":
        gathered = min(task.union * entry, n * WORD)  # sparse or dense, whichever is smaller
        return Volume((k * entry + gathered) * share, p - 1 + task.rounds + 4, k + k + task.union)
    if name == "gtopk":
        return Volume(2 * task.rounds * k * entry, 4 * task.rounds, 3 * k * task.rounds)
    histograms = HISTOGRAMS * BINS * 8 * 2 * share
    return Volume(2 * k * share * entry + histograms, p - 1 + (HISTOGRAMS + 3) * 2 * task.rounds, k + k + k)


@dataclass(frozen=True)
class Costs:
    """Seconds of one rank for each element of the gradient and for each entry."""

    element: float
    entry: float

    def seconds(self, name, task):
        return self.element * task.n + self.entry * volume(name, task).entries


def predicted(name, task, costs, bytes_a_second, latency):
    load = volume(name, task)
    return costs.seconds(name, task) + load.messages * latency + FRAMES * load.bytes / bytes_a_second


# ---- what was measured


def _rated(word):
    """(Gbit/s, path) of a word like 100mbit:lab.json."""
    rate, colon, path = word.partition(":")
    if not colon or not path:
        raise ValueError(word)
    return _gigabits(rate), Path(path)


def _gigabits(rate):
    return mbit(RATE.read(rate)) / 1e3


RATED_FILE = Kind("a rate and a file, as 1gbit:lab.json", _rated)


@dataclass(frozen=True)
class Measured:
    path: Path
    task: Task
    rows: dict
    cores: int
    rate: float | None  # Gbit/s, of the lab's links

    @property
    def crowding(self):
        """How many ranks share a core."""
        return max(1.0, self.task.ranks / self.cores)


def _check(record):
    for name, kind in {"elements": COUNT, "ranks": COUNT, "cores": COUNT, "density": SHARE}.items():
        kind.check(name, record[name])
    if not record["rows"]:
        raise ValueError("nothing was measured")
    for row in record["rows"]:
        TEXT.check("name", row["name"])
        up_to(MOST_SECONDS, POSITIVE).check("median_s", row["median_s"])
        needed = COMPUTING if row["name"] in NAMES else ()
        for stage in {*needed, *(stage for stage in STAGES if stage in row)}:
            up_to(MOST_SECONDS, NOT_NEGATIVE).check(stage, row[stage])


def read(path):
    try:
        record = read_json(path, MOST_OF_A_FILE)
        _check(record)
        wire = wires.get(record["wire"])
        entry = wire.entry_bytes if wire else (8 if record["shares_memory"] else wires["gaps"].entry_bytes)
        n, ranks = record["elements"], record["ranks"]
        task = Task(n, ranks, max(1, int(n * record["density"])), entry)
        rows = {row["name"]: row for row in record["rows"]}
        rate = record.get("link_rate")  # older files have none
        return Measured(path, task, rows, record["cores"], None if rate is None else _gigabits(rate))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{path} is not a file of bench_allreduce.py --json ({error}); measure anew") from None


def of_rate(rate, measured):
    if measured.rate not in (None, rate):
        raise UserError(f"--check: {measured.path} was measured on links of {measured.rate:g} Gbit/s, not of {rate:g}")
    return measured


def fitted(name, files):
    """Costs by least squares over all files that have the compressor: at least two, of other densities."""
    having = [each for each in files if name in each.rows]
    rows = [(each.task.n, volume(name, each.task).entries) for each in having]
    if len(set(rows)) < (1 if name == "dense" else 2):
        raise UserError(f"{name}: give files of two densities that have it")
    taken = [sum(each.rows[name][stage] for stage in COMPUTING) / each.crowding for each in having]
    if name == "dense":
        return Costs(min(took / n for took, (n, _) in zip(taken, rows, strict=True)), 0.0)
    (element, entry), *_ = np.linalg.lstsq(np.array(rows, float), np.array(taken), rcond=None)
    if min(element, entry) < 0:  # noise: all of it is for elements
        element, entry = float(np.mean([took / n for took, (n, _) in zip(taken, rows, strict=True)])), 0.0
    return Costs(float(element), float(entry))


# ---- what comes of it


def errors(costs, checks, latency):
    """Lines: predicted and measured."""
    lines = [
        "| rate | ranks | reduction | predicted, ms | measured, ms | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rate, each in checks:
        for name in (name for name in NAMES if name in each.rows and name in costs):
            crowded = Costs(costs[name].element * each.crowding, costs[name].entry * each.crowding)
            seconds = predicted(name, each.task, crowded, rate * GIGABIT, latency)
            measured = each.rows[name]["median_s"]
            lines.append(
                f"| {rate:g} Gbit/s | {each.task.ranks} | {name} | {seconds * 1e3:.1f} | {measured * 1e3:.1f} | "
                f"{seconds / measured - 1:+.0%} |"
            )
    return lines


def table(costs, task_of, latency):
    """Milliseconds of a reduction, for some numbers of ranks."""
    ranks = [2, 8, 64, 1024]
    lines = [f"| rate | reduction | {' | '.join(f'P = {p}' for p in ranks)} |", "| --- " * (2 + len(ranks)) + "|"]
    for rate in RATES:
        for name in costs:
            cells = [f"{predicted(name, task_of(p), costs[name], rate * GIGABIT, latency) * 1e3:.0f}" for p in ranks]
            lines.append(f"| {rate:g} Gbit/s | {name} | {' | '.join(cells)} |")
    return lines


def busy_at(costs, task_of, latency, computing):
    """The rate from which on computing is 95% of a step; None where no rate is enough."""
    spare = computing * (1 / BUSY - 1)
    lines = [f"| reduction | {' | '.join(f'P = {p}' for p in (2, 8, 64, 1024))} |", "| --- " * 5 + "|"]
    for name in costs:
        cells = []
        for p in (2, 8, 64, 1024):
            load = volume(name, task_of(p))
            left = spare - costs[name].seconds(name, task_of(p)) - load.messages * latency
            cells.append(f"{FRAMES * load.bytes / left / GIGABIT:.2g} Gbit/s" if left > 0 else "never")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def draw(costs, task_of, latency, computing):
    figure, panels = picture.pyplot().subplots(1, len(RATES), figsize=(14, 3.6), sharey=True, layout="constrained")
    for axes, rate in zip(panels, RATES, strict=True):
        for (name, own), colour in zip(costs.items(), COLOURS, strict=False):
            seconds = [computing + predicted(name, task_of(p), own, rate * GIGABIT, latency) for p in RANKS]
            axes.plot(RANKS, seconds, "o-", color=colour, markersize=3, label=name)
        axes.axhline(computing, color="#9aa0a6", linestyle=":", label="computing alone")
        axes.set(xscale="log", yscale="log", title=f"{rate:g} Gbit/s", xlabel="ranks")
        axes.set_xticks(RANKS[::3], [str(p) for p in RANKS[::3]])
        axes.minorticks_off()
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panels[0].set_ylabel("seconds of a step")
    panels[-1].legend(frameon=False, fontsize=8)
    return figure


@program
def main():
    given = _parser().parse_args()
    files = [read(path) for path in given.measured]
    checks = [(rate, of_rate(rate, read(path))) for rate, path in given.check]
    names = [name for name in NAMES if all(name in each.rows for each in files)]
    costs = {name: fitted(name, files) for name in names}
    if not costs:
        raise UserError(f"the files have none of {', '.join(NAMES)} in common; measure with --compressors all")
    n, k = files[0].task.n, files[0].task.k
    latency, computing = given.latency * 1e-6, given.computing

    def task_of(ranks):
        return Task(n, ranks, k, wires[given.wire].entry_bytes)

    parts = {
        f"Milliseconds of a reduction (n = {n:,}, k = {k:,}, wire {given.wire})": table(costs, task_of, latency),
        f"From which rate on a step that computes for {computing:g} s does so 95% of its time": busy_at(
            costs, task_of, latency, computing
        ),
    }
    if checks:
        parts["Predicted and measured"] = errors(costs, checks, latency)
    for title, lines in parts.items():
        print(f"{title}\n\n" + "\n".join(lines) + "\n")
    if given.out:
        picture.write_picture(draw(costs, task_of, latency, computing), given.out, 120)


def _parser():
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", nargs="+", type=reading(PATH), metavar="JSON", help="files of bench_allreduce.py")
    parser.add_argument(
        "--check",
        nargs="*",
        action="extend",
        type=reading(RATED_FILE),
        default=[],
        metavar="RATE:JSON",
        help="what was measured",
    )
    parser.add_argument(
        "--latency", type=reading(POSITIVE), default=30.0, metavar="US", help="of a message; default 30"
    )
    parser.add_argument(
        "--computing",
        type=reading(POSITIVE),
        default=1.0,
        metavar="S",
        help="forward and backward of a step: 1",
    )
    parser.add_argument("--wire", choices=list(wires), default="gaps", help="what entries look like: gaps")
    parser.add_argument("--out", type=reading(PATH), metavar="PNG", help="where to draw the picture")
    return parser


if __name__ == "__main__":
    main()
