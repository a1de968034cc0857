"""Which runs an experiment consists of: every combination of the values, and each of them with every seed."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from oktopk.algorithms.oktopk import OkTopk
from oktopk.choosers import ExactTopK, GaussianThreshold, ReusedThreshold
from oktopk.registry import find_compressor
from oktopk_training.command_line import hyphenated
from oktopk_training.errors import UserError
from oktopk_training.options import Options, parse_options

LONGEST_NAME = 255  # bytes: of a file or a folder
# Options that are not the user's to give here, and what is.
TAKEN = {
    "--seed": "--seeds N, which is the experiment's own option",
    "--run-dir": "--out FOLDER: each run has a folder of its own in it",
    "--resume": "the same command again: it goes on where it stopped",
    "--nworkers": "the number of ranks in front of the command: nworkers=4",
    "--nwpernode": "the number of ranks of a node in front of the command: nwpernode=4",
}


@dataclass(frozen=True, eq=False)
class Planned:
    """A run: the values that make it another than its neighbours, and all that main_trainer.py is told."""

    values: dict
    seed: int
    words: list
    options: Options

    @property
    def cell(self):
        """What the runs of all seeds have in common."""
        return named(self.values)

    @property
    def name(self):
        """Of its folder."""
        return re.sub(r"[^\w.+,=-]", "-", named({**self.values, "seed": self.seed}))

    @property
    def epochs(self):
        return self.options.max_epochs


def named(values):
    return ",".join(f"{name}={value}" for name, value in values.items())


def plan(varied, seeds, given, words_of: Callable):
    """The runs, all cells of one seed first, for that is a comparison already. Wrong options are a UserError.

    `varied` maps options to words for their values; `given` are more words, and `words_of` makes of them all that
    main_trainer.py is told. What makes no difference to a run is left out of it, and runs that are the same are one.
    """
    _refuse_taken(varied, given)
    told, runs = words_of(given), {}
    for seed, values in product(range(seeds), product(*varied.values())):
        cell = dict(zip(varied, values, strict=True))
        all_of_it = _parsed([*told, *_words(cell, seed)])
        kept = {name: value for name, value in cell.items() if matters(name, all_of_it)}
        own = _words(kept, seed)
        options = _parsed([*told, *own])
        what = (seed, *((name, _meant(name, options)) for name in kept))
        runs.setdefault(what, Planned(kept, seed, [*given, *own], options))
    return _with_names_of_their_own(list(runs.values()))


def _words(values, seed):
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**values, "seed": seed}.items()]


def _refuse_taken(varied, given):
    words = [hyphenated(word).partition("=")[0] for word in given]
    options = [f"--{name.replace('_', '-')}" for name in varied]
    for option in [*words, *options]:
        if option in TAKEN:
            raise UserError(f"{option}: give {TAKEN[option]}")
    for option in options:
        if option in words:
            raise UserError(f"{option} is varied and given behind -- as well; leave out one of the two")


def _parsed(words):
    try:
        return parse_options(words)
    except UserError as error:
        raise UserError(f"LSTM/main_trainer.py would refuse this: {error}") from None


def _with_names_of_their_own(runs):
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            raise UserError(f"two runs would have the folder {name}; vary options whose values differ in letters")
        if len(name.encode()) > LONGEST_NAME:
            raise UserError(f"a run would have the folder {name[:40]}…, a name longer than {LONGEST_NAME} bytes")
    return runs


# ---- which options make a difference


def matters(name, options):
    """Whether an option can change such a run. Of one that is not known here, it is believed."""
    return name not in CONCERNS or CONCERNS[name](options)


def _method(options):
    return find_compressor(options.compressor if options.compression else "none")


def _meant(name, options):
    """The value, where words differ that say the same: 0.01 and 1e-2, none and dense."""
    return _method(options).name if name == "compressor" else options.flat().get(name)


def _is_sparse(options):
    return options.is_sparse


def _reuses_thresholds(options):
    chooser = _method(options).chooser
    return chooser is ReusedThreshold or (chooser is ExactTopK and options.settings.threshold == "reuse")


CONCERNS = {
    "compressor": lambda options: options.compression,
    **dict.fromkeys(("density", "warmup_iters", "ramp_iters", "wire", "exclude", "exclude_below"), _is_sparse),
    "momentum_correction": _is_sparse,  # densely, the mean of momentums is the momentum of the mean
    "sigma_scale": lambda options: _method(options).chooser is GaussianThreshold,
    "threshold": lambda options: _method(options).chooser is ExactTopK,
    "threshold_period": _reuses_thresholds,
    "region_period": lambda options: _method(options).algorithm is OkTopk,
    "ranks_per_node": lambda options: options.settings.hierarchical,
}
