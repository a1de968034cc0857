"""A trace as files: trace.csv, a table to compute with, and trace.json, a timeline for Perfetto (ui.perfetto.dev).

The timeline is in the trace event format; its arguments have the names that PyTorch's profiler (Kineto) gives them, so
that tools for its traces find them. Each rank is a process in it, each communicator a thread.
"""

import csv
import json
from contextlib import suppress
from typing import NamedTuple

from .errors import UserError
from .files import atomic_write, writing
from .inputs import check_file
from .run_layout import TRACE, TRACE_TABLE

PHASES = ("dense", "sparse")
STEP, DROPPED = "step", "dropped"  # rows that are no operations
MICROSECONDS = 1e6
MOST_TABLE = 2**29  # bytes
MOST_RANKS = 2**16
MOST_SECONDS = 1e12


class Record(NamedTuple):
    """An operation of a rank; or a step of its training; or how many records it has dropped, as `number`.

    `iteration` is None between steps, `phase` and `gradient` outside of reductions. `peer` is the root of a bcast, the
    other rank of a send or receive, and None where all take part alike. Bytes are those that the communicator counts;
    `start` is in seconds on the clock of rank 0.
    """

    rank: int
    communicator: str
    operation: str
    number: int = 0  # of the operations of all ranks in this communicator
    iteration: int | None = None
    phase: str | None = None
    gradient: str | None = None
    peer: int | None = None
    dtype: str = ""
    elements_in: int = 0
    elements_out: int = 0
    split_in: tuple = ()  # elements to each rank
    split_out: tuple = ()  # elements from each rank
    sent: int = 0
    received: int = 0
    start: float = 0.0
    seconds: float = 0.0

    @property
    def end(self):
        return self.start + self.seconds


# ---- writing


def set_aside(folder, records):
    """What a run traced before it was ended keeps its words under another name, which it returns; None if it has none.

    The name has the first step of these records, which take its place.
    """
    first = min((record.iteration for record in records if record.iteration is not None), default=0)
    aside = None
    for path in (folder / TRACE_TABLE, folder / TRACE):
        with writing(path), suppress(FileNotFoundError):
            aside = path.rename(path.with_stem(f"{path.stem}.before-{first}"))
    return aside


def write_trace(folder, records, hosts):
    """The records of all ranks, on one clock."""
    with atomic_write(folder / TRACE_TABLE) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Record._fields)
        table.writerows([_cell(value) for value in record] for record in records)
    with atomic_write(folder / TRACE) as file:
        _write_timeline(file, records, hosts)


def _cell(value):
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:.9f}" if isinstance(value, float) else value


def _write_timeline(file, records, hosts):
    shown = [record for record in records if record.operation != DROPPED]
    base = min((record.start for record in shown), default=0.0)
    threads = {name: place for place, name in enumerate(dict.fromkeys(["", *(each.communicator for each in shown)]))}
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "distributedInfo": {"world_size": len(hosts), "hosts": hosts},
        "droppedRecords": {record.rank: record.number for record in records if record.operation == DROPPED},
        "traceEvents": [],
    }
    file.write(json.dumps(head)[: -len("]}")] + "\n")
    events = [*_names(hosts, threads), *(_event(record, base, threads, len(hosts)) for record in shown)]
    file.write(",\n".join(json.dumps(event, allow_nan=False) for event in events))
    file.write("\n]}\n")


def _names(hosts, threads):
    for rank, host in enumerate(hosts):
        yield _said("process_name", rank, 0, name=f"rank {rank} on {host}")
        yield _said("process_sort_index", rank, 0, sort_index=rank)
        for name, thread in threads.items():
            yield _said("thread_name", rank, thread, name=name or "steps")


def _said(what, rank, thread, **arguments):
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "ts": 0, "args": arguments}


def _event(record, base, threads, ranks):
    event = {
        "ph": "X",
        "cat": "user_annotation" if record.operation == STEP else "cpu_op",
        "name": f"step {record.iteration}" if record.operation == STEP else record.operation,
        "pid": record.rank,
        "tid": threads[record.communicator],
        "ts": round((record.start - base) * MICROSECONDS, 3),
        "dur": round(record.seconds * MICROSECONDS, 3),
    }
    about = {"iteration": record.iteration, "phase": record.phase, "merged gradient": record.gradient}
    return {**event, "args": about if record.operation == STEP else {**_arguments(record, ranks), **about}}


def _arguments(record, ranks):
    """By the names of Kineto's collectives."""
    ends = {"send": ("Src Rank", "Dst Rank"), "receive": ("Dst Rank", "Src Rank")}.get(record.operation)
    return {
        "Collective name": record.operation,
        "dtype": record.dtype,
        "In msg nelems": record.elements_in,
        "Out msg nelems": record.elements_out,
        "In split size": list(record.split_in),
        "Out split size": list(record.split_out),
        "Group size": ranks,
        "Process Group Name": record.communicator,
        "Process Group Ranks": list(range(ranks)),
        "Rank": record.rank,
        "Seq": record.number,
        **(dict(zip(ends, (record.rank, record.peer), strict=True)) if ends else {}),
        **({"Root Rank": record.peer} if record.operation == "bcast" else {}),
        "Bytes sent": record.sent,
        "Bytes received": record.received,
    }


# ---- reading


def read_trace(folder):
    """The records of a run; none where it was not traced. The file may come from anybody."""
    path = folder / TRACE_TABLE
    try:
        check_file(path, MOST_TABLE)
        with open(path, encoding="utf-8", newline="") as file:
            table = csv.reader(file)
            if next(table, None) != list(Record._fields):
                raise ValueError
            return [_record(row) for row in table]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"{path}: the file cannot be read ({error.strerror}); remove it") from None
    except (ValueError, csv.Error):
        raise UserError(f"{path}: this is no trace of a run; remove it") from None


def _record(row):
    rank, communicator, operation, number, iteration, phase, gradient, peer, dtype, *counts = row
    elements_in, elements_out, split_in, split_out, sent, received, start, seconds = counts
    record = Record(
        *(int(rank), communicator, operation, int(number), _or_none(iteration), phase or None, gradient or None),
        *(_or_none(peer), dtype, int(elements_in), int(elements_out), _split(split_in), _split(split_out)),
        *(int(sent), int(received), float(start), float(seconds)),
    )
    fits = 0 <= record.rank < MOST_RANKS and abs(record.start) < MOST_SECONDS and 0 <= record.seconds < MOST_SECONDS
    told = record.phase in (PHASES if operation == STEP else (*PHASES, None))
    if not told or (operation == STEP and record.iteration is None):
        raise ValueError(row)
    if not fits or min(record.sent, record.received) < 0 or max(record.sent, record.received) >= 2**63:
        raise ValueError(row)
    return record


def _or_none(word):
    return int(word) if word else None


def _split(words):
    return tuple(map(int, words.split()))
