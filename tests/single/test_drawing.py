"""Scales, thinning and markup of the plots: what a reader of a report relies on without seeing it."""

import json
import math
import random
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drawing.markup import Markup, data, element, joined
from drawing.plot import Bars, Curve, Plot, Stack, draw
from drawing.scales import linear, logarithmic
from drawing.styles import DASHES, LINES, MARKS, Style, style_of
from drawing.thinning import binned, running_mean, thin

FIGURES = some.lists(some.one_of(some.none(), some.floats(-1e100, 1e100)), min_size=1, max_size=40)
NASTY = "</script><img src=x onerror=alert(1)>&\"'"


# ---- scales


def test_ticks_are_round_and_within_the_scale():
    scale = linear([0.0, 1.27], 100, 0)
    assert [scale.label(tick) for tick in scale.ticks()] == ["0", "0.5", "1.0"]
    half = linear([0.0, 3.0], 0, 100, high=3.0)
    assert [half.label(tick, 6) for tick in half.ticks(6)] == ["0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]
    wide = linear([0, 12_345_678], 0, 100)
    assert [wide.label(tick) for tick in wide.ticks()] == ["0", "5e+06", "1e+07"]


def test_a_logarithmic_scale_is_marked_in_steps_of_1_2_5_and_over_many_decades_by_some_powers():
    near = logarithmic([0.46, 11.7], 0, 100)
    assert (near.low, near.high) == (0.2, 20)
    assert [near.label(tick) for tick in near.ticks()] == ["0.2", "0.5", "1", "2", "5", "10", "20"]
    far = logarithmic([1e-9, 1e9], 0, 100)
    assert 4 <= len(far.ticks()) <= 12
    assert all(math.log10(tick) == pytest.approx(round(math.log10(tick))) for tick in far.ticks())


@given(FIGURES, some.booleans())
def test_a_scale_holds_every_value_in_order(values, zero):
    scale = linear(values, 0, 100, zero=zero)
    places = [scale(value) for value in sorted(value for value in values if value is not None)]
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
    assert places == sorted(places)
    assert 1 <= len(scale.ticks()) <= 12
    assert all(-1e-6 <= scale(tick) <= 100 + 1e-6 for tick in scale.ticks())


@given(FIGURES, some.floats(-1e9, 1e9))
def test_a_scale_that_is_cut_off_has_ticks_wherever_its_values_lie(values, high):
    scale = linear(values, 0, 100, zero=False, high=high)
    assert scale.high > scale.low
    assert 1 <= len(scale.ticks()) <= 12
    assert all(scale.label(tick) for tick in scale.ticks())


@given(some.lists(some.floats(1e-99, 1e99), min_size=1, max_size=20))
def test_a_logarithmic_scale_holds_every_positive_value(values):
    scale = logarithmic(values, 0, 100)
    assert all(-0.1 <= scale(value) <= 100.1 for value in values)
    assert 1 <= len(scale.ticks()) <= 20


# ---- thinning


def test_a_long_curve_keeps_its_ends_and_extremes():
    chance = random.Random(0)
    points = [(place, chance.gauss(0, 1)) for place in range(100_000)]
    points[77_777] = (77_777, 50.0)
    points[33_333] = (33_333, -50.0)
    kept = thin(points, 1000)
    assert len(kept) <= 1000
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert {(77_777, 50.0), (33_333, -50.0)} <= set(kept)
    assert kept == sorted(kept)
    assert thin(points[:1000], 1000) == points[:1000]


def test_a_gap_of_some_length_stays_one():
    points = [(place, None if 4000 <= place < 5000 else 1.0) for place in range(10_000)]
    inside = [y for x, y in thin(points, 100) if 4200 <= x < 4800]
    assert inside
    assert set(inside) == {None}


def test_means_leave_out_what_is_not_known():
    points = [(0, 1.0), (1, None), (2, 3.0), (3, 8.0)]
    assert running_mean(points, 2) == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 5.5)]
    assert binned([(1, None), (3, 4.0), (5, 6.0), (7, 8.0)], 2) == [[2, 4.0], [6, 7.0]]
    assert binned([(1, 2)], 5) == [[1, 2]]


# ---- markup and plots


def test_text_never_becomes_markup():
    page = element("p", NASTY, element("b", NASTY), title=NASTY)
    read = ElementTree.fromstring(page)
    assert (read.text, read.get("title"), read[0].text) == (NASTY, NASTY, NASTY)
    assert "<img" not in page
    assert joined(None, ["a<b", Markup("<br>")]) == "a&lt;b<br>"
    assert element("p", "\ud800", title="\udfff") == '<p title="?">?</p>'


def test_data_for_the_script_cannot_end_it():
    page = data({"name": NASTY})
    inner = page.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert "<" not in inner
    assert json.loads(inner) == {"name": NASTY}


def nasty_plots():
    points = [(0, None), (1, 1e100), (2, -1e100), (3, 0.0), (4, 1e-100), (5, None), (6, 5.0)]
    style = style_of(0)
    yield Plot(NASTY, [Curve(NASTY, points, style, 0)], NASTY, shaded=((1, 9),), levels=((0.0, NASTY, style),))
    yield Plot("log", [Curve("a", points, style)], log=True, levels=((0.0, "none", style), (2.0, "some", style)))
    yield Plot("one point", [Curve("a", [(0, 1.0)], style)])
    yield Plot("no value", [Curve("a", [(0, None)], style)], zero=False)
    yield Plot("huge", [Curve("a", [(10**15, 1.0), (10**15 + 1, 1.0)], style)], top=1.0)
    yield Stack(NASTY, [0, 1], [[None, 1.0], [2.0, None]], [(NASTY, "#000"), ("b", "#fff")])
    yield Stack("nothing", [0], [[None]], [("a", "#000")])
    yield Bars(NASTY, [(NASTY, [0, 0]), ("b", [1, 2])], [(NASTY, "#000"), ("b", "#fff")])


@pytest.mark.parametrize("plot", list(nasty_plots()), ids=lambda plot: plot.title[:9])
def test_whatever_is_drawn_is_well_formed_and_stays_finite(plot):
    figure = draw(plot)
    ElementTree.fromstring(figure)
    assert "nan" not in figure
    assert "inf" not in figure


def test_a_curve_has_a_gap_where_nothing_is_known():
    figure = draw(Plot("a", [Curve("a", [(0, 1.0), (1, 1.0), (2, None), (3, 1.0), (4, 1.0)], style_of(0))]))
    (path,) = (node.get("d") for node in ElementTree.fromstring(figure).iter("path"))
    assert [path.count(pen) for pen in "ML"] == [2, 2]


def test_areas_stand_on_one_another():
    figure = draw(Stack("a", [0, 1], [[1.0, 3.0], [1.0, 3.0]], [("low", "#000"), ("high", "#fff")], high=4.0))
    low, high = (node.get("d") for node in ElementTree.fromstring(figure).iter("path"))
    tops = [float(path.removeprefix("M").split("L")[0].split()[1]) for path in (low, high)]
    bottom, top = linear([4.0], 214, 18, high=4.0).start, 18
    assert tops == pytest.approx([bottom - (bottom - top) / 4, top])


def test_the_first_styles_differ_in_colour_dash_and_mark():
    styles = [style_of(place) for place in range(5)]
    assert len({style.colour for style in styles}) == len({style.dash for style in styles}) == 5
    assert len({style.mark for style in styles}) == 5
    many = len({(style.colour, style.dash) for style in map(style_of, range(40))})
    assert many == 40
    assert style_of(len(LINES) * len(DASHES) * len(MARKS)) == style_of(0) == Style(LINES[0], None, MARKS[0])
