"""Curves with bands as SVG, readable without the script, which adds tooltips and toggles."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from fedlap.report.page.axis import Scale, format_measured, format_tick
from fedlap.report.page.sections import CurveSeries, Panel
from fedlap.report.page.styles import colour_class, dash_pattern, mark_path

WIDTH, HEIGHT = 440.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 10.0, 44.0
MAX_MARKS = 7  # on a curve


def render_curves(panel: Panel, places: Mapping[str, int]) -> str:
    """Render a panel, and its numbers for the script."""
    across = Scale.fit(list_values_along(panel, "x"), LEFT, WIDTH - RIGHT, panel.log_x, 0.02)
    up = Scale.fit(list_values_along(panel, "y"), HEIGHT - BOTTOM, TOP, panel.log_y, 0.05)
    drawn = "".join(_render_series(series, places[series.name], across, up) for series in panel.series)
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" tabindex="0" '
        f'aria-label="{escape(describe_panel(panel))}">'
        f"{render_axes(across, up, panel.x_label, panel.y_label)}{drawn}"
        f'<line class="cursor off" y1="{TOP:g}" y2="{HEIGHT - BOTTOM:g}"/></svg>'
        f"{_render_numbers(panel, places, across)}"
    )


def describe_panel(panel: Panel) -> str:
    """Describe a panel for screen readers."""
    ends = [
        f"{series.name} {format_measured(series.mean[-1])}"
        for series in panel.series
        if series.mean and math.isfinite(series.mean[-1])
    ]
    last = f"; last values: {', '.join(ends)}" if ends else ""
    return f"{panel.title}: {panel.y_label} over {panel.x_label}{last}."


def render_axes(across: Scale, up: Scale, x_label: str, y_label: str) -> str:
    """Render grid, tick labels and names of both axes."""
    bottom, left = up.begin, across.begin
    parts = []
    for value in across.choose_ticks(7):
        x = across.position(value) or left
        parts.append(f'<path class="grid" d="M{x:.1f} {up.end:.1f}V{bottom:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" class="mid">{format_tick(value)}</text>')
    for value in up.choose_ticks(6):
        y = up.position(value) or bottom
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{across.end:.1f}"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" class="end">{format_tick(value)}</text>')
    parts.append(f'<path class="axis" d="M{left:.1f} {up.end:.1f}V{bottom:.1f}H{across.end:.1f}"/>')
    middle = (left + across.end) / 2, (bottom + up.end) / 2
    parts.append(
        f'<text x="{middle[0]:.1f}" y="{bottom + 36:.1f}" class="mid name">{escape(x_label)}</text>'
        f'<text transform="translate(13 {middle[1]:.1f}) rotate(-90)" class="mid name">'
        f"{escape(y_label)}</text>"
    )
    return "".join(parts)


def render_key(name: str, place: int, dashed: bool) -> str:
    """Render the line and mark of a method for a legend."""
    pattern = dash_pattern(place, dashed)
    style = f' stroke-dasharray="{pattern}"' if pattern else ""
    return (
        f'<svg class="{colour_class(place)}" viewBox="0 0 26 12" width="26" height="12" aria-hidden="true">'
        f'<path class="line" d="M0 6H26"{style}/><path class="mark" d="{mark_path(place, 13, 6)}"/></svg>'
        f"{escape(name)}"
    )


def list_values_along(panel: Panel, axis: str) -> list[float]:
    """Return all values of a panel along an axis."""
    if axis == "x":
        return [value for series in panel.series for value in series.x]
    lists = [values for series in panel.series for values in (series.mean, series.low, series.high)]
    return [value for values in lists if values is not None for value in values]


def _render_series(series: CurveSeries, place: int, across: Scale, up: Scale) -> str:
    pattern = dash_pattern(place, series.dashed)
    style = f' stroke-dasharray="{pattern}"' if pattern else ""
    runs = _split_at_gaps(series.x, series.mean, across, up)
    line = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs)
    dots = [point for run in runs for point in run]
    # Methods have marks at different points, so that coinciding curves are both visible.
    step = max(1, len(dots) // MAX_MARKS)
    first = place * max(1, step // 3) % step
    marks = "".join(mark_path(place, x, y) for x, y in dots[first::step])
    return (
        f'<g class="series {colour_class(place)}" data-name="{escape(series.name)}">'
        f'{_render_band(series, across, up)}<path class="line" d="{line}"{style}/>'
        f'<path class="mark" d="{marks}"/></g>'
    )


def _render_band(series: CurveSeries, across: Scale, up: Scale) -> str:
    if series.low is None or series.high is None:
        return ""
    # Values below a logarithmic axis are cut off at its end.
    low = [up.low if up.log and value <= 0 else value for value in series.low]
    below, above = (_place_points(series.x, values, across, up) for values in (low, series.high))
    both = [(one, other) for one, other in zip(below, above, strict=True) if one and other]
    outline = [one for one, _ in both] + [other for _, other in reversed(both)]
    if not outline:
        return ""
    return f'<path class="band" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in outline)}z"/>'


def _place_points(
    x: Sequence[float], y: Sequence[float], across: Scale, up: Scale
) -> list[tuple[float, float] | None]:
    """Return positions of points; None for points that cannot be drawn."""
    pairs = [(across.position(one), up.position(other)) for one, other in zip(x, y, strict=True)]
    return [None if one is None or other is None else (one, other) for one, other in pairs]


def _split_at_gaps(
    x: Sequence[float], y: Sequence[float], across: Scale, up: Scale
) -> list[list[tuple[float, float]]]:
    """Split points into lines at the gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in _place_points(x, y, across, up):
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _render_numbers(panel: Panel, places: Mapping[str, int], across: Scale) -> str:
    """Render the tooltip data for the script: positions along the axis and all numbers."""
    numbers = {
        "width": WIDTH,
        "label": panel.x_label,
        "series": [
            {
                "name": series.name,
                "colour": colour_class(places[series.name]),
                "at": [None if (at := across.position(x)) is None else round(at, 1) for x in series.x],
                "x": _replace_nonfinite(series.x),
                "mean": _replace_nonfinite(series.mean),
                "low": _replace_nonfinite(series.low),
                "high": _replace_nonfinite(series.high),
            }
            for series in panel.series
        ],
    }
    text = json.dumps(numbers, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _replace_nonfinite(values: Sequence[float] | None) -> list[float | None] | None:
    """Replace non-finite numbers with None, since JSON has none."""
    return None if values is None else [value if math.isfinite(value) else None for value in values]
