"""Draw a run: python scripts/plot_run.py RUN [--out PNG]

RUN is a run's folder, finished or still going. The picture shows loss, learning rate, validation and, of several ranks,
what rank 0 sent, against epochs.
"""

import math

import _project  # noqa: F401 - for the modules of LSTM/
from drawing import picture
from oktopk.fields import PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.inputs import printable
from oktopk_training.job import program
from oktopk_training.runs import figures_of, read_config, read_metrics, title_of

SMOOTHING = 25  # steps that the running mean of the loss covers
INK, GREY, BLUE, RED = "#222222", "#9aa0a6", "#1f5fa8", "#c0392b"
CURVES = (RED, "#2e8b57", BLUE, "#d68910", "#7d3c98")  # of the figures of a validation
SPARSE_SHADE = "#fdf1dc"


@program
def main():
    given = _parser().parse_args()
    run = given.run
    records = read_metrics(run)
    out = given.out or run / "run.png"
    config = read_config(run)
    figure = draw(records, title_of(config) or run.name, figures_of(config, records["val"]))
    picture.write_picture(figure, out, 150)
    print(out)


def draw(records, title, figures):
    pyplot = picture.pyplot()
    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "text.color": INK})
    steps = records["iter"]
    sent = [(record.get("bytes_sent") or math.nan) / 1e3 for record in steps]  # on a logarithmic scale there is no 0
    heights = (5, 2, 4) if all(map(math.isnan, sent)) else (5, 2, 4, 2)
    figure, (loss, rate, validation, *traffic) = pyplot.subplots(
        len(heights), 1, figsize=(8, 0.8 * sum(heights)), sharex=True, height_ratios=heights, layout="constrained"
    )
    figure.suptitle("\n".join(map(_plain, title.splitlines()[:2])), fontsize=12)
    per_epoch = _steps_per_epoch(steps)
    when = [(record["iter"] + 1) / per_epoch for record in steps]
    _draw_loss(loss, steps, when, records)
    rate.plot(when, [_or_nan(record["lr"]) for record in steps], color=BLUE)
    rate.set_ylabel("learning rate")
    rate.set_ylim(0, 1.1 * max((record["lr"] for record in steps if record["lr"]), default=1))
    _draw_validation(validation, records["val"], figures)
    for axes in traffic:
        axes.plot(when, sent, color=BLUE)
        axes.set_yscale("log")
        axes.set_ylabel("sent per step, kB")
    for axes in (loss, rate, validation, *traffic):
        _shade_sparse_phase(axes, steps, when, per_epoch, axes is loss)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlim(0, 1.01 * max(when))
    for axes in (loss, validation):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="best" if axes is validation else "upper right")
    figure.axes[-1].set_xlabel("epochs")
    return figure


def _draw_loss(axes, steps, when, records):
    losses = [_or_nan(record["loss"]) for record in steps]
    axes.plot(when, losses, color=GREY, linewidth=0.7, alpha=0.7, label="each step")
    if len(losses) > SMOOTHING:
        axes.plot(when, _running_mean(losses), color=BLUE, linewidth=1.8, label=f"mean of the last {SMOOTHING} steps")
    tested = [(record["epoch"] + 1, _or_nan(record.get("loss"))) for record in records["val"]]
    if tested:
        axes.plot(*zip(*tested, strict=True), "o", color=RED, markersize=6, label="validation")
    finite = sorted(loss for loss in losses if math.isfinite(loss))
    if finite:  # the first steps can be so high that nothing else would be seen
        axes.set_ylim(0, 1.05 * max(finite[int(0.99 * (len(finite) - 1))], *(loss for _, loss in tested), 1e-9))
    axes.set_ylabel("loss")


def _draw_validation(axes, tested, figures):
    epochs = [record["epoch"] + 1 for record in tested]
    for place, (key, label) in enumerate(figures.items()):
        values = [_or_nan(record.get(key)) for record in tested]
        last = f", {values[-1]:.{3 if abs(values[-1]) < 10 else 1}f} at the end" if values else ""
        axes.plot(epochs, values, "o-", color=CURVES[place % len(CURVES)], label=_plain(label) + last)
    axes.set_ylabel(f"{_plain(next(iter(figures.values())))} (validation)" if len(figures) == 1 else "validation")
    axes.set_ylim(bottom=0)
    if not tested:
        axes.text(0.5, 0.5, "no validation yet", ha="center", va="center", transform=axes.transAxes, color=GREY)


def _shade_sparse_phase(axes, steps, when, per_epoch, with_name):
    sparse = [moment for moment, record in zip(when, steps, strict=True) if record.get("phase") == "sparse"]
    if sparse:
        start = min(sparse) - 1 / per_epoch
        axes.axvspan(start, max(sparse), color=SPARSE_SHADE, zorder=0)
        if with_name:
            place = axes.get_xaxis_transform()  # epochs across, parts of the axes upwards
            axes.text(max(sparse), 1.0, "sparse phase", va="bottom", ha="right", color=INK, fontsize=8, transform=place)


def _steps_per_epoch(steps):
    """From the first step of the second epoch; in the first epoch its length is not known, and one epoch is drawn."""
    later = [record for record in steps if record["epoch"] > steps[0]["epoch"]]
    if later:
        return max(1, (later[0]["iter"] - steps[0]["iter"]) // (later[0]["epoch"] - steps[0]["epoch"]))
    return len(steps)


def _running_mean(values):
    """Of the last SMOOTHING finite values."""
    means, window = [], []
    for value in values:
        if math.isfinite(value):
            window = [*window[-(SMOOTHING - 1) :], value]
        means.append(sum(window) / len(window) if window else math.nan)
    return means


def _plain(text):
    """Matplotlib takes what stands between dollars for formulas."""
    return printable(text).replace("$", r"\$")


def _or_nan(value):
    """Matplotlib leaves a gap where a value is NaN; the metrics say null."""
    return math.nan if value is None else value


def _parser():
    parser = Parser(description="Draw the loss, learning rate and validation of a run.")
    parser.add_argument("run", type=reading(PATH), metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", type=reading(PATH), metavar="PNG", help="by default run.png in the folder of the run")
    return parser


if __name__ == "__main__":
    main()
