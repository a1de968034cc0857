"""Training over slow links, ours beside PyTorch's DDP and its hooks: a grid of models, hosts and rates.

    python scripts/compare_on_links.py --plan
    python scripts/compare_on_links.py --out runs/links

Steps a minute of both models (scripts/bench_training.py), and minutes of the small one to WER 0.2, in networks that
scripts/lab.py makes: as root, an hour and a half on two cores. How many steps a method takes to a WER is no matter of
links, so each trains once on so many hosts, over fast ones (scripts/time_to_target.py); its minutes are those steps, at
the pace that either of its phases has over the link. Each measurement, of some minutes, is a file of --out. One that is
there is not made again, so the same command goes on with the first that is missing; `--only WORD` makes those whose
name has the word. After each, table.md and the pictures have all that is there. What stands behind -- goes to both
programs, and is the same for all measurements of a folder.
"""

import _project

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import time_to_target
from drawing import picture
from experiments.outcomes import reached
from experiments.running import WITH_PARENT
from lab import check_tools
from oktopk.fields import COUNT, NOT_NEGATIVE, PATH, POSITIVE, TEXT
from oktopk_training.command_line import Parser, hyphenated, reading
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, make_folder
from oktopk_training.inputs import read_json
from oktopk_training.job import USER_ERROR_STATUS, program
from training_methods import METHODS

MODELS = {"small": ("--hidden-size", "256", "--hidden-layers", "3"), "full": ()}
HOSTS, RATES = (2, 4), ("100mbit", "1gbit")
FAST = "10gbit"  # of the links where nobody looks at the time
COMPARED = [name for name in METHODS if name not in ("dense, overlapped", "oktopk, no momentum correction")]
CHOOSES = "auto"  # one of the others, by the link, and learns as that
PACE, LEARNT = "pace", "learnt"
STEPS = {"small": "12", "full": "4"}  # that are timed
MOST_AT_ONCE = {("full", 4): 7}  # methods in turns: each has a copy of the model on every rank
YARDSTICK = "oktopk"  # in all parts of a cell that has several
WER = 0.2
WARM_UP = 59  # steps: an epoch on two ranks
UNTIL_THERE = ("--target", str(WER), "--warmup-iters", str(WARM_UP), "--max-epochs", "20")
TAKEN = ("--methods", "--json", "--steps", "--out", "--target", "--warmup-iters")  # behind --: WER and WARM_UP hold
TABLE, PACE_PICTURE, OPTIONS = "table.md", "pace.png", "options.json"
NOT_MEASURED = "–"
FAILED_STATUS = 1
MINUTE = 60  # seconds
MOST_OF_A_FILE = 1 << 24
COLOURS = {True: "#1f5fa8", False: "#b9bec4"}  # ours, and the others


@dataclass(frozen=True)
class Measurement:
    kind: str
    model: str
    hosts: int
    rate: str
    part: str
    methods: tuple

    @property
    def name(self):
        return f"{self.kind}-{self.model}-{self.hosts}x{self.rate}-{self.part}.json"

    def command(self, path, options):
        lab = [sys.executable, _script("lab.py"), "--hosts", str(self.hosts), "--rate", self.rate, "--"]
        if self.kind == PACE:
            program = [_script("bench_training.py"), "--steps", STEPS[self.model]]
        else:
            program = [_script("time_to_target.py"), *UNTIL_THERE]
        chosen = ["--methods", "|".join(self.methods), "--json", str(path)]
        return [*lab, sys.executable, *program, *chosen, *MODELS[self.model], *options]


def _script(name):
    return str(_project.ROOT / "scripts" / name)


def grid():
    """All measurements, the quick ones first."""
    cells = list(product(MODELS, HOSTS, RATES))
    for model, hosts, rate in cells:
        for number, methods in enumerate(parts(MOST_AT_ONCE.get((model, hosts), len(COMPARED)))):
            yield Measurement(PACE, model, hosts, rate, str(number), tuple(methods))
    for hosts, name in product(HOSTS, COMPARED):
        if name != CHOOSES:
            yield Measurement(LEARNT, "small", hosts, FAST, re.sub(r"\W+", "-", name), (name,))


def parts(most):
    """Of the methods; the machine may be faster in one part than in another, so all of them have the yardstick."""
    if most >= len(COMPARED):
        return [COMPARED]
    others = [name for name in COMPARED if name != YARDSTICK]
    return [[YARDSTICK, *others[first : first + most - 1]] for first in range(0, len(others), most - 1)]


@program
def main():
    given = _parse()
    wanted = [each for each in grid() if given.only is None or given.only in each.name]
    if not wanted:
        raise UserError(f"--only: no measurement's name has {given.only!r}; --plan lists them")
    refuse_others(given)
    missing = [each for each in wanted if not (given.out / each.name).exists()]
    for each in wanted:
        print(f"{each.name}: {'is there' if each not in missing else ' | '.join(each.methods)}")
    print(f"{len(missing)} of {len(wanted)} are to be made, in {given.out}")
    if given.plan:
        return
    if missing:
        check_tools()
    with atomic_write(make_folder(given.out) / OPTIONS) as file:
        file.write(json.dumps(given.options))
    failed = [each.name for each in missing if not _make(each, given)]
    print(table(read(given.out)), end="")
    if failed:
        print(f"failed: {', '.join(failed)}")
        sys.exit(FAILED_STATUS)


def refuse_others(given):
    """What was measured with other options must not stand beside it in one table."""
    path = given.out / OPTIONS
    if not any((given.out / each.name).exists() for each in grid()):
        return
    try:
        there = read_json(path, MOST_OF_A_FILE)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): give another --out, or delete it") from None
    if there != given.options:
        raise UserError(f"{given.out} has measurements with other options ({path}): give another --out, or those")


def _make(measurement, given):
    """Whether it was measured."""
    print(f"\n{measurement.name}", flush=True)
    command = measurement.command(given.out / measurement.name, given.options)
    with_parent = [sys.executable, str(WITH_PARENT), str(os.getpid())]
    status = subprocess.run([*with_parent, *command], stdin=subprocess.DEVNULL).returncode
    if status == USER_ERROR_STATUS:
        raise UserError(f"{measurement.name} ended as above says, and so would the others: mend that first")
    if status != 0:
        return False
    _write(read(given.out), given.out)
    return True


class Found(NamedTuple):
    """What was measured, in the order of the grid."""

    paces: dict  # (model, hosts, rate) -> rows: method, seconds of a step
    curves: dict  # (model, hosts) -> {method: WER by steps}

    @property
    def minutes(self):
        """(model, hosts, rate) -> rows: method, WER by steps and seconds, as if it had trained over these links."""
        cells = {cell: _timed(self.curves.get(cell[:2], {}), rows) for cell, rows in self.paces.items()}
        return {cell: rows for cell, rows in cells.items() if rows}


def read(folder):
    paces, curves = {}, {}
    for each in grid():
        path = folder / each.name
        if not path.exists():
            continue
        rows = _rows(path, each)
        if each.kind == PACE:
            beside = paces.setdefault((each.model, each.hosts, each.rate), [])
            beside += _as_beside(beside, rows)
        else:
            curves.setdefault((each.model, each.hosts), {}).update({row["name"]: row["curve"] for row in rows})
    return Found(paces, curves)


def _timed(curves, paces):
    seconds, timed = {row["name"]: row["seconds"] for row in paces}, []
    for row in paces:
        method = row.get("choice", row["name"])
        if method in curves:
            before, after = seconds.get(METHODS[method].warm_up, row["seconds"]), row["seconds"]
            curve = [{**point, "seconds": _seconds(point["steps"], before, after)} for point in curves[method]]
            timed.append({"name": row["name"], "curve": curve})
    return timed


def _seconds(steps, before, after):
    """Of so many steps, where one takes `before` in the warm-up and `after` when that is over."""
    return min(steps, WARM_UP) * before + max(0, steps - WARM_UP) * after


def _as_beside(rows, others):
    """Others, as if the yardstick had taken as long beside them as beside these."""
    if not rows:
        return others
    before, there = (next(row for row in each if row["name"] == YARDSTICK) for each in (rows, others))
    factor = before["seconds"] / there["seconds"]
    return [{**row, "seconds": factor * row["seconds"]} for row in others if row is not there]


def _rows(path, measurement):
    try:
        rows = read_json(path, MOST_OF_A_FILE)["rows"]
        if [row["name"] for row in rows] != list(measurement.methods):
            raise ValueError("other methods were measured")
        for row in rows:
            _check(row, measurement.kind)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no measurement of this ({error}): delete it, and it is made anew") from None
    return rows


def _check(row, kind):
    if kind == PACE:
        POSITIVE.check("seconds", row["seconds"])
        if row["name"] == CHOOSES and row["choice"] not in METHODS:
            raise ValueError(f"{CHOOSES} chose {row['choice']!r}")
        return
    if not row["curve"]:
        raise ValueError("no validation")
    for point in row["curve"]:
        for name, figure in {"steps": COUNT, "wer": NOT_NEGATIVE}.items():
            figure.check(name, point[name])


def _write(found, out):
    with atomic_write(out / TABLE) as file:
        file.write(table(found))
    if found.paces:
        picture.write_picture(draw(found.paces), out / PACE_PICTURE, 120)
    for (_, hosts, rate), rows in found.minutes.items():
        drawn = time_to_target.draw(rows, WER, f"{hosts} hosts, links of {spoken(rate)}")
        picture.write_picture(drawn, out / f"wer-{hosts}x{rate}.png", 120)


# ---- the tables


def table(found):
    """Of paces, and of minutes."""
    paces = _table("steps a minute", found.paces, _pace, lambda row: row["seconds"])
    minutes = _table(f"minutes to WER {WER:g} (steps)", found.minutes, _minutes, _seconds_to_target)
    return "\n".join(filter(None, (paces, minutes)))


def _table(title, found, say, cost):
    """A row for each method, a column for each cell; its best, which costs least, in bold."""
    if not found:
        return ""
    lines = [f"| {title} | {' | '.join(map(heading, found))} |", "| --- " * (1 + len(found)) + "|"]
    best = [min(map(cost, rows)) for rows in found.values()]
    by_name = [{row["name"]: row for row in rows} for rows in found.values()]
    for name in COMPARED:
        cells = []
        for rows, least in zip(by_name, best, strict=True):
            text = say(rows[name]) if name in rows else NOT_MEASURED
            cells.append(f"**{text}**" if name in rows and cost(rows[name]) == least else text)
        if any(cell != NOT_MEASURED for cell in cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def heading(cell):
    model, hosts, rate = cell
    return f"{model}, {hosts} hosts, {spoken(rate)}"


def spoken(rate):
    return {"100mbit": "0.1 Gbit/s", "1gbit": "1 Gbit/s"}[rate]


def _pace(row):
    return f"{MINUTE / row['seconds']:.1f}"


def _minutes(row):
    steps, seconds = _at_target(row, "steps"), _seconds_to_target(row)
    return f"not in {time_to_target.minutes(row):.1f}" if steps is None else f"{seconds / MINUTE:.1f} ({steps:.0f})"


def _seconds_to_target(row):
    seconds = _at_target(row, "seconds")
    return float("inf") if seconds is None else seconds


def _at_target(row, what):
    return reached([(point[what], point["wer"]) for point in row["curve"]], WER)


def draw(paces):
    """A panel for each cell, a bar for each method."""
    models = [model for model in MODELS if any(cell[0] == model for cell in paces)]
    columns = max(sum(cell[0] == model for cell in paces) for model in models)
    figure, panels = picture.pyplot().subplots(
        len(models), columns, figsize=(2.6 + 2.6 * columns, 3.4 * len(models)), squeeze=False, layout="constrained"
    )
    for line, model in zip(panels, models, strict=True):
        cells = [cell for cell in paces if cell[0] == model]
        for axes in line[len(cells) :]:
            axes.set_visible(False)
        for place, (axes, cell) in enumerate(zip(line, cells, strict=False)):
            _draw_panel(axes, cell, paces[cell], named=place == 0)
    figure.suptitle("steps a minute")
    return figure


def _draw_panel(axes, cell, rows, named):
    heights = {row["name"]: MINUTE / row["seconds"] for row in rows}
    values = [heights.get(name, 0) for name in COMPARED]
    bars = axes.barh(range(len(COMPARED)), values, color=[COLOURS[not name.startswith("DDP")] for name in COMPARED])
    labels = [f"{value:.1f}" if value else NOT_MEASURED for value in values]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set(title=heading(cell), xlim=(0, 1.2 * max(values)))
    axes.title.set_fontsize(9)
    axes.set_yticks(range(len(COMPARED)), COMPARED if named else [""] * len(COMPARED), fontsize=8)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _parse():
    parser = Parser(description=__doc__.splitlines()[0])
    folder = _project.ROOT / "runs" / "links"
    parser.add_argument("--out", type=reading(PATH), default=folder, metavar="FOLDER", help="of the measurements")
    parser.add_argument("--only", type=reading(TEXT), metavar="WORD", help="those whose name has it")
    parser.add_argument("--plan", action="store_true", help="say what would be measured, and end")
    parser.add_argument("options", nargs="*", default=[], metavar="-- OPTION", help="for both programs and the trainer")
    given = parser.parse_args()
    for word in given.options:
        if hyphenated(word).partition("=")[0] in TAKEN:
            raise UserError(f"{word}: the grid has its own methods, steps, files and targets; see --plan and --only")
    return given


if __name__ == "__main__":
    main()
