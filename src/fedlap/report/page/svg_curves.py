"""Curves with bands as SVG, which is readable by itself; a script adds hovering and toggles."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from fedlap.report.page.axis import Scale, short, tick_text
from fedlap.report.page.sections import Panel, Series
from fedlap.report.page.styles import colour_class, dash, mark

WIDTH, HEIGHT = 440.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 10.0, 44.0
MOST_MARKS = 7  # on a curve


def curves(panel: Panel, places: Mapping[str, int]) -> str:
    """A panel's picture, and its numbers for the script."""
    across = Scale.over(every(panel, "x"), LEFT, WIDTH - RIGHT, panel.log_x, 0.02)
    up = Scale.over(every(panel, "y"), HEIGHT - BOTTOM, TOP, panel.log_y, 0.05)
    drawn = "".join(_series(series, places[series.name], across, up) for series in panel.series)
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" tabindex="0" aria-label="{escape(said(panel))}">'
        f"{axes(across, up, panel.x_label, panel.y_label)}{drawn}"
        f'<line class="cursor off" y1="{TOP:g}" y2="{HEIGHT - BOTTOM:g}"/></svg>'
        f"{_numbers(panel, places, across)}"
    )


def said(panel: Panel) -> str:
    """A panel in words."""
    ends = [
        f"{series.name} {short(series.mean[-1])}"
        for series in panel.series
        if series.mean and math.isfinite(series.mean[-1])
    ]
    last = f"; at the right end: {', '.join(ends)}" if ends else ""
    return f"{panel.title}: {panel.y_label} over {panel.x_label}{last}."


def axes(across: Scale, up: Scale, x_label: str, y_label: str) -> str:
    """Grid, numbers and names of both axes."""
    bottom, left = up.begin, across.begin
    made = []
    for value in across.ticks(7):
        x = across.at(value) or left
        made.append(f'<path class="grid" d="M{x:.1f} {up.end:.1f}V{bottom:.1f}"/>')
        made.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" class="mid">{tick_text(value)}</text>')
    for value in up.ticks(6):
        y = up.at(value) or bottom
        made.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{across.end:.1f}"/>')
        made.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" class="end">{tick_text(value)}</text>')
    made.append(f'<path class="axis" d="M{left:.1f} {up.end:.1f}V{bottom:.1f}H{across.end:.1f}"/>')
    middle = (left + across.end) / 2, (bottom + up.end) / 2
    made.append(
        f'<text x="{middle[0]:.1f}" y="{bottom + 36:.1f}" class="mid name">{escape(x_label)}</text>'
        f'<text transform="translate(13 {middle[1]:.1f}) rotate(-90)" class="mid name">'
        f"{escape(y_label)}</text>"
    )
    return "".join(made)


def key(name: str, place: int, dashed: bool) -> str:
    """A method's line and mark, for a legend."""
    pattern = dash(place, dashed)
    style = f' stroke-dasharray="{pattern}"' if pattern else ""
    return (
        f'<svg class="{colour_class(place)}" viewBox="0 0 26 12" width="26" height="12" aria-hidden="true">'
        f'<path class="line" d="M0 6H26"{style}/><path class="mark" d="{mark(place, 13, 6)}"/></svg>'
        f"{escape(name)}"
    )


def every(panel: Panel, which: str) -> list[float]:
    """All values along an axis."""
    if which == "x":
        return [value for series in panel.series for value in series.x]
    lists = [some for series in panel.series for some in (series.mean, series.low, series.high)]
    return [value for some in lists if some is not None for value in some]


def _series(series: Series, place: int, across: Scale, up: Scale) -> str:
    pattern = dash(place, series.dashed)
    style = f' stroke-dasharray="{pattern}"' if pattern else ""
    runs = _unbroken(series.x, series.mean, across, up)
    line = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs)
    dots = [point for run in runs for point in run]
    # Marks of different methods at different points, so that curves that coincide are both seen.
    step = max(1, len(dots) // MOST_MARKS)
    first = place * max(1, step // 3) % step
    marks = "".join(mark(place, x, y) for x, y in dots[first::step])
    return (
        f'<g class="series {colour_class(place)}" data-name="{escape(series.name)}">'
        f'{_band(series, across, up)}<path class="line" d="{line}"{style}/>'
        f'<path class="mark" d="{marks}"/></g>'
    )


def _band(series: Series, across: Scale, up: Scale) -> str:
    if series.low is None or series.high is None:
        return ""
    # What lies below a logarithmic axis is cut off at its end.
    low = [up.low if up.log and value <= 0 else value for value in series.low]
    below, above = (_points(series.x, values, across, up) for values in (low, series.high))
    both = [(one, other) for one, other in zip(below, above, strict=True) if one and other]
    outline = [one for one, _ in both] + [other for _, other in reversed(both)]
    if not outline:
        return ""
    return f'<path class="band" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in outline)}z"/>'


def _points(
    x: Sequence[float], y: Sequence[float], across: Scale, up: Scale
) -> list[tuple[float, float] | None]:
    """Where values are drawn; None for those that have no place."""
    pairs = [(across.at(one), up.at(other)) for one, other in zip(x, y, strict=True)]
    return [None if one is None or other is None else (one, other) for one, other in pairs]


def _unbroken(
    x: Sequence[float], y: Sequence[float], across: Scale, up: Scale
) -> list[list[tuple[float, float]]]:
    """The same as lines without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in _points(x, y, across, up):
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _numbers(panel: Panel, places: Mapping[str, int], across: Scale) -> str:
    """What the script shows while hovering: places along the axis and all numbers."""
    said = {
        "width": WIDTH,
        "label": panel.x_label,
        "series": [
            {
                "name": series.name,
                "colour": colour_class(places[series.name]),
                "at": [None if (at := across.at(x)) is None else round(at, 1) for x in series.x],
                "x": _plain(series.x),
                "mean": _plain(series.mean),
                "low": _plain(series.low),
                "high": _plain(series.high),
            }
            for series in panel.series
        ],
    }
    text = json.dumps(said, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _plain(values: Sequence[float] | None) -> list[float | None] | None:
    """For JSON, which knows finite numbers alone."""
    return None if values is None else [value if math.isfinite(value) else None for value in values]
