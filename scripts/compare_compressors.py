"""Train with each compressor from the same seeds, and put what came of it side by side: a table and a picture.

    python scripts/compare_compressors.py --compressors dense oktopk --epochs 20 --seeds 0 1 2
    python scripts/compare_compressors.py --epochs 12 [-- options of LSTM/main_trainer.py]

The runs are those of exp_configs/quickstart.conf, with the warm-up of --warmup-iters steps. They lie in --out, a folder
for each; one that is there already and went far enough is read and not repeated, so a comparison that was broken off is
taken up by the same command. Of a longer run, what it had after --epochs is compared.
"""

if __name__ == "__main__":
    import _project
    from oktopk_training.job import begin

    begin()

import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import _project
from oktopk import Settings, compressors
from oktopk.fields import COUNT, NATURAL, PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, make_folder
from oktopk_training.inputs import read_json
from oktopk_training.job import program
from oktopk_training.options import COMPRESSOR
from oktopk_training.run_layout import CONFIG, LOG
from oktopk_training.runs import read_metrics

JOB_SCRIPT = _project.ROOT / "LSTM" / "lstm_oktopk.sh"
WITH_PARENT = _project.ROOT / "scripts" / "with_parent.py"
MOST_OF_A_CONFIG = 1 << 20  # bytes
VAL_INTERVAL = 4  # epochs: 12 and 20 are among those that are validated
OWN = ("--compression", "--compressor", "--seed", "--max-epochs", "--run-dir", "--val-interval", "--warmup-iters")
TERMINATED_STATUS = 143  # as a shell reports a process that SIGTERM ended
UNFINISHED = ".unfinished"
TABLE, PICTURE = "comparison.md", "comparison.png"


class Outcome(NamedTuple):
    """What a run had reached after so many epochs."""

    validations: list  # (epoch, WER, CER, loss), epochs counted from 1
    selected: float | None  # entries of the result, in units of k; None where nothing was sparse
    sent: float  # bytes of a step that rank 0 sent, in the run's last phase


@program
def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))
    given = _parser().parse_args()
    for word in given.options:
        if word.partition("=")[0].replace("_", "-") in OWN:
            raise UserError(f"{word} behind --: a comparison sets this option for its runs; leave it out")
    names = list(dict.fromkeys(given.compressors))
    out = make_folder(given.out.absolute())
    words = ["--val-interval", VAL_INTERVAL, "--warmup-iters", given.warmup_iters, *given.options]
    outcomes = {name: [] for name in names}
    for seed in dict.fromkeys(given.seeds):  # all compressors of one seed first: that is a comparison already
        for name in names:
            run = find_run(out, name, seed, given.epochs, words) or train(out, name, seed, given.epochs, words)
            outcome = read_outcome(run, given.epochs)
            epoch, wer, cer, loss = outcome.validations[-1]
            print(f"{name}, seed {seed}, {epoch} epochs: WER {wer:.3f}, CER {cer:.3f}, loss {loss:.2f}", flush=True)
            if compressors[name].is_sparse and outcome.selected is None:
                print(
                    f"warning: {name} has sent nothing sparse yet: raise --epochs or lower --warmup-iters", flush=True
                )
            outcomes[name].append(outcome)
    table = "\n".join(rows(outcomes)) + "\n"
    with atomic_write(out / TABLE) as file:
        file.write(table)
    figure = draw(outcomes)
    with atomic_write(out / PICTURE, "wb") as file:
        figure.savefig(file, format="png", dpi=150)
    print(f"\n{table}\n{out / TABLE}\n{out / PICTURE}")


# ---- runs


def find_run(out, name, seed, epochs, words):
    """The folder of a finished run of at least so many epochs with these options; None if there is none."""
    found = []
    for folder in out.glob(f"{name}-seed{seed}-*epochs"):
        went = re.fullmatch(r".*-(\d+)epochs", folder.name)
        if went and (int(went[1]) == epochs or (int(went[1]) > epochs and epochs % VAL_INTERVAL == 0)):
            found.append((int(went[1]), folder))
    if not found:
        return None
    went, folder = min(found)
    if options_of(folder)[:-2] != _options(name, _words(seed, went, words)):  # the last two are its folder
        raise UserError(f"{folder} holds a run with other options than this comparison's; choose another --out")
    return folder


def options_of(run):
    """What main_trainer.py was given."""
    try:
        return list(read_json(run / CONFIG, MOST_OF_A_CONFIG)["command"][1:])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{run} is no run that finished here; remove it or choose another --out") from None


def _words(seed, epochs, words):
    return [str(word) for word in ("--seed", seed, *words, "--max-epochs", epochs)]


def _options(name, words):
    """All options that main_trainer.py gets, with those of the configuration and of the user's variables."""
    done = subprocess.run(**_job(name, words, DRY_RUN="1"), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise UserError(f"{name}: the job script ended with status {done.returncode}; mend that first")
    line = shlex.split(done.stdout)
    return line[next(place for place, word in enumerate(line) if word.endswith("main_trainer.py")) + 1 :]


def _job(name, words, **variables):
    surroundings = {**os.environ, **_own_python(), "config": "quickstart", "compressor": name, **variables}
    return {"args": [sys.executable, WITH_PARENT, str(os.getpid()), "bash", JOB_SCRIPT, *words], "env": surroundings}


def train(out, name, seed, epochs, words):
    """Run the job script, so that this works wherever that does. The folder has its name once the run is finished."""
    folder = out / f"{name}-seed{seed}-{epochs}epochs"
    unfinished = folder.with_name(folder.name + UNFINISHED)
    if unfinished.exists():
        shutil.rmtree(unfinished)
    print(f"{name}, seed {seed}: training for {epochs} epochs (log: {unfinished / LOG})", flush=True)
    started = time.perf_counter()
    job = subprocess.Popen(
        **_job(name, [*_words(seed, epochs, words), "--run-dir", unfinished]), stdout=subprocess.DEVNULL
    )
    try:
        status = job.wait()
    finally:
        job.terminate()  # nothing that has ended
        job.wait()
    if status != 0:
        raise UserError(
            f"{name}, seed {seed}: the run ended with status {status} after {time.perf_counter() - started:.0f} s; "
            "finished runs are kept, so the same command goes on from here"
        )
    unfinished.rename(folder)
    return folder


def _own_python():
    """The job script enters an environment if none is active; the one that this runs in counts as active."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {"PATH": path, "VIRTUAL_ENV": os.environ.get("VIRTUAL_ENV", sys.prefix)}


def read_outcome(run, epochs):
    records = read_metrics(run)
    validations = [
        (record["epoch"] + 1, *(record.get(key) for key in ("wer", "cer", "loss")))
        for record in records["val"]
        if record["epoch"] < epochs
    ]
    if not validations or validations[-1][0] != epochs:
        raise UserError(f"{run} was not validated after {epochs} epochs; remove it or choose another --out")
    steps = [record for record in records["iter"] if record["epoch"] < epochs and not record["skipped"]]
    if not steps or any(None in validation for validation in validations):
        raise UserError(f"{run} diverged: a WER, CER or loss of it is no number; choose other options, or leave it out")
    last = [record for record in steps if record["phase"] == steps[-1]["phase"]]
    selected = [
        r["selected_global"] / r["target_k"] for r in last if r["target_k"] and r["selected_global"] is not None
    ]
    return Outcome(
        validations,
        statistics.mean(selected) if selected else None,
        statistics.mean(record["bytes_sent"] or 0 for record in last),
    )


# ---- table and picture


def rows(outcomes):
    """Markdown. Of several seeds: the mean, and from the lowest to the highest."""
    yield "| compressor | seeds | WER | CER | loss | entries of the result / k | sent per step, kB |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, runs in outcomes.items():
        _, wers, cers, losses = zip(*(run.validations[-1] for run in runs), strict=True)
        selected = [run.selected for run in runs if run.selected is not None]
        cells = (
            f"`{name}`",
            str(len(runs)),
            _spread(wers),
            _spread(cers),
            f"{statistics.mean(losses):.2f}",
            f"{statistics.mean(selected):.2f}" if selected else "",
            f"{statistics.mean(run.sent for run in runs) / 1e3:.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def _spread(values):
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def draw(outcomes):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    colours = pyplot.get_cmap("tab10").colors
    alike = defaultdict(list)  # those that choose the same entries learn the same: one curve for them
    for name, runs in outcomes.items():
        alike[tuple(tuple(run.validations) for run in runs)].append(name)
    for place, names in enumerate(alike.values()):
        runs, name = outcomes[names[0]], ", ".join(names)
        curves = [[wer for _, wer, _, _ in run.validations] for run in runs]
        epochs = [epoch for epoch, *_ in runs[0].validations]
        colour = colours[place % len(colours)]
        axes.plot(epochs, [statistics.mean(wers) for wers in zip(*curves, strict=True)], "o-", color=colour, label=name)
        if len(curves) > 1:
            lowest, highest = (list(map(of, zip(*curves, strict=True))) for of in (min, max))
            axes.fill_between(epochs, lowest, highest, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("epochs")
    axes.set_ylabel("WER (validation)")
    if all(wer > 0 for runs in outcomes.values() for run in runs for _, wer, _, _ in run.validations):
        axes.set_yscale("log")  # what is left at the end differs by parts of itself
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.legend(frameon=False)
    return figure


def _parser():
    parser = Parser(description="Train with each compressor from the same seeds, and compare what came of it.")
    add = parser.add_argument
    every = ["dense", *(name for name, it in compressors.items() if it.is_sparse and it.name == name)]
    add(
        "--compressors", nargs="+", type=reading(COMPRESSOR), default=every, metavar="NAME", help="in the table's order"
    )
    add("--epochs", type=reading(COUNT), default=12, metavar="N", help="that each run trains")
    add(
        "--seeds",
        nargs="+",
        type=reading(NATURAL),
        default=[0],
        metavar="N",
        help="each compressor runs once with each",
    )
    add(
        "--warmup-iters",
        type=reading(NATURAL),
        default=Settings.warmup_iters,
        metavar="N",
        help="dense steps before the first sparse one",
    )
    add(
        "--out",
        type=reading(PATH),
        default=_project.ROOT / "runs" / "compare",
        metavar="FOLDER",
        help="where the runs lie",
    )
    add("options", nargs="*", default=[], metavar="-- OPTION", help="more options of LSTM/main_trainer.py")
    return parser


if __name__ == "__main__":
    main()
