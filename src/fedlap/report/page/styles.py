"""Colours and marks that distinguish methods, also for colour-blind readers and in black and white."""

import math
from collections.abc import Callable, Iterable

from fedlap.report.page.sections import EVEN, UNKNOWN, BarsSection, FigureSection, Page

# After Okabe and Ito (2008), each with a contrast of at least three: on light and on dark background.
LIGHT = ("#0072b2", "#d55e00", "#007a5a", "#b0508b", "#9a6f00", "#3091c9", "#3c3c3c")
DARK = ("#4ba3e3", "#ff8a3d", "#2cc79b", "#e59ac7", "#e8c04a", "#9bd8ff", "#e4e4e4")
GAIN, LOSS = ("#0072b2", "#4ba3e3"), ("#d55e00", "#ff8a3d")  # on light, on dark background
GREY = "#8b949e"  # nodes of the group EVEN
RADIUS = 3.6  # of a mark
# Colours of values on a map: below zero, at zero or the lowest value, and at the highest; readable on both
# backgrounds.
NEGATIVE, NEUTRAL, POSITIVE = "#d55e00", "#e3e7ea", "#0072b2"


def render_colour_variables() -> str:
    """Render the colours as CSS variables."""

    def declare(colours: tuple[str, ...], place: int) -> str:
        named = [*((f"c{n}", colour) for n, colour in enumerate(colours))]
        named += [("gain", GAIN[place]), ("loss", LOSS[place])]
        return ":root{" + "".join(f"--{name}:{colour};" for name, colour in named) + "}"

    return (
        f"{declare(LIGHT, 0)}\n@media (prefers-color-scheme:dark){{{declare(DARK, 1)}}}\n"
        f"@media print{{{declare(LIGHT, 0)}}}\n"
    )


def number_methods(page: Page) -> dict[str, int]:
    """Assign a number to every method of a page, equal in all figures."""
    names: list[str] = []
    for section in page.sections:
        if isinstance(section, FigureSection):
            names += [series.name for panel in section.panels for series in panel.series]
        elif isinstance(section, BarsSection):
            names += [name for name, _ in section.series]
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def colour_class(place: int) -> str:
    """Return the CSS class for the colour of a method number or group."""
    return {EVEN: "even", UNKNOWN: "hollow"}.get(place, f"k{place % len(LIGHT)}")


def mix_colour(value: float, low: float, high: float, signed: bool) -> str:
    """Return the colour of a value between `low` and `high`; signed values are grey at zero."""
    if signed:
        most = max(abs(low), abs(high)) or 1.0
        share, end = abs(value) / most, POSITIVE if value > 0 else NEGATIVE
    else:
        share, end = ((value - low) / (high - low) if high > low else 1.0), POSITIVE
    share = min(1.0, max(0.0, share))
    mixed = [
        round((1 - share) * int(NEUTRAL[place : place + 2], 16) + share * int(end[place : place + 2], 16))
        for place in (1, 3, 5)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def dash_pattern(place: int, dashed: bool) -> str:
    """Return the dash pattern of a line, empty for a solid one; repeated colours are dotted."""
    return "7 4" if dashed else "2 3" if place >= len(LIGHT) else ""


def mark_path(place: int, x: float, y: float) -> str:
    """Return the outline of a method's mark around a point, as an SVG path."""
    return MARK_PATHS[place % len(MARK_PATHS)](x, y)


def _draw_circle(x: float, y: float) -> str:
    r = RADIUS
    return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"


def _draw_polygon(x: float, y: float, turns: Iterable[float], size: float) -> str:
    points = [
        f"{x + size * RADIUS * math.sin(math.tau * turn):.1f} "
        f"{y - size * RADIUS * math.cos(math.tau * turn):.1f}"
        for turn in turns
    ]
    return f"M{'L'.join(points)}z"


MARK_PATHS: tuple[Callable[[float, float], str], ...] = (
    _draw_circle,
    lambda x, y: _draw_polygon(x, y, (1 / 8, 3 / 8, 5 / 8, 7 / 8), 1.25),  # a square
    lambda x, y: _draw_polygon(x, y, (0, 1 / 3, 2 / 3), 1.35),  # a triangle
    lambda x, y: _draw_polygon(x, y, (0, 1 / 4, 1 / 2, 3 / 4), 1.35),  # a diamond
    lambda x, y: _draw_polygon(x, y, (1 / 2, 5 / 6, 1 / 6), 1.35),  # a triangle on its point
)
MATPLOTLIB_MARKS = ("o", "s", "^", "D", "v")  # the same
