"""Maps, forest plots and scatter plots of clients as PNG and PDF, with the look of the page."""

import math
from collections.abc import Callable
from typing import Any

from fedlap.report.page.sections import IntervalSection, MapSection, ScatterSection
from fedlap.report.page.styles import GREY, LIGHT, mix_colour
from fedlap.report.page.svg_clients import LEGEND_STEPS, find_limits, thin_lines
from fedlap.report.page.svg_shapes import shorten_name

CreateFigure = Callable[[float, float], Any]  # an empty figure of this width and height, in inches


def draw_map(section: MapSection, create_figure: CreateFigure) -> Any:
    """Draw clients at their places, coloured by value, with edges beneath and a legend below."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patheffects import withStroke

    figure = create_figure(6.4, 6.0)
    axis = figure.subplots()
    positions = [(x, y) for _, x, y, _ in section.nodes]
    most = max((weight for *_, weight in section.edges), default=0.0) or 1.0
    pale = min(0.7, max(0.1, 8 / math.sqrt(max(1, len(section.edges)))))
    axis.add_collection(
        LineCollection(
            [(positions[one], positions[other]) for one, other, _ in section.edges],
            colors=[(0.35, 0.38, 0.42, pale * (0.3 + 0.7 * weight / most)) for *_, weight in section.edges],
            linewidths=0.8,
            zorder=1,
        )
    )
    low, high = find_limits(section)
    colours = [
        mix_colour(value, low, high, section.signed) if math.isfinite(value) else "white"
        for *_, value in section.nodes
    ]
    if positions:
        area = max(10.0, min(60.0, 9000 / len(positions)))
        axis.scatter(
            *zip(*positions, strict=True), s=area, c=colours, edgecolors=GREY, linewidths=0.6, zorder=2
        )
    halo = [withStroke(linewidth=2, foreground="white")]
    for number in section.labelled:
        name, x, y, _ = section.nodes[number]
        axis.annotate(
            shorten_name(name), (x, y), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=7,
            path_effects=halo, zorder=3,
        )  # fmt: skip
    if high > low:
        steps = [low + (step + 0.5) / LEGEND_STEPS * (high - low) for step in range(LEGEND_STEPS)]
        shades = ListedColormap([mix_colour(value, low, high, section.signed) for value in steps])
        bar = figure.colorbar(
            ScalarMappable(Normalize(low, high), shades), ax=axis, location="bottom", shrink=0.5, aspect=30
        )
        bar.set_label(section.meaning or section.unit)
    axis.set_aspect("equal")
    axis.margins(0.06)
    axis.axis("off")
    return figure


def draw_intervals(section: IntervalSection, create_figure: CreateFigure) -> Any:
    """Draw a line per client: its name, the estimate and the interval around it."""
    lines = max((len(thin_lines(panel.rows)) for panel in section.panels), default=0)
    figure = create_figure(4.6 * max(1, len(section.panels)), 0.8 + 0.16 * lines)
    axes = figure.subplots(1, max(1, len(section.panels)), squeeze=False).flatten().tolist()
    for axis, panel in zip(axes, section.panels, strict=False):
        rows = thin_lines(panel.rows)
        places = range(len(rows))
        if panel.reference is not None:
            axis.axvline(panel.reference, color=GREY, linestyle="--", linewidth=0.9)
        axis.hlines(places, [row[2] for row in rows], [row[3] for row in rows], color=LIGHT[0], linewidth=1.2)
        axis.plot([row[1] for row in rows], places, "o", color=LIGHT[0], markersize=3)
        axis.set_yticks(places, [shorten_name(row[0]) for row in rows], fontsize="xx-small")
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_title(panel.title, fontsize="medium")
        axis.set_xlabel(panel.unit)
        axis.grid(axis="x", alpha=0.3)
    return figure


def draw_scatter(section: ScatterSection, create_figure: CreateFigure) -> Any:
    """Draw points around the diagonal."""
    figure = create_figure(4.8, 4.8)
    axis = figure.subplots()
    x, y = [point[1] for point in section.points], [point[2] for point in section.points]
    axis.plot(x, y, "o", color=LIGHT[0], alpha=0.45, markersize=3, markeredgewidth=0)
    if x:
        axis.axline((min(x), min(x)), slope=1, color=GREY, linestyle="--", linewidth=0.9)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set(xlabel=section.x_label, ylabel=section.y_label)
    axis.grid(alpha=0.3)
    return figure
