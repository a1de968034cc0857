"""Draw what bench_allreduce.py measured, a panel for each file.

    mpiexec -n 2 python scripts/bench_allreduce.py --compressors all --json two.json
    python scripts/plot_bench.py two.json four.json --out reductions.png

A bar is the median of a reduction, in parts: the medians of its stages on the rank where each takes longest, and what
is left, the wait of the others. The dashed line is the transport's own dense allreduce.
"""

import _project  # noqa: F401 - puts LSTM on the path
from oktopk.fields import PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write
from oktopk_training.inputs import printable, read_json
from oktopk_training.job import program

MOST_OF_A_FILE = 1 << 24  # bytes
STAGES = {
    "merge": ("norm and clipping", "#9aa0a6"),
    "compression": ("choosing and summing", "#1f5fa8"),
    "communication": ("communication", "#d68910"),
    "demerge": ("delivering", "#2e8b57"),
}
WAIT, WAIT_COLOUR = "waiting", "#e6e6e6"
INK = "#222222"
COLUMNS = 3  # of the legend
ROOM = 1.25  # behind the longest bar, for its ratio


@program
def main():
    given = _parser().parse_args()
    measured = [read(path) for path in given.measured]
    with atomic_write(given.out, "wb") as file:
        draw(measured).savefig(file, format="png", dpi=120)
    print(given.out)


def read(path):
    """(title, rows) of a file."""
    try:
        record = read_json(path, MOST_OF_A_FILE)
        title = f"{record['ranks']} ranks, n = {record['elements']:,}, density {record['density']:g}"
        rows = [_row(row) for row in record["rows"]]
    except (LookupError, TypeError, ValueError, AttributeError):
        rows = []
    if not rows:
        raise UserError(f"{path} is no file of bench_allreduce.py; make one with its --json")
    return title, rows


def _row(row):
    """(name, milliseconds of each stage and of the wait, those of the whole, ratio to the yardstick)."""
    whole = float(row["median_s"]) * 1e3
    parts = [float(row.get(stage, 0)) * 1e3 for stage in STAGES]
    if not any(parts):
        parts[list(STAGES).index("communication")] = whole  # the yardstick has no stages of ours
    return printable(row["name"]), [*parts, max(0.0, whole - sum(parts))], whole, float(row["ratio"])


def draw(measured):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    longest = max(len(rows) for _, rows in measured)
    figure, panels = pyplot.subplots(
        1, len(measured), figsize=(7 * len(measured), 1.9 + 0.36 * longest), squeeze=False, layout="constrained"
    )
    for axes, (title, rows) in zip(panels[0], measured, strict=True):
        _draw_panel(axes, title, rows)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=COLUMNS, frameon=False)
    return figure


def _draw_panel(axes, title, rows):
    names = [name for name, *_ in rows]
    left = [0.0] * len(rows)
    for place, (label, colour) in enumerate([*STAGES.values(), (WAIT, WAIT_COLOUR)]):
        widths = [parts[place] for _, parts, *_ in rows]
        axes.barh(range(len(rows)), widths, left=left, color=colour, label=label)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for place, (end, (*_, ratio)) in enumerate(zip(left, rows, strict=True)):
        axes.text(end, place, f" {ratio:.2f}", va="center", color=INK, bbox={"color": "white", "pad": 1})
    axes.axvline(rows[0][2], color=INK, linestyle="--", linewidth=1)
    axes.set(title=title, xlabel="ms, and the ratio to the transport's own", xlim=(0, ROOM * max(left)))
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _parser():
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", nargs="+", type=reading(PATH), metavar="JSON", help="files of bench_allreduce.py")
    parser.add_argument("--out", type=reading(PATH), required=True, metavar="PNG", help="where to draw the picture")
    return parser


if __name__ == "__main__":
    main()
