"""Figures as PNG and PDF."""

import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

from fedlap.report.page.axis import Scale, tick_text
from fedlap.report.page.sections import (
    EVEN,
    UNKNOWN,
    BarsSection,
    DrawingSection,
    FigureSection,
    HeatSection,
    Panel,
)
from fedlap.report.page.styles import GAIN, GREY, LIGHT, LOSS, MATPLOTLIB_MARKS, dash
from fedlap.report.page.svg_curves import every
from fedlap.report.page.svg_shapes import NAMED_BARS, cut, evenly, ordered

Drawn = FigureSection | BarsSection | HeatSection | DrawingSection
FORMS = ("png", "pdf")
MARKED = 8  # points of a curve that bear a mark, about
MOST_TICKS = 40  # names along an axis


def pictures(section: Drawn, places: Mapping[str, int]) -> dict[str, bytes]:
    """The same picture in each of the forms."""
    from matplotlib.text import Text

    figure = _drawn(section, places)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    made = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for form in FORMS:
            file = io.BytesIO()
            # Without the time at which it was made, so that the same page gives the same file.
            more = {"metadata": {"CreationDate": None}} if form == "pdf" else {"dpi": 150}
            figure.savefig(file, format=form, **more)
            made[form] = file.getvalue()
            figure.set_layout_engine("none")  # which has found its places now
    return made


def _drawn(section: Drawn, places: Mapping[str, int]) -> Any:
    match section:
        case FigureSection():
            return _curves(section, places)
        case BarsSection():
            return _bars(section)
        case HeatSection():
            return _heat(section)
        case DrawingSection():
            return _drawing(section)


def _figure(width: float, height: float) -> Any:
    """An empty one, which no window knows of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _curves(section: FigureSection, places: Mapping[str, int]) -> Any:
    across = min(3, len(section.panels))
    down = -(-len(section.panels) // max(1, across))
    figure = _figure(4.4 * across, 3.4 * down + 0.4)
    axes = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for axis in axes[len(section.panels) :]:
        axis.axis("off")
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, section.panels, strict=False):
        handles |= {name: line for name, line in _lines(axis, panel, places).items() if name not in handles}
    if handles:
        columns = max(1, int(4.4 * across / (0.6 + 0.08 * max(map(len, handles)))))
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=columns, fontsize="small",
            frameon=False,
        )  # fmt: skip
    return figure


def _lines(axis: Any, panel: Panel, places: Mapping[str, int]) -> dict[str, Any]:
    """Curves and bands of a panel."""
    handles = {}
    for series in panel.series:
        place = places[series.name]
        look = LIGHT[place % len(LIGHT)], MATPLOTLIB_MARKS[place % len(MATPLOTLIB_MARKS)]
        pattern = tuple(float(part) / 1.5 for part in dash(place, series.dashed).split())
        (handles[series.name],) = axis.plot(
            series.x, series.mean, color=look[0], linestyle=(0, pattern) if pattern else "-", linewidth=1.4,
            marker=look[1], markersize=4, markevery=max(1, len(series.x) // MARKED),
        )  # fmt: skip
        if series.low is not None and series.high is not None:
            axis.fill_between(series.x, series.low, series.high, color=look[0], alpha=0.16, linewidth=0)
    _logarithmic(axis, panel)
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axis.title.set_fontsize("medium")
    axis.grid(alpha=0.3)
    return handles


def _logarithmic(axis: Any, panel: Panel) -> None:
    """Axes that are, with numbers as on the page; a zero among the values has a place before the others."""
    from matplotlib.ticker import NullLocator

    for along, log, values, put in (
        (axis.xaxis, panel.log_x, every(panel, "x"), axis.set_xscale),
        (axis.yaxis, panel.log_y, every(panel, "y"), axis.set_yscale),
    ):
        if not log:
            continue
        above = [value for value in values if value > 0]
        if above and min(values) == 0:
            put("symlog", linthresh=min(above), linscale=0.5)
        else:
            put("log")
        ticks = Scale.over(values, 0, 1, log=True, margin=0.05).ticks()
        along.set_ticks(ticks, labels=[tick_text(value) for value in ticks])
        along.set_minor_locator(NullLocator())


def _bars(section: BarsSection) -> Any:
    rows = len(section.series)
    figure = _figure(8, 0.4 + 2.3 * max(1, rows))
    axes = figure.subplots(max(1, rows), 1, squeeze=False, sharey=True).flatten().tolist()
    for place, axis in enumerate(axes[:rows]):
        shown = evenly(ordered(section, place))
        values = [value for _, value in shown]
        edges = [place - 0.5 for place in range(len(values) + 1)]
        # Two outlines, since many single bars take seconds.
        axis.stairs([max(value, 0.0) for value in values], edges, fill=True, color=GAIN[0])
        axis.stairs([min(value, 0.0) for value in values], edges, fill=True, color=LOSS[0])
        axis.margins(x=0.01)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(section.series[place][0], fontsize="medium")
        axis.set_ylabel(section.unit)
        axis.grid(axis="y", alpha=0.3)
        if len(shown) <= NAMED_BARS:
            names = [cut(label) for label, _ in shown]
            turn = 90 if max(map(len, names), default=0) > 3 else 0
            axis.set_xticks(range(len(names)), names, rotation=turn, fontsize="small")
        else:
            axis.set_xticks([])
    return figure


def _heat(section: HeatSection) -> Any:
    rows, columns = len(section.rows), len(section.columns)
    figure = _figure(max(4.0, min(12.0, 2 + 0.35 * columns)), max(2.5, min(14.0, 1 + 0.22 * rows)))
    axis = figure.subplots()
    values = [[value if math.isfinite(value) else 0.0 for value in line] for line in section.values]
    image = axis.imshow(values, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0)
    for ticks, names, turn in (
        (axis.set_xticks, section.columns, 90 if max(map(len, section.columns), default=0) > 3 else 0),
        (axis.set_yticks, section.rows, 0),
    ):
        step = max(1, -(-len(names) // MOST_TICKS))
        ticks(range(0, len(names), step), map(cut, names[::step]), rotation=turn, fontsize="small")
    figure.colorbar(image, ax=axis, pad=0.02)
    return figure


def _drawing(section: DrawingSection) -> Any:
    from matplotlib.collections import LineCollection

    figure = _figure(6.4, 4.8)
    axis = figure.subplots()
    at = [(x, y) for _, x, y, _ in section.nodes]
    most = max((weight for *_, weight in section.edges), default=0.0) or 1.0
    dark = min(0.75, max(0.08, 6 / math.sqrt(max(1, len(section.edges)))))
    edges = sorted(section.edges, key=lambda edge: edge[2])
    axis.add_collection(
        LineCollection(
            [(at[one], at[other]) for one, other, _ in edges],
            colors=[(0.1, 0.1, 0.1, dark * (0.2 + 0.8 * weight / most)) for *_, weight in edges],
            linewidths=[0.4 + 1.6 * weight / most for *_, weight in edges],
            zorder=1,
        )
    )
    named = len(at) <= MOST_TICKS and max((len(node[0]) for node in section.nodes), default=0) <= 3
    special = {EVEN: GREY, UNKNOWN: "white"}
    colours = [special.get(group, LIGHT[group % len(LIGHT)]) for *_, group in section.nodes]
    rims = [GREY if group == UNKNOWN else "white" for *_, group in section.nodes]
    area = 260 if named else max(8, 6000 / max(1, len(at)))
    if at:
        axis.scatter(*zip(*at, strict=True), s=area, c=colours, edgecolors=rims, linewidths=0.8, zorder=2)
    for (name, *_, group), place in zip(section.nodes if named else [], at if named else [], strict=True):
        ink = "black" if group == UNKNOWN else "white"
        axis.annotate(name, place, ha="center", va="center", fontsize=8, color=ink, zorder=3)
    axis.set_aspect("equal")
    axis.margins(0.06)
    axis.axis("off")
    return figure
