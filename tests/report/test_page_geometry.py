"""Scales, lines, bars, drawings and colours of a page's figures: exact answers."""

import math
import re

import pytest

from fedlap.report.page import CurveSeries, Panel
from fedlap.report.page.axis import Scale, choose_linear_ticks, choose_log_ticks, format_measured, format_tick
from fedlap.report.page.sections import BarsSection
from fedlap.report.page.styles import (
    DARK,
    LIGHT,
    MARK_PATHS,
    MATPLOTLIB_MARKS,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    mix_colour,
    number_methods,
)
from fedlap.report.page.svg_clients import MAX_DRAWN_LINES, thin_lines
from fedlap.report.page.svg_curves import render_curves
from fedlap.report.page.svg_shapes import fit_points, sort_bars, summarise_bars
from pages import NASTY, PAGE


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-3, 7, [-2, 0, 2, 4, 6]),
        (97.2, 98.1, [97.2, 97.4, 97.6, 97.8, 98.0]),
        (1e-7, 6e-7, [1e-7, 2e-7, 3e-7, 4e-7, 5e-7, 6e-7]),
    ],
)
def test_linear_ticks(low, high, wanted):
    assert choose_linear_ticks(low, high) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.001, 10, [0.001, 0.01, 0.1, 1, 10]),
        (1e-12, 1, [1e-12, 1e-9, 1e-6, 1e-3, 1]),
        (0.1, 2, [0.1, 0.2, 0.5, 1, 2]),
        (0.42, 0.49, [0.42, 0.44, 0.46, 0.48]),
    ],
)
def test_log_ticks(low, high, wanted):
    assert choose_log_ticks(low, high) == pytest.approx(wanted, rel=1e-12)


def test_texts_of_numbers():
    assert [format_tick(x) for x in (0, 0.0, 1, 0.1 + 0.2, -2.5, 1e-7, 5e8, 123456)] == [
        "0", "0", "1", "0.3", "−2.5", "1e−7", "5e8", "123456",
    ]  # fmt: skip
    assert [format_measured(x) for x in (1 / 3, -2, math.nan)] == ["0.33333", "−2", "–"]


def test_scales_put_ends_at_ends():
    plain = Scale.fit([2, 4, math.nan], 10, 110)
    assert [plain.position(x) for x in (2, 3, 4, math.nan)] == [10, 60, 110, None]
    log = Scale.fit([0.01, 1], 0, 100, log=True)
    assert log.position(0.1) == pytest.approx(50)
    assert [log.position(x) for x in (0, -1)] == [None, None]
    zero = Scale.fit([0, 0.01, 1], 0, 100, log=True)
    assert zero.position(0) == 0
    assert 0 < zero.position(0.01) < zero.position(0.1) < zero.position(1) == 100
    assert zero.choose_ticks()[0] == 0
    assert Scale.fit([5, 5], 0, 1).position(5) == pytest.approx(0.5)  # nothing is divided by zero


def test_gaps_break_lines():
    panel = Panel("t", "x", "y", [CurveSeries("s", [1, 2, 3, 4, 5], [1, 2, math.nan, 2, 1])])
    text = render_curves(panel, {"s": 0})
    assert re.search(r'class="line" d="([^"]+)"', text)[1].count("M") == 2


def test_bars_are_sorted_and_counted():
    bars = BarsSection("t", "", "n", ["a", "b", "c", "d"], [("m", [-1.0, 2.0, math.nan, 0.0])], "points")
    assert sort_bars(bars, 0) == [("b", 2.0), ("d", 0.0), ("a", -1.0)]
    assert (
        summarise_bars(sort_bars(bars, 0)) == "1 above zero, up to 2 (b); 1 below, down to −1 (a); 1 at zero"
    )
    assert summarise_bars([("b", 2.0), ("d", 1.0)]) == "2 from 1 (d) to 2 (b)"
    assert summarise_bars([("b", 2.0), ("d", 0.0)]) == "1 above zero, up to 2 (b); 1 at zero"
    assert summarise_bars([("b", 0.0)]) == "1 at zero"


def test_drawings_keep_proportions_and_up_is_up():
    points = fit_points([(0, 0), (2, 0), (0, 1)], 300, 200, 10)
    assert points == [(10, 170), (290, 170), (10, 30)]
    assert fit_points([(5, 5)], 300, 200, 10) == [(150, 100)]


def test_a_method_has_one_colour_on_a_page():
    names = number_methods(PAGE)
    assert list(names) == ["fedu_1", NASTY, "third"]
    assert len(MARK_PATHS) == len(MATPLOTLIB_MARKS)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("colours", "ground"), [(LIGHT, "#ffffff"), (DARK, "#14171a")], ids=["light", "dark"]
)
def test_colours_stand_out(colours, ground):
    for colour in colours:
        dark, bright = sorted([luminance(colour), luminance(ground)])
        assert (bright + 0.05) / (dark + 0.05) >= 3, colour


def test_colours_of_a_map_have_the_sign_of_their_values():
    assert mix_colour(0.0, -1.0, 2.0, signed=True) == NEUTRAL
    assert mix_colour(2.0, -1.0, 2.0, signed=True) == POSITIVE
    assert mix_colour(-2.0, -2.0, 1.0, signed=True) == NEGATIVE
    assert [mix_colour(value, 1.0, 3.0, signed=False) for value in (1.0, 3.0)] == [NEUTRAL, POSITIVE]
    # Equal distances from zero have equal strength, whichever side reaches farther.
    weak = [mix_colour(value, -4.0, 1.0, signed=True) for value in (1.0, -1.0)]
    assert weak[0] == mix_colour(1.0, -1.0, 4.0, signed=True)
    assert weak[0] != weak[1]


def test_of_many_lines_of_a_forest_plot_the_extremes_stay():
    rows = [(f"c{place}", float(place), 0.0, 1.0) for place in range(1_000)]
    drawn = thin_lines(rows)
    assert len(drawn) == MAX_DRAWN_LINES
    assert (drawn[0], drawn[-1]) == (rows[0], rows[-1])
