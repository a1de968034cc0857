"""Times the compressors side by side on gradients of the real size, all of them interleaved in one run.

    mpiexec -n 2 python scripts/bench_allreduce.py --compressors dense,oktopk --iters 11
    torchrun --nproc-per-node 2 scripts/bench_allreduce.py --compressors dense,oktopk --iters 11

Absolute times do not carry to another machine; the ratio to the transport's own allreduce (MPI's, or that of
torch.distributed; in place, in a buffer that is kept, then scaled) within one run does. Set OMP_NUM_THREADS=1 where
ranks share cores. In a lab (lab.py), "link" is what the link of the busiest host carried away, headers included.
"""

import _project  # noqa: F401 - puts LSTM on the path

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import json
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from lab import rate_here, sent_from_here
from oktopk import GradientAverager, Settings, compressors
from oktopk.fields import COUNT, NATURAL, PATH, TEXT, Checked, Kind, choice, option
from oktopk.operations import ops_for
from oktopk.transports import AUTO
from oktopk_training.command_line import Parser, add_options, hyphenated
from oktopk_training.errors import SharedError, UserError
from oktopk_training.files import atomic_write, refuse_unwritable
from oktopk_training.job import program
from oktopk_training.options import transport_of
from oktopk_training.ranks import connect
from oktopk_training.recorded import read_recorded, recorded_ranks
from predict import STAGES
from surroundings import name_of

LSTMAN4_ELEMENTS = 27_569_568
LAYERS = 20
GRADIENTS_IN_TURN = 3
WORD = 4  # bytes


class Contender:
    """One compressor behind a reducer of its own, driven as a training loop drives it."""

    def __init__(self, name, elements, settings, communicator):
        self.name = name
        self.k = max(1, int(elements * settings.density))
        parameter = torch.nn.Parameter(torch.from_numpy(np.zeros(elements, np.float32)))  # never written: no memory
        self.averager = GradientAverager([("gradient", parameter)], name, settings, communicator)
        self.gradient = self.averager.view("gradient")
        self.records = []

    def iterate(self, gradient, record):
        self.gradient.copy_(gradient)
        before = sent_from_here()
        seconds = timed(self.averager.average, self.averager.communicator)
        if self.averager.last_step.skipped:
            raise SharedError(
                "the gradients are so long that their sum is not finite, and nothing reduces those: give others"
            )
        if record:
            link = {} if before is None else {"bytes_on_link": sent_from_here() - before}
            self.records.append({"wall": seconds, **link, **asdict(self.averager.last_step)})


class DenseAtItsBest:
    """What there is to beat: the transport's allreduce in place, in a buffer that is kept, then scaled."""

    def __init__(self, options, communicator):
        self.name = name_of(communicator)
        self.buffer = np.empty(options.elements, np.float32)
        self.communicator, self.sum_up = communicator, SUMS[self.name]
        self.records = []

    def iterate(self, gradient, record):
        self.buffer[:] = gradient.numpy()
        seconds = timed(self.reduce, self.communicator)
        if record:
            self.records.append({"wall": seconds})

    def reduce(self):
        self.sum_up(self.buffer)
        self.buffer *= np.float32(1 / self.communicator.size)


def mpi_sum(buffer):
    from mpi4py import MPI

    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, buffer)


def torch_sum(buffer):
    torch.distributed.all_reduce(torch.from_numpy(buffer))


SUMS = {"mpi": mpi_sum, "torch": torch_sum, "alone": lambda buffer: None}  # nothing of ours is around them


def timed(operation, communicator):
    """Seconds until the slowest rank is through."""
    highest(0, communicator)  # nobody starts before all have come
    start = time.perf_counter()
    operation()
    return highest(time.perf_counter() - start, communicator)


def highest(value, communicator):
    """Of the values of all ranks."""
    values = torch.tensor([value], dtype=torch.float64)
    communicator.allreduce(values, op="max")
    return values.item()


def make_gradients(options, rank):
    """A few gradients of this rank, taken in turn: fresh ones would cost more time than is measured."""
    if options.recorded:
        return read_recorded(options.recorded, rank)
    rng = np.random.default_rng([options.seed, rank])
    gradients = []
    for _ in range(GRADIENTS_IN_TURN):
        if options.gradients == "laplace":
            values = rng.exponential(1e-2, options.elements).astype(np.float32)
            values *= rng.integers(0, 2, options.elements, dtype=np.int8) * np.float32(2) - 1
        else:
            values = rng.standard_normal(options.elements, dtype=np.float32)
            values *= np.float32(1e-2)
        if options.gradients == "layered":  # layers differ in scale, and some have gradients in few rows only
            for i, layer in enumerate(np.array_split(values, LAYERS)):
                layer *= np.float32(10.0 ** -(i % 4))
                if i % 3 == 0:
                    layer.reshape(-1)[: layer.size * 9 // 10] = 0
        gradients.append(torch.from_numpy(values))
    return gradients


def peak_buffers(make, gradient):
    """Run a contender alone; its peak memory beside its gradient, in float32 buffers of the gradient's size."""
    before = _memory_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts anew
    contender = make()
    for _ in range(3):
        contender.iterate(gradient, record=False)
    extra = _memory_kib("VmHWM") - before
    return contender, extra * 1024 / (4 * gradient.numel()) - 1


def _memory_kib(field):
    if not Path("/proc/self/status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(status[field].split()[0])


def summarise(contender, buffers, baseline_median, comm):
    """One row of the table: the figures of the busiest or slowest rank."""
    records = contender.records
    seconds = [record["wall"] for record in records]
    row = {
        "name": contender.name,
        "median_s": statistics.median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "peak_buffers": highest(buffers, comm),
    }
    row["ratio"] = row["median_s"] / baseline_median if baseline_median else 1.0
    if isinstance(contender, Contender):
        for key in ("bytes_sent", "bytes_received"):
            row[key] = int(highest(max(record[key] for record in records), comm))
        if "bytes_on_link" in records[0]:
            row["bytes_on_link"] = highest(statistics.median(record["bytes_on_link"] for record in records), comm)
        for stage in STAGES:
            row[stage] = highest(statistics.median(r["seconds"][stage] for r in records), comm)
        if records[0]["phase"] == "sparse":
            for key in ("selected_local", "selected_global"):
                share = [record[key] / contender.k for record in records]
                row[f"{key}_per_k"] = [-highest(-min(share), comm), highest(max(share), comm)]
    return row


def table(rows, k):
    """The rows for people: times in milliseconds, traffic in words of 4 bytes, as a multiple of k; yardstick first."""
    ratio = f"to {rows[0]['name']}"
    widths = (16, 9, 8, 8, max(8, len(ratio) + 2), 17, 17, 9, 10, 9, 8, 13, 15, 8, 8)
    head = (
        ("", "median", "min", "max", "ratio", "chosen/k", "result/k", "sent", "received", "link", *STAGES, "memory"),
        (
            "compressor",
            "ms",
            "ms",
            "ms",
            ratio,
            *["min .. max"] * 2,
            *["words/k"] * 2,
            "bytes/k",
            *["ms"] * 4,
            "buffers",
        ),
    )
    body = [
        (
            row["name"],
            *(f"{row[key] * 1e3:.1f}" for key in ("median_s", "min_s", "max_s")),
            f"{row['ratio']:.2f}",
            *(_span(row.get(f"{key}_per_k")) for key in ("selected_local", "selected_global")),
            *(f"{row[key] / WORD / k:.3f}" if key in row else "-" for key in ("bytes_sent", "bytes_received")),
            f"{row['bytes_on_link'] / k:.3f}" if "bytes_on_link" in row else "-",
            *(f"{row[stage] * 1e3:.1f}" if stage in row else "-" for stage in STAGES),
            f"{row['peak_buffers']:.2f}",
        )
        for row in rows
    ]
    lines = []
    for first, *others in (*head, *body):
        cells = [f"{cell.removeprefix('t_'):>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(f"{first:{widths[0]}}{''.join(cells)}")
    return "\n".join(lines)


def _span(limits):
    return f"{limits[0]:.4f}..{limits[1]:.4f}" if limits else "-"


RECORDED = "recorded:"
DISTRIBUTIONS = ("normal", "laplace", "layered")
GRADIENTS = Kind(
    f"one of {', '.join(DISTRIBUTIONS)}, or {RECORDED}FOLDER",
    str,
    lambda word: word in DISTRIBUTIONS or (word.startswith(RECORDED) and word != RECORDED),
    metavar=f"{'|'.join(DISTRIBUTIONS)}|{RECORDED}FOLDER",
)


@dataclass(frozen=True)
class Measuring(Checked):
    compressors: str = option("dense,oktopk", TEXT, "names of the registry, or 'all'")
    elements: int = option(LSTMAN4_ELEMENTS, COUNT, "of the gradient; recorded ones have their own")
    iters: int = option(11, COUNT, "measured iterations")
    warmup: int = option(3, NATURAL, "iterations before them")
    gradients: str = option("normal", GRADIENTS, "how they are distributed, or a folder of recorded ones")
    seed: int = option(0, NATURAL, "of the gradients")
    transport: str = option(AUTO, choice(AUTO, *sorted(SUMS)), "how ranks reach each other")
    json: Path | None = option(None, PATH, "write every figure there too")

    @property
    def recorded(self):
        return Path(self.gradients.removeprefix(RECORDED)) if self.gradients.startswith(RECORDED) else None

    def names(self):
        if self.compressors == "all":
            return ["dense", *(name for name, each in compressors.items() if each.name == name != "none")]
        names = self.compressors.split(",")
        for name in names:
            if name not in compressors:
                raise UserError(f"--compressors: no compressor is called {name!r}; there are {', '.join(compressors)}")
        return names


def parse_arguments():
    parser = Parser(description=__doc__.splitlines()[0])
    add_options(parser.add_argument_group("measuring"), Measuring)
    add_options(parser.add_argument_group("the reduction"), Settings)
    given = vars(parser.parse_args([hyphenated(word) for word in sys.argv[1:]]))
    own = {name: given.pop(name) for name in list(given) if hasattr(Measuring, name)}
    options = Measuring(**own)
    options.names()
    if options.json:
        refuse_unwritable(options.json)
    return options, Settings(**{**given, "warmup_iters": 0})  # measured is what comes after the warm-up


@program
def main():
    ranks = connect(transport_of(sys.argv[1:]))
    options, settings = ranks.from_first(parse_arguments)
    comm = ranks.new_communicator("reduction")
    ops_for("cpu")  # what it loads is not to count as a contender's memory
    gradients = ranks.together(lambda: make_gradients(options, comm.rank))
    options = replace(options, elements=gradients[0].numel())
    ranks.insist_on_the_same("numbers of elements", options.elements)
    if options.recorded and ranks.is_first and len(recorded_ranks(options.recorded)) < comm.size:
        sys.stderr.write(f"warning: fewer than {comm.size} ranks recorded, so some have the gradients of others\n")
    contenders = [peak_buffers(lambda: DenseAtItsBest(options, comm), gradients[0])]
    contenders += [
        peak_buffers(lambda name=name: Contender(name, options.elements, settings, comm), gradients[0])
        for name in options.names()
    ]
    for iteration in range(options.warmup + options.iters):
        for contender, _ in contenders:
            gradient = gradients[iteration % len(gradients)]
            contender.iterate(gradient, record=iteration >= options.warmup)
    baseline = statistics.median(record["wall"] for record in contenders[0][0].records)
    rows = [summarise(contender, buffers, baseline, comm) for contender, buffers in contenders]
    if comm.rank:
        return
    print(
        f"{comm.size} ranks, {options.elements} elements, density {settings.density}, {options.gradients} gradients, "
        f"threshold {settings.threshold}, {options.iters} iterations, {torch.get_num_threads()} threads a rank, "
        f"{os.cpu_count()} cores, {', '.join(map(' '.join, comm.versions().items())) or 'no transport'}"
    )
    print(table(rows, max(1, int(options.elements * settings.density))))
    if options.json:
        said = {**asdict(options), **asdict(settings), "json": None, "python": platform.python_version()}
        where = {"transport": name_of(comm), "shares_memory": comm.shares_memory, "cores": os.cpu_count()}
        where["link_rate"] = rate_here()
        record = {"ranks": comm.size, **said, **where, "rows": rows}
        with atomic_write(options.json) as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
