"""Colours that people with any colour vision tell apart (Okabe and Ito), and for print dashes and marks beside them."""

from dataclasses import dataclass

from .markup import element, joined

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, YELLOW, BLACK, GREY = "#e69f00", "#56b4e9", "#f0e442", "#222222", "#9aa3ab"
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
FILLS = (GREY, SKY, ORANGE, BLUE, GREEN, YELLOW, PURPLE, VERMILION)  # neighbours differ in lightness too
DASHES = (None, "7 3", "2 2.5", "9 3 2 3", "4 2", "1 3")
MARKS = ("circle", "square", "triangle", "diamond", "cross")


@dataclass(frozen=True)
class Style:
    """How one of several curves is told from the others."""

    colour: str
    dash: str | None = None
    mark: str = "circle"


def style_of(number):
    return Style(LINES[number % len(LINES)], DASHES[number % len(DASHES)], MARKS[number % len(MARKS)])


def mark(style, x, y, size=3.4):
    if style.mark == "circle":
        return element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=size, fill=style.colour)
    shape = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "diamond": ((0, -1.3), (1.1, 0), (0, 1.3), (-1.1, 0)),
        "cross": ((-1, -0.4), (-0.4, -0.4), (-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4),
                  (0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4)),
    }[style.mark]  # fmt: skip
    points = " ".join(f"{x + size * right:.1f},{y + size * down:.1f}" for right, down in shape)
    return element("polygon", points=points, fill=style.colour)


def line_key(style):
    """What a legend shows of a curve."""
    line = element("line", x1=1, y1=6, x2=27, y2=6, stroke=style.colour, stroke_width=2, stroke_dasharray=style.dash)
    return _key(28, joined(line, mark(style, 14, 6)))


def fill_key(colour):
    return _key(12, element("rect", x=0.5, y=0.5, width=11, height=11, rx=2, fill=colour))


def _key(width, content):
    return element("svg", content, width=width, height=12, viewBox=f"0 0 {width} 12", aria_hidden="true")
