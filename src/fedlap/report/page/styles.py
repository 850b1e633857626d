"""Colours and marks that tell methods apart, also for the colour-blind and in black and white."""

import math
from collections.abc import Callable, Iterable

from fedlap.report.page.sections import EVEN, UNKNOWN, BarsSection, FigureSection, Page

# After Okabe and Ito (2008), each with a contrast of three and more to the page: on light ground, on dark.
LIGHT = ("#0072b2", "#d55e00", "#007a5a", "#b0508b", "#9a6f00", "#3091c9", "#3c3c3c")
DARK = ("#4ba3e3", "#ff8a3d", "#2cc79b", "#e59ac7", "#e8c04a", "#9bd8ff", "#e4e4e4")
GAIN, LOSS = ("#0072b2", "#4ba3e3"), ("#d55e00", "#ff8a3d")  # on light ground, on dark
GREY = "#8b949e"  # of nodes that are neither
RADIUS = 3.6  # of a mark


def style() -> str:
    """The colours as variables of a style sheet."""

    def listed(colours: tuple[str, ...], place: int) -> str:
        named = [*((f"c{n}", colour) for n, colour in enumerate(colours))]
        named += [("gain", GAIN[place]), ("loss", LOSS[place])]
        return ":root{" + "".join(f"--{name}:{colour};" for name, colour in named) + "}"

    return (
        f"{listed(LIGHT, 0)}\n@media (prefers-color-scheme:dark){{{listed(DARK, 1)}}}\n"
        f"@media print{{{listed(LIGHT, 0)}}}\n"
    )


def places(page: Page) -> dict[str, int]:
    """A number for every method of a page, the same in all its figures."""
    names: list[str] = []
    for section in page.sections:
        if isinstance(section, FigureSection):
            names += [series.name for panel in section.panels for series in panel.series]
        elif isinstance(section, BarsSection):
            names += [name for name, _ in section.series]
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def colour_class(place: int) -> str:
    """The class that gives a place its colour."""
    return {EVEN: "even", UNKNOWN: "hollow"}.get(place, f"k{place % len(LIGHT)}")


def dash(place: int, dashed: bool) -> str:
    """The pattern of a line, empty for an unbroken one; colours that come again are dotted."""
    return "7 4" if dashed else "2 3" if place >= len(LIGHT) else ""


def mark(place: int, x: float, y: float) -> str:
    """The outline of a method's mark around a point, as an SVG path."""
    return MARKS[place % len(MARKS)](x, y)


def _round(x: float, y: float) -> str:
    r = RADIUS
    return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"


def _corners(x: float, y: float, turns: Iterable[float], size: float) -> str:
    points = [
        f"{x + size * RADIUS * math.sin(math.tau * turn):.1f} "
        f"{y - size * RADIUS * math.cos(math.tau * turn):.1f}"
        for turn in turns
    ]
    return f"M{'L'.join(points)}z"


MARKS: tuple[Callable[[float, float], str], ...] = (
    _round,
    lambda x, y: _corners(x, y, (1 / 8, 3 / 8, 5 / 8, 7 / 8), 1.25),  # a square
    lambda x, y: _corners(x, y, (0, 1 / 3, 2 / 3), 1.35),  # a triangle
    lambda x, y: _corners(x, y, (0, 1 / 4, 1 / 2, 3 / 4), 1.35),  # a diamond
    lambda x, y: _corners(x, y, (1 / 2, 5 / 6, 1 / 6), 1.35),  # a triangle on its point
)
MATPLOTLIB_MARKS = ("o", "s", "^", "D", "v")  # the same
