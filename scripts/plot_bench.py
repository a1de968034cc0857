"""Draw what bench_allreduce.py measured, a panel for each file.

    mpiexec -n 2 python scripts/bench_allreduce.py --compressors all --json two.json
    python scripts/plot_bench.py two.json four.json --out reductions.png

A bar is the median of a reduction, in parts: the medians of its stages on the rank where each takes longest, and what
is left, the wait of the others. The dashed line is the transport's own dense allreduce.
"""

import _project  # noqa: F401 - puts LSTM on the path
from drawing import picture
from oktopk.fields import PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.inputs import printable
from oktopk_training.job import program
from predict import STAGES, read

LABELS = (
    "norm and clipping",
    "choosing and summing",
    "communication",
    "delivering",
    "waiting",
)  # of the stages and what is left
COLOURS = ("#9aa0a6", "#1f5fa8", "#d68910", "#2e8b57", "#e6e6e6")
INK = "#222222"
COLUMNS = 3  # of the legend
ROOM = 1.25  # behind the longest bar, for its ratio


@program
def main():
    given = _parser().parse_args()
    measured = [read(path) for path in given.measured]
    picture.write_picture(draw(measured), given.out, 120)
    print(given.out)


def parts_of(row):
    """Milliseconds of each stage, and of the wait that is left. The yardstick has no stages: it is communication."""
    whole = row["median_s"]
    stages = [row.get(stage, 0) for stage in STAGES]
    if not any(stages):
        stages[STAGES.index("communication")] = whole
    return [1e3 * part for part in (*stages, max(0.0, whole - sum(stages)))]


def draw(measured):
    longest = max(len(each.rows) for each in measured)
    figure, panels = picture.pyplot().subplots(
        1, len(measured), figsize=(7 * len(measured), 1.9 + 0.36 * longest), squeeze=False, layout="constrained"
    )
    for axes, each in zip(panels[0], measured, strict=True):
        _draw_panel(axes, each)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=COLUMNS, frameon=False)
    return figure


def _draw_panel(axes, measured):
    rows, task = list(measured.rows.values()), measured.task
    parts, left = [parts_of(row) for row in rows], [0.0] * len(rows)
    for label, colour, widths in zip(LABELS, COLOURS, zip(*parts, strict=True), strict=True):
        axes.barh(range(len(rows)), widths, left=left, color=colour, label=label)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    yardstick = rows[0]["median_s"]
    for place, (end, row) in enumerate(zip(left, rows, strict=True)):
        ratio, beside = f"{row['median_s'] / yardstick:.2f}", {"xytext": (5, 0), "textcoords": "offset points"}
        axes.annotate(ratio, (end, place), va="center", color=INK, bbox={"color": "white", "pad": 1}, **beside)
    axes.axvline(yardstick * 1e3, color=INK, linestyle="--", linewidth=1)
    links = f", links of {measured.rate:g} Gbit/s" if measured.rate else ""
    axes.set(title=f"{task.ranks} ranks{links}, n = {task.n:,}, k = {task.k:,}", xlim=(0, ROOM * max(left)))
    axes.set_xlabel("ms, and the ratio to the transport's own")
    axes.set_yticks(range(len(rows)), [printable(row["name"]) for row in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _parser():
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", nargs="+", type=reading(PATH), metavar="JSON", help="files of bench_allreduce.py")
    parser.add_argument("--out", type=reading(PATH), required=True, metavar="PNG", help="where to draw the picture")
    return parser


if __name__ == "__main__":
    main()
