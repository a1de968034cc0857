"""Reading what runs left behind, for those who draw and compare them. Files may come from anybody."""

import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from .errors import UserError
from .inputs import parse_json, read_json, read_lines
from .run_layout import CONFIG, METRICS

MOST_METRICS = 2**28  # bytes: half a million steps
MOST_CONFIG = 2**20
MOST_FIGURES = 20  # of a validation
MOST_FIGURE = 1e100  # nothing that is measured is larger; scales of plots would be infinite
TIMES = ("t_iter", "t_data", "t_compute", "t_select", "t_comm", "t_apply")
NEEDED = ("loss", "lr")  # a number, or null
OPTIONAL = (
    *("grad_norm", "sparsity", "compression_ratio", "target_k", "selected_local", "selected_global"),
    *("bytes_sent", "bytes_received", *TIMES),
)
COUNTED = {"iter": ("iter", "epoch"), "val": ("epoch",), "epoch": (), "event": ()}
NO_FIGURES = ("kind", "epoch", "loss")  # of a validation
BYTES_PER_ELEMENT = 4


class NotBegun(UserError):
    """There is no step of a run in the folder."""


def read_metrics(folder):
    """The records by kind. The last line may be half written, as the run may still be going; no other may."""
    path = Path(folder) / METRICS
    _insist_on_a_run(path.parent)
    records = {"iter": [], "epoch": [], "val": [], "event": []}
    for kind, record in read_records(path, MOST_METRICS, _checked, "a metrics record"):
        records[kind].append(record)
    if not records["iter"]:
        raise NotBegun(f"{path}: there is no iteration yet; wait for the first step of the run")
    return records


def _insist_on_a_run(folder):
    """People name the folder of all runs, and mistype that of one."""
    if not folder.exists():
        raise NotBegun(f"{folder}: there is no such folder; name that of a run")
    inside = sorted(each.parent for each in folder.glob(f"*/{METRICS}"))
    if inside and not (folder / METRICS).exists():
        raise NotBegun(f"{folder} is no run, but has some in it: name one of them, as {inside[-1]}")


def read_records(path, most, checked, what):
    """What `checked` gives of the JSON of each whole line; where it raises, the line is not `what` it should be."""
    for number, line in _lines(path, most):
        try:
            yield checked(parse_json(line))
        except (ValueError, KeyError, TypeError, OverflowError):
            raise UserError(f"{path}:{number}: this line is not {what}; remove it or choose another run") from None


def _lines(path, most):
    """The whole lines of a file, numbered."""
    try:
        for number, line in enumerate(read_lines(path, most), start=1):
            if line.endswith("\n"):
                yield number, line
    except (FileNotFoundError, NotADirectoryError):
        raise NotBegun(f"{path}: there is no such file; name the folder of a run") from None
    except OSError as error:
        raise UserError(f"{path}: the file cannot be read ({error.strerror}); name the folder of a run") from None


def _checked(record):
    """(kind, what is used of a record). ValueError, KeyError or TypeError unless all of that is there, as numbers."""
    kind = record["kind"]
    return kind, _used(kind, record)


def _used(kind, record):
    for key in COUNTED[kind]:
        if type(record[key]) is not int or not 0 <= record[key] < sys.maxsize:
            raise ValueError(key)
    if kind == "iter":
        figures = {key: _figure(record[key]) for key in NEEDED} | {key: _figure(record.get(key)) for key in OPTIONAL}
        phase = "sparse" if record.get("phase") == "sparse" else "dense"
        own = {"iter": record["iter"], "epoch": record["epoch"], "phase": phase}
        return own | {"skipped": record.get("skipped") is True} | figures
    if kind == "val" and len(record) > len(NO_FIGURES) + MOST_FIGURES:
        raise ValueError(kind)
    if kind == "val":
        return {key: record[key] if key in ("kind", "epoch") else _figure(value) for key, value in record.items()}
    return record


def _figure(value):
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise TypeError(value)
    return None if value is None or abs(float(value)) > MOST_FIGURE else value


def number(value):
    """A figure from a record that nobody has checked, or None."""
    try:
        return _figure(value)
    except (TypeError, OverflowError):
        return None


def read_config(folder):
    """The run's configuration, or None if it cannot be read: a picture needs none."""
    try:
        config = read_json(Path(folder) / CONFIG, MOST_CONFIG)
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def figures_of(config, tested):
    """What the figures of a validation are called: as the run says, or as its metrics have them."""
    try:
        return {key: str(label) for key, label in islice(config["figures"].items(), MOST_FIGURES)}
    except (KeyError, TypeError, AttributeError):
        keys = (key for record in tested for key, value in record.items() if value is not None)
        return {key: key for key in keys if key not in NO_FIGURES}


def title_of(config):
    """What was trained, if the run's configuration says so."""
    try:
        options = config["options"]
        layers = options["hidden_layers"]
        size = f"{layers} layer{'s' if layers > 1 else ''} of {options['hidden_size']}"
        ranks = f"{config['ranks']} rank{'s' if config['ranks'] > 1 else ''} with batch {options['batch_size']}"
        title = f"{options['dnn']} on {options['dataset']}: {size}, {ranks}, lr {options['lr']:g}"
        if not options.get("compression"):
            return title
        return f"{title}\n{options['compressor']} at density {options['density']:g}"
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it."""

    folder: Path
    config: dict
    steps: list  # by number; where one was repeated, the last
    epochs: list
    validations: list
    events: list

    @classmethod
    def read(cls, folder):
        folder = Path(folder).absolute()
        records = read_metrics(folder)
        steps = {record["iter"]: record for record in records["iter"]}
        validations = {record["epoch"]: record for record in records["val"]}
        return cls(
            folder,
            read_config(folder) or {},
            [steps[each] for each in sorted(steps)],
            records["epoch"],
            [validations[each] for each in sorted(validations)],
            records["event"],
        )

    @property
    def options(self):
        options = self.config.get("options")
        return options if isinstance(options, dict) else {}

    @property
    def ranks(self):
        ranks = self.config.get("ranks")
        return ranks if type(ranks) is int and 0 < ranks < sys.maxsize else None

    @property
    def figures(self):
        return figures_of(self.config, self.validations)

    @property
    def method(self):
        """How its gradients were reduced; None if its configuration does not say."""
        if not self.options:
            return None
        return str(self.options.get("compressor")) if self.options.get("compression") else "dense"

    @property
    def summary(self):
        """What the run said at its end; None if it has not come there."""
        return next((each for each in reversed(self.events) if each.get("name") == "summary"), None)

    @cached_property
    def moments(self):
        """When each step ended, in epochs. Of one that is not complete, the length is that of the one before it."""
        lengths = Counter(record["epoch"] for record in self.steps)
        last = self.steps[-1]["epoch"]
        if not any(record.get("epoch") == last for record in self.epochs):
            lengths[last] = max(lengths[last], lengths.get(last - 1, 0))
        places, moments = Counter(), []
        for record in self.steps:
            epoch = record["epoch"]
            places[epoch] += 1
            moments.append(epoch + places[epoch] / lengths[epoch])
        return moments

    @cached_property
    def sparse_phases(self):
        """(begin, end) in epochs of each unbroken row of sparse steps."""
        found, before = [], 0.0
        for moment, record in zip(self.moments, self.steps, strict=True):
            if record["phase"] == "sparse":
                if found and found[-1][1] == before:
                    found[-1] = (found[-1][0], moment)
                else:
                    found.append((before, moment))
            before = moment
        return found

    def of_steps(self, value):
        """(epochs, value) of each step; `value` is a key of its record, or a function of it that may give None."""
        function = value if callable(value) else lambda record: record[value]
        return [(moment, function(record)) for moment, record in zip(self.moments, self.steps, strict=True)]

    def of_validations(self, key):
        return [(record["epoch"] + 1, number(record.get(key))) for record in self.validations]

    def phase(self, phase):
        """Its steps that were not skipped."""
        return [record for record in self.steps if record["phase"] == phase and not record["skipped"]]

    @cached_property
    def dense_bytes(self):
        """What a dense step sends: as measured in this run, or what it would, of so many elements; None if unknown."""
        sent = sorted(record["bytes_sent"] for record in self.phase("dense") if record["bytes_sent"])
        if sent:
            return sent[len(sent) // 2]
        for record in self.phase("sparse"):
            if record["selected_global"] and record["compression_ratio"] and self.ranks:
                elements = record["selected_global"] * record["compression_ratio"]
                return 2 * BYTES_PER_ELEMENT * elements * (self.ranks - 1) / self.ranks
        return None
