"""Report on runs, as one page to send to somebody: python scripts/report.py RUN [RUN ...] [--out HTML]

RUN is a run's folder, finished or still going. The page needs no network and nothing beside it; several runs lie over
one another. It is written into the first run, as report.html; where it lies is printed as a link.
"""

import _project  # noqa: F401 - for the modules of LSTM/
from drawing.markup import element
from drawing.page import grid, page, section
from drawing.plot import draw
from oktopk.fields import PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write
from oktopk_training.inputs import printable
from oktopk_training.job import program
from oktopk_training.run_layout import REPORT
from oktopk_training.runs import Run, title_of
from reporting import inspections, plots, tables, traces
from reporting.shown import shown

MOST_RUNS = 40
NAMED = 4  # at the head of the page; of more, how many they are
MOST_LINES = 3  # below the heading


@program
def main():
    given = _parser().parse_args()
    folders = list(dict.fromkeys(run.absolute() for run in given.runs))
    if len(folders) > MOST_RUNS:
        raise UserError(f"{len(folders)} runs: at most {MOST_RUNS} can be told apart in one report; name fewer")
    out = given.out or folders[0] / REPORT
    write_report(folders, out)
    print(out.absolute().as_uri())


def write_report(folders, out, *before):
    """On the runs in these folders; what comes `before` them are sections of a page (drawing/page.py)."""
    content = report(shown([Run.read(folder) for folder in folders]), *before)
    with atomic_write(out) as file:
        file.write(content)


def report(every, *before):
    names = ", ".join(each.name for each in every) if len(every) <= NAMED else f"{len(every)} runs"
    traced, inspected = traces.traced(every), inspections.inspected(every)
    return page(
        names if len(every) > NAMED else f"Runs: {names}" if len(every) > 1 else f"Run: {names}",
        _head(names, every),
        *before,
        section("What came of it", tables.results(every)),
        section("Learning", grid(list(map(draw, plots.learning(every))))),
        section("What is sent", grid(list(map(draw, plots.traffic(every))))),
        section("Where the time goes", grid(list(map(draw, plots.times(every)))), tables.summaries(every)),
        section("What was sent, and when", grid(list(map(draw, traces.plots(traced)))), *traces.tables(traced)),
        section("Why it converges", grid(list(map(draw, inspections.plots(inspected))))),
        section("What differs", tables.differences(every)),
        section("What happened", tables.events(every)),
        section("Configuration" if len(every) == 1 else "What they have in common", tables.in_common(every)),
        element("footer", tables.folders(every), element("p", "Made by scripts/report.py.")),
    )


def _head(names, every):
    """What was trained: of several runs, without what each of them did with its gradients."""
    titles = [title_of(each.run.config) or each.run.folder.name for each in every]
    lines = titles[0].splitlines() if len(every) == 1 else dict.fromkeys(each.splitlines()[0] for each in titles)
    return element("header", element("h1", names), [element("p", printable(line)) for line in list(lines)[:MOST_LINES]])


def _parser():
    parser = Parser(description="Report on runs, as one page to send to somebody.")
    add = parser.add_argument
    add("runs", nargs="+", type=reading(PATH), metavar="RUN", help="the folder of a run; several are compared")
    add("--out", type=reading(PATH), metavar="HTML", help=f"by default {REPORT} in the folder of the first run")
    return parser


if __name__ == "__main__":
    main()
