"""Plots as SVG inside a figure: curves, stacked areas, bars. Each is whole without JavaScript.

What page.js reads beside the pictures is the frame of a plot, in its `data-` attributes, and the values behind it.
"""

from dataclasses import dataclass

from . import scales
from .markup import breakable, data, element, joined
from .styles import Style, fill_key, line_key, mark
from .thinning import thin

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 468, 18, 214  # of the frame
ALONG = 6  # ticks across
BAR, ROW = 18, 46  # heights
MOST_MARKS = 60  # of a curve
LABELS = 150  # characters of a name
DIGITS = 5  # of values that are shown when pointed at


@dataclass(frozen=True)
class Curve:
    name: str
    points: list  # (x, y or None), x ascending
    style: Style
    run: int | None = None  # its number among several, which can be hidden
    faint: bool = False  # behind the others
    marked: bool = False  # at every point, as long as these can be told apart


@dataclass(frozen=True)
class Plot:
    """`top` cuts off what lies higher, `shaded` are stretches of x, `levels` are (y, name, style) across the frame."""

    title: str
    curves: list
    note: str | None = None
    log: bool = False
    zero: bool = True
    top: float | None = None
    shaded: tuple = ()
    levels: tuple = ()
    across: str = "epochs"


@dataclass(frozen=True)
class Stack:
    """Areas on one another: `rows` holds, for each x, the height of each layer. `high` makes several comparable."""

    title: str
    xs: list
    rows: list
    layers: list  # (name, colour)
    note: str | None = None
    high: float | None = None
    shaded: tuple = ()
    across: str = "epochs"


@dataclass(frozen=True)
class Bars:
    """Lying bars, each of the layers' parts."""

    title: str
    bars: list  # (name, parts)
    layers: list  # (name, colour)
    note: str | None = None
    unit: str = ""


def draw(plot):
    return {Plot: _draw_plot, Stack: _draw_stack, Bars: _draw_bars}[type(plot)](plot)


def _draw_plot(plot):
    xs = [x for curve in plot.curves for x, _ in curve.points]
    ys = [y for curve in plot.curves for _, y in curve.points] + [y for y, *_ in plot.levels]
    across = _across(xs)
    if plot.log:
        up = scales.logarithmic(ys, BOTTOM, TOP)
    else:
        up = scales.linear(ys, BOTTOM, TOP, zero=plot.zero, high=plot.top)
    curves = [(curve, thin(curve.points)) for curve in plot.curves]
    drawn = [_curve(curve, points, across, up) for curve, points in curves]
    content = (_frame(across, up, plot), [_level(*level, up) for level in plot.levels], _clipped(drawn))
    values = [
        {"name": curve.name, "run": curve.run, "colour": curve.style.colour, "points": _rounded(points)}
        for curve, points in curves
    ]
    keys = [(line_key(curve.style), curve.name, curve.run) for curve in plot.curves if not curve.faint]
    return _figure(plot, _svg(plot, content, across, up), keys, {"curves": values})


def _draw_stack(plot):
    tops = [sum(value or 0 for value in row) for row in plot.rows]
    across, up = _across(plot.xs), scales.linear(tops, BOTTOM, TOP, high=plot.high)
    below, areas = [0.0] * len(plot.xs), []
    for place, (_, colour) in enumerate(plot.layers):
        above = [low + (row[place] or 0) for low, row in zip(below, plot.rows, strict=True)]
        edge = [*zip(plot.xs, above, strict=True), *reversed(list(zip(plot.xs, below, strict=True)))]
        areas.append(element("path", d=_path(edge, across, up) + "Z", fill=colour, class_="area"))
        below = above
    values = [
        {"name": name, "colour": colour, "points": _rounded(list(zip(plot.xs, heights, strict=True)))}
        for (name, colour), heights in zip(plot.layers, zip(*plot.rows, strict=True), strict=True)
    ]
    keys = [(fill_key(colour), name, None) for name, colour in reversed(plot.layers)]
    content = (_frame(across, up, plot), _clipped(areas))
    return _figure(plot, _svg(plot, content, across, up), keys, {"curves": values, "stacked": True})


def _draw_bars(plot):
    longest = max((sum(parts) for _, parts in plot.bars), default=0) or 1
    across = scales.Scale(0, longest, 2, RIGHT - 70)
    drawn = []
    for place, (name, parts) in enumerate(plot.bars):
        y, x, total = place * ROW + 24, across(0), sum(parts)
        drawn.append(element("text", name[:LABELS], x=2, y=y - 6, class_="name"))
        for part, (layer, colour) in zip(parts, plot.layers, strict=True):
            width = across(part) - across(0)
            told = element("title", f"{layer}: {_read(part)} {plot.unit}")
            drawn.append(
                element("rect", told, x=f"{x:.1f}", y=y, width=f"{width:.1f}", height=BAR, fill=colour, class_="area")
            )
            x += width
        drawn.append(element("text", f"{_read(total)} {plot.unit}", x=f"{x + 6:.1f}", y=y + BAR - 5, class_="total"))
    height = len(plot.bars) * ROW + 6
    svg = element("svg", drawn, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=plot.title, class_="bars")
    return _figure(plot, svg, [(fill_key(colour), name, None) for name, colour in plot.layers], None)


# ---- the parts of a figure


def _figure(plot, svg, keys, values):
    legend = [element("li", key, element("span", breakable(name[:LABELS])), data_run=run) for key, name, run in keys]
    is_needed = isinstance(plot, Stack | Bars) or len(keys) > 1 or any(run is not None for *_, run in keys)
    return element(
        "figure",
        element("figcaption", element("h3", plot.title), plot.note and element("p", plot.note)),
        element("ul", legend, class_="legend") if is_needed else None,
        svg,
        values and data(values),
    )


def _svg(plot, content, across, up):
    return element(
        "svg",
        content,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=plot.title,
        class_="plot",
        data_frame=f"{LEFT} {RIGHT} {TOP} {BOTTOM}",
        data_x=f"{across.low!r} {across.high!r}",
        data_y=f"{up.low!r} {up.high!r}",
        data_across=plot.across,
        data_log=up.log and "1",
    )


def _across(xs):
    """As long as the curves are, from 0 on where they begin near it."""
    zero = bool(xs) and 0 <= min(xs) < max(xs) / 2
    return scales.linear(xs, LEFT, RIGHT, zero=zero, high=max(xs, default=1))


def _frame(across, up, plot):
    """Shaded stretches, the grid, and what stands beside the axes."""
    parts = []
    for begin, end in plot.shaded:
        left, right = (min(max(across(x), LEFT), RIGHT) for x in (begin, end))
        parts.append(
            element("rect", x=f"{left:.1f}", y=TOP, width=f"{right - left:.1f}", height=BOTTOM - TOP, class_="sparse")
        )
    if plot.shaded:
        parts.append(element("text", "sparse phase", x=f"{RIGHT}", y=TOP - 5, class_="phase"))
    for tick in up.ticks():
        y = f"{up(tick):.1f}"
        parts.append(element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", up.label(tick), x=LEFT - 7, y=y, dy="0.33em", class_="up"))
    for tick in across.ticks(ALONG):
        x = f"{across(tick):.1f}"
        parts.append(element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 4, class_="axis"))
        parts.append(element("text", across.label(tick, ALONG), x=x, y=BOTTOM + 17, class_="across"))
    parts.append(element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    parts.append(element("text", plot.across, x=RIGHT, y=HEIGHT - 4, class_="phase"))
    return parts


def _clipped(content):
    """A nested svg cuts off what leaves the frame, without the names that clip paths would need."""
    x, y, width, height = LEFT - 4, TOP - 6, RIGHT - LEFT + 8, BOTTOM - TOP + 6
    return element("svg", content, x=x, y=y, width=width, height=height, viewBox=f"{x} {y} {width} {height}")


def _curve(curve, points, across, up):
    known = [(x, y if y is None or not up.log or y > 0 else None) for x, y in points]
    parts = [
        element(
            "path",
            d=_path(known, across, up),
            stroke=curve.style.colour,
            stroke_dasharray=None if curve.faint else curve.style.dash,
            class_="faint" if curve.faint else "curve",
        )
    ]
    count = sum(y is not None for _, y in known)
    if count == 1 or (curve.marked and count <= MOST_MARKS):
        parts += [mark(curve.style, across(x), up(y)) for x, y in known if y is not None]
    return element("g", parts, data_run=curve.run)


def _path(points, across, up):
    words, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        words.append(f"{pen}{across(x):.1f} {up(y):.1f}")
        pen = "L"
    return "".join(words)


def _level(y, name, style, up):
    if up.log and y <= 0:
        return None
    at = f"{up(y):.1f}"
    line = element("line", x1=LEFT, x2=RIGHT, y1=at, y2=at, stroke=style.colour, class_="level")
    return joined(line, element("text", name[:LABELS], x=LEFT + 5, y=f"{up(y) - 5:.1f}", class_="level"))


def _rounded(points):
    return [[_short(x), None if y is None else _short(y)] for x, y in points]


def _read(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _short(value):
    return float(f"{value:.{DIGITS}g}")
