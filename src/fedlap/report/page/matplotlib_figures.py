"""Figures as PNG and PDF."""

import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

from fedlap.report.page.axis import Scale, format_tick
from fedlap.report.page.matplotlib_clients import draw_intervals, draw_map, draw_scatter
from fedlap.report.page.sections import (
    EVEN,
    UNKNOWN,
    BarsSection,
    FigureSection,
    GraphSection,
    HeatmapSection,
    IntervalSection,
    MapSection,
    Panel,
    ScatterSection,
)
from fedlap.report.page.styles import GAIN, GREY, LIGHT, LOSS, MATPLOTLIB_MARKS, dash_pattern
from fedlap.report.page.svg_curves import list_values_along
from fedlap.report.page.svg_shapes import MAX_NAMED_BARS, shorten_name, sort_bars, thin_bars

DrawnSection = (
    FigureSection
    | BarsSection
    | HeatmapSection
    | GraphSection
    | MapSection
    | IntervalSection
    | ScatterSection
)
FIGURE_FORMATS = ("png", "pdf")
MARKS_PER_CURVE = 8  # approximately
MAX_AXIS_NAMES = 40  # longer lists of names are thinned


def render_figures(section: DrawnSection, places: Mapping[str, int]) -> dict[str, bytes]:
    """Render a figure in each format."""
    from matplotlib.text import Text

    figure = _draw_section(section, places)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    files = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for form in FIGURE_FORMATS:
            file = io.BytesIO()
            # The creation date is left out so that equal pages give equal files.
            more = {"metadata": {"CreationDate": None}} if form == "pdf" else {"dpi": 150}
            figure.savefig(file, format=form, **more)
            files[form] = file.getvalue()
            figure.set_layout_engine("none")  # the layout is computed by now
    return files


def _draw_section(section: DrawnSection, places: Mapping[str, int]) -> Any:
    match section:
        case FigureSection():
            return _draw_panels(section, places)
        case BarsSection():
            return _draw_bars(section)
        case HeatmapSection():
            return _draw_heatmap(section)
        case GraphSection():
            return _draw_graph(section)
        case MapSection():
            return draw_map(section, _create_figure)
        case IntervalSection():
            return draw_intervals(section, _create_figure)
        case ScatterSection():
            return draw_scatter(section, _create_figure)


def _create_figure(width: float, height: float) -> Any:
    """Create an empty figure without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_panels(section: FigureSection, places: Mapping[str, int]) -> Any:
    across = min(3, len(section.panels))
    down = -(-len(section.panels) // max(1, across))
    figure = _create_figure(4.4 * across, 3.4 * down + 0.4)
    axes = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for axis in axes[len(section.panels) :]:
        axis.axis("off")
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, section.panels, strict=False):
        handles |= {
            name: line for name, line in _draw_lines(axis, panel, places).items() if name not in handles
        }
    if handles:
        columns = max(1, int(4.4 * across / (0.6 + 0.08 * max(map(len, handles)))))
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=columns, fontsize="small",
            frameon=False,
        )  # fmt: skip
    return figure


def _draw_lines(axis: Any, panel: Panel, places: Mapping[str, int]) -> dict[str, Any]:
    """Draw the curves and bands of a panel; return legend handles."""
    handles = {}
    for series in panel.series:
        place = places[series.name]
        look = LIGHT[place % len(LIGHT)], MATPLOTLIB_MARKS[place % len(MATPLOTLIB_MARKS)]
        pattern = tuple(float(part) / 1.5 for part in dash_pattern(place, series.dashed).split())
        (handles[series.name],) = axis.plot(
            series.x, series.mean, color=look[0], linestyle=(0, pattern) if pattern else "-", linewidth=1.4,
            marker=look[1], markersize=4, markevery=max(1, len(series.x) // MARKS_PER_CURVE),
        )  # fmt: skip
        if series.low is not None and series.high is not None:
            axis.fill_between(series.x, series.low, series.high, color=look[0], alpha=0.16, linewidth=0)
    _set_log_axes(axis, panel)
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axis.title.set_fontsize("medium")
    axis.grid(alpha=0.3)
    return handles


def _set_log_axes(axis: Any, panel: Panel) -> None:
    """Set logarithmic axes, with ticks as on the page; a zero lies before the smallest value."""
    from matplotlib.ticker import NullLocator

    for along, log, values, put in (
        (axis.xaxis, panel.log_x, list_values_along(panel, "x"), axis.set_xscale),
        (axis.yaxis, panel.log_y, list_values_along(panel, "y"), axis.set_yscale),
    ):
        if not log:
            continue
        above = [value for value in values if value > 0]
        if above and min(values) == 0:
            put("symlog", linthresh=min(above), linscale=0.5)
        else:
            put("log")
        ticks = Scale.fit(values, 0, 1, log=True, margin=0.05).choose_ticks()
        along.set_ticks(ticks, labels=[format_tick(value) for value in ticks])
        along.set_minor_locator(NullLocator())


def _draw_bars(section: BarsSection) -> Any:
    rows = len(section.series)
    figure = _create_figure(8, 0.4 + 2.3 * max(1, rows))
    axes = figure.subplots(max(1, rows), 1, squeeze=False, sharey=True).flatten().tolist()
    for place, axis in enumerate(axes[:rows]):
        shown = thin_bars(sort_bars(section, place))
        values = [value for _, value in shown]
        edges = [place - 0.5 for place in range(len(values) + 1)]
        # Two outlines replace single bars, which take seconds if there are many.
        axis.stairs([max(value, 0.0) for value in values], edges, fill=True, color=GAIN[0])
        axis.stairs([min(value, 0.0) for value in values], edges, fill=True, color=LOSS[0])
        axis.margins(x=0.01)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(section.series[place][0], fontsize="medium")
        axis.set_ylabel(section.unit)
        axis.grid(axis="y", alpha=0.3)
        if len(shown) <= MAX_NAMED_BARS:
            names = [shorten_name(label) for label, _ in shown]
            turn = 90 if max(map(len, names), default=0) > 3 else 0
            axis.set_xticks(range(len(names)), names, rotation=turn, fontsize="small")
        else:
            axis.set_xticks([])
    return figure


def _draw_heatmap(section: HeatmapSection) -> Any:
    rows, columns = len(section.rows), len(section.columns)
    figure = _create_figure(max(4.0, min(12.0, 2 + 0.35 * columns)), max(2.5, min(14.0, 1 + 0.22 * rows)))
    axis = figure.subplots()
    values = [[value if math.isfinite(value) else 0.0 for value in line] for line in section.values]
    image = axis.imshow(values, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0)
    for ticks, names, turn in (
        (axis.set_xticks, section.columns, 90 if max(map(len, section.columns), default=0) > 3 else 0),
        (axis.set_yticks, section.rows, 0),
    ):
        step = max(1, -(-len(names) // MAX_AXIS_NAMES))
        ticks(range(0, len(names), step), map(shorten_name, names[::step]), rotation=turn, fontsize="small")
    figure.colorbar(image, ax=axis, pad=0.02)
    return figure


def _draw_graph(section: GraphSection) -> Any:
    from matplotlib.collections import LineCollection

    figure = _create_figure(6.4, 4.8)
    axis = figure.subplots()
    positions = [(x, y) for _, x, y, _ in section.nodes]
    most = max((weight for *_, weight in section.edges), default=0.0) or 1.0
    dark = min(0.75, max(0.08, 6 / math.sqrt(max(1, len(section.edges)))))
    edges = sorted(section.edges, key=lambda edge: edge[2])
    axis.add_collection(
        LineCollection(
            [(positions[one], positions[other]) for one, other, _ in edges],
            colors=[(0.1, 0.1, 0.1, dark * (0.2 + 0.8 * weight / most)) for *_, weight in edges],
            linewidths=[0.4 + 1.6 * weight / most for *_, weight in edges],
            zorder=1,
        )
    )
    named = len(positions) <= MAX_AXIS_NAMES and max((len(node[0]) for node in section.nodes), default=0) <= 3
    special = {EVEN: GREY, UNKNOWN: "white"}
    colours = [special.get(group, LIGHT[group % len(LIGHT)]) for *_, group in section.nodes]
    rims = [GREY if group == UNKNOWN else "white" for *_, group in section.nodes]
    area = 260 if named else max(8, 6000 / max(1, len(positions)))
    if positions:
        axis.scatter(
            *zip(*positions, strict=True), s=area, c=colours, edgecolors=rims, linewidths=0.8, zorder=2
        )
    for (name, *_, group), place in zip(
        section.nodes if named else [], positions if named else [], strict=True
    ):
        ink = "black" if group == UNKNOWN else "white"
        axis.annotate(name, place, ha="center", va="center", fontsize=8, color=ink, zorder=3)
    axis.set_aspect("equal")
    axis.margins(0.06)
    axis.axis("off")
    return figure
