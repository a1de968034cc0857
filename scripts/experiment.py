"""Train every combination of some options, with several seeds, and put what came of it side by side.

    python scripts/experiment.py --vary compressor=dense,oktopk --vary density=0.005,0.02 --seeds 3 -- --max-epochs 20
    python scripts/experiment.py --vary lr=0.005,0.01 --plan

The runs are those of exp_configs/quickstart.conf; what stands behind -- are options of LSTM/main_trainer.py for all of
them. Each has a folder of its own in --out. One that is finished is not repeated, and one that was broken off goes on,
so the same command takes an experiment up where it stopped; with more seeds, values or epochs, it makes it larger. One
that fails leaves the others alone, and is tried again the next time. At the end: a table of means (table.md), a line
for each run (runs.csv) and a page on all of them (report.html).
"""

if __name__ == "__main__":
    import _project
    from oktopk_training.job import begin

    begin()

import argparse
import os
import signal
import statistics
import sys
from contextlib import contextmanager

import _project
from drawing.page import grid, section, table
from drawing.plot import draw
from experiments import outcomes, running, tables
from experiments.plan import plan
from oktopk.fields import COUNT, NOT_NEGATIVE, PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, claim, make_folder
from oktopk_training.job import program
from oktopk_training.run_layout import REPORT
from report import MOST_RUNS, write_report

# Unless they are given: 12 epochs, and 20, are among those that are validated, and most of them are sparse.
USUAL = ("--max-epochs", "12", "--val-interval", "4", "--warmup-iters", "128")
TERMINATED_STATUS = 143  # as a shell reports a process that SIGTERM ended
FAILED_STATUS = 1
TABLE, RUNS = "table.md", "runs.csv"
MINUTE, HOUR = 60, 3600  # seconds


@program
def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))
    given = _parse()
    varied = _together(given.vary)
    runs = plan(varied, given.seeds, [*USUAL, *given.options], running.words_of)
    out = given.out.absolute()
    if given.plan:
        announce(runs, look(runs, out), out)
        return
    with alone_in(make_folder(out)):
        found = look(runs, out)
        announce(runs, found, out)
        with telling_how_to_go_on():
            came = [come_to(run, out / run.name, found, given.target) for run in runs]
        conclude(came, varied, given.target, out)
    if any(outcome.failure for outcome in came):
        sys.exit(FAILED_STATUS)


@contextmanager
def alone_in(folder):
    """Two experiments in one folder would each take the other's runs for their own."""
    place = os.open(folder, os.O_RDONLY)
    try:
        claim(place, f"another experiment is at work in {folder}: wait for it, or choose another --out")
        yield
    finally:
        os.close(place)


def look(runs, out):
    """What there is of each run."""
    found = {run: outcomes.read(out / run.name) for run in runs}
    for run in runs:
        outcomes.refuse_another(found[run], run)
    return found


def announce(runs, found, out):
    cells = len({run.cell for run in runs})
    print(f"{_many(cells, 'cell')}, {_many(len(runs), 'run')}, in {out}:")
    for run in runs:
        print(f"  {run.name}: {_state(run, found[run])}")
    print(f"left to train: {_left(found)}", flush=True)


def _many(count, what):
    return f"{count} {what}{'s' * (count != 1)}"


def _state(run, found):
    if outcomes.is_finished(found, run):
        return "finished"
    done = outcomes.epochs_done(found)
    return f"{done} of {run.epochs} epochs are done" if done else f"{run.epochs} epochs"


def _left(found):
    """Epochs that are left, and their time as far as that can be told from those that are done."""
    epochs = sum(
        max(1, run.epochs - outcomes.epochs_done(each))
        for run, each in found.items()
        if not outcomes.is_finished(each, run)
    )
    seconds = [time for each in found.values() for time in outcomes.seconds_of(each)]
    if not epochs:
        return "nothing"
    if not seconds:
        return f"{epochs} epochs; how long they take is said after the first run"
    return f"{epochs} epochs, about {_duration(epochs * statistics.mean(seconds))}"


def _duration(seconds):
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min" if seconds >= MINUTE else f"{seconds:.0f} s"
    return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"


def come_to(run, folder, found, target):
    """The outcome of a run, which is trained if it is not finished."""
    if not outcomes.is_finished(found[run], run):
        begun = "going on" if found[run] is not None and found[run].steps else "training"
        print(f"\n{run.name}: {begun} (what it says: {folder / running.OUTPUT})", flush=True)
        try:
            status = running.train(run, folder)
            found[run] = outcomes.read(folder)
        except UserError as error:
            return _failed(run, folder, str(error))
        if status != 0:
            return _failed(run, folder, f"it ended with status {status}", running.last_lines(folder))
        if not outcomes.is_finished(found[run], run):
            return _failed(run, folder, f"it was not validated after {run.epochs} epochs")
        print(f"left to train: {_left(found)}", flush=True)
    outcome = outcomes.outcome_of(found[run], run, target)
    if outcome.failure:
        return _failed(run, folder, outcome.failure)
    figures = ", ".join(f"{label} {outcome.figures[key]:.4g}" for key, label in outcome.labels.items())
    print(f"{run.name}: {figures} after {run.epochs} epochs", flush=True)
    if run.options.is_sparse and outcome.selected is None:
        print(f"warning: {run.name} sent nothing sparse: raise --max-epochs or lower --warmup-iters", flush=True)
    return outcome


def _failed(run, folder, failure, lines=()):
    print(f"{run.name} failed: {failure}", *(f"    {line}" for line in lines), sep="\n", flush=True)
    return outcomes.Outcome.failed(run, folder, failure)


@contextmanager
def telling_how_to_go_on():
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        sys.stderr.write("\nended early; the same command goes on from here\n")
        raise


def conclude(came, varied, target, out):
    """The tables and the page."""
    head, rows = tables.table_of(came, varied, target)
    text = tables.markdown(head, rows)
    with atomic_write(out / TABLE) as file:
        file.write(text)
    with atomic_write(out / RUNS) as file:
        tables.write_csv(file, came, varied)
    print(f"\n{text}\n{out / TABLE}\n{out / RUNS}")
    fine = [outcome.folder for outcome in came if not outcome.failure]
    if fine:
        curves = grid([draw(tables.curves_of(came))])
        write_report(fine[:MOST_RUNS], out / REPORT, section("Means over seeds", table(head, rows), curves))
        if len(fine) > MOST_RUNS:
            print(f"the report has the first {MOST_RUNS} runs; scripts/report.py makes one of those that you name")
        print((out / REPORT).as_uri())


# ---- the command line


def _variation(word):
    """NAME=VALUE,VALUE,... -> (name, values)."""
    name, _, values = word.partition("=")
    name, values = name.lstrip("-").replace("-", "_"), list(dict.fromkeys(values.split(",")))
    if not (name and all(values)):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,VALUE,..., found {word!r}")
    return name, values


def _together(variations):
    names = [name for name, _ in variations]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--vary {name} is given twice; give all its values at once")
    return dict(variations)


def _parse():
    given, unknown = _parser().parse_known_args()
    if unknown:
        raise UserError(f"{unknown[0]} is no option of this; those of LSTM/main_trainer.py stand at the end, behind --")
    if len(sys.argv) == 1:
        raise UserError(
            "there is nothing to compare: give --vary NAME=VALUE,..., or --seeds N; --help lists the options"
        )
    return given


def _parser():
    parser = Parser(description="Train every combination of some options, with several seeds, and compare.")
    add = parser.add_argument
    add(
        "--vary",
        action="append",
        type=_variation,
        default=[],
        metavar="NAME=VALUE,...",
        help="an option of LSTM/main_trainer.py and its values; may be given several times",
    )
    add("--seeds", type=reading(COUNT), default=1, metavar="N", help="each combination runs with the seeds 0 to N-1")
    add("--target", type=reading(NOT_NEGATIVE), default=0.3, metavar="X", help="WER whose first epoch the table tells")
    folder = _project.ROOT / "runs" / "experiment"
    add("--out", type=reading(PATH), default=folder, metavar="FOLDER", help="where the runs lie")
    add("--plan", action="store_true", help="say what would be trained, and end")
    add("options", nargs="*", default=[], metavar="-- OPTION", help="options of LSTM/main_trainer.py for all runs")
    return parser


if __name__ == "__main__":
    main()
