"""Bars, heatmaps and graphs as SVG."""

import math
from html import escape

from fedlap.report.page.axis import Scale, format_measured, format_tick
from fedlap.report.page.sections import BarsSection, GraphSection, HeatmapSection
from fedlap.report.page.styles import colour_class

BARS_SIZE = 720.0, 250.0  # width and height
HEATMAP_WIDTH = 720.0
GRAPH_SIZE = 480.0, 400.0
MAX_NAMED_BARS = 36  # more bars are drawn without names
MAX_DRAWN_BARS = 400  # more bars are thinned
MANY_EDGES = 150  # more are drawn thin
FEW_NODES = 200  # more are drawn without rims
MAX_LETTERS = 18  # longer names are shortened
LETTER_WIDTH, CAPITAL_WIDTH = 6.6, 8.8  # approximate, in SVG units


def sort_bars(section: BarsSection, place: int) -> list[tuple[str, float]]:
    """Return the known bars of one method, from highest to lowest."""
    pairs = zip(section.labels, section.series[place][1], strict=True)
    return sorted((pair for pair in pairs if math.isfinite(pair[1])), key=lambda pair: -pair[1])


def thin_bars(shown: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Thin very many bars evenly; the first and the last stay."""
    if len(shown) <= MAX_DRAWN_BARS:
        return shown
    return [shown[round(place * (len(shown) - 1) / (MAX_DRAWN_BARS - 1))] for place in range(MAX_DRAWN_BARS)]


def render_bars(section: BarsSection, place: int) -> str:
    """Render the bars of one method, from highest to lowest, on both sides of zero."""
    every = sort_bars(section, place)
    shown = thin_bars(every)
    width, height = BARS_SIZE
    named = len(shown) <= MAX_NAMED_BARS
    longest = max((estimate_width(label) for label, _ in shown), default=0.0)
    turned = longest > 0.9 * (width - 58) / max(1, len(shown))
    foot = (10 + longest if turned else 20) if named else 8
    up = Scale.fit([0.0, *(value for _, value in shown)], height - foot, 10, margin=0.03)
    zero = up.position(0.0) or 0.0
    left, room = 52.0, (width - 58) / max(1, len(shown))
    parts = [
        f'<path class="grid" d="M{left} {up.position(tick):.1f}H{width - 6}"/>'
        f'<text x="{left - 6}" y="{(up.position(tick) or 0) + 4:.1f}" class="end">{format_tick(tick)}</text>'
        for tick in up.choose_ticks(6)
    ]
    for number, (label, value) in enumerate(shown):
        x, y = left + number * room, up.position(value) or 0.0
        top, tall = min(y, zero), max(abs(y - zero), 0.8)
        kind = "gain" if value > 0 else "loss" if value < 0 else "even"
        wide = max(0.7, room * 0.8)
        title = escape(f"{label}: {format_measured(value)} {section.unit}")
        parts.append(
            f'<rect class="bar {kind}" x="{x + room * 0.1:.1f}" y="{top:.1f}" width="{wide:.1f}" '
            f'height="{tall:.1f}"><title>{title}</title></rect>'
        )
        if named:
            parts.append(_render_name_below(shorten_name(label), x + room / 2, height - foot + 12, turned))
    parts.append(f'<path class="axis" d="M{left} {zero:.1f}H{width - 6}"/>')
    about = f"{section.series[place][0]}, in {section.unit}: {summarise_bars(every)}"
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(about)}">'
        f"{''.join(parts)}</svg>"
    )


def summarise_bars(shown: list[tuple[str, float]]) -> str:
    """Describe how many bars go up and down, and how far."""
    if not shown:
        return "no bars"
    (high, most), (low, least) = shown[0], shown[-1]
    if least > 0:
        return f"{len(shown)} from {format_measured(least)} ({low}) to {format_measured(most)} ({high})"
    up, down = sum(value > 0 for _, value in shown), sum(value < 0 for _, value in shown)
    sides = [f"{up} above zero, up to {format_measured(most)} ({high})"] if up else []
    sides += [f"{down} below, down to {format_measured(least)} ({low})"] if down else []
    return "; ".join([*sides, *([f"{len(shown) - up - down} at zero"] if up + down < len(shown) else [])])


def render_heatmap(section: HeatmapSection) -> str:
    """Render a heatmap: stronger colours are higher values; names are to the left and below."""
    rows, columns = section.rows, section.columns
    left = 12 + max((estimate_width(name) for name in rows), default=0.0)
    wide = min(40.0, (HEATMAP_WIDTH - left - 4) / max(1, len(columns)))
    tall = min(24.0, max(9.0, 480 / max(1, len(rows))))
    longest = max((estimate_width(name) for name in columns), default=0.0)
    turned = longest + 4 > wide
    bottom = 8 + tall * len(rows)
    step, across = max(1, math.ceil(11 / tall)), max(1, math.ceil(11 / wide))
    most = max((value for line in section.values for value in line if math.isfinite(value)), default=0) or 1
    parts = []
    for row, (name, line) in enumerate(zip(rows, section.values, strict=True)):
        y = 8 + tall * row
        if row % step == 0:
            parts.append(
                f'<text x="{left - 6:.1f}" y="{y + tall / 2 + 4:.1f}" class="end">'
                f"{escape(shorten_name(name))}</text>"
            )
        for column, (label, value) in enumerate(zip(columns, line, strict=True)):
            share = max(0.0, value / most) if math.isfinite(value) else 0.0
            parts.append(
                f'<rect class="heat" x="{left + wide * column:.1f}" y="{y:.1f}" width="{wide - 0.5:.1f}" '
                f'height="{tall - 0.5:.1f}" fill-opacity="{share**0.7:.3g}">'
                f"<title>{escape(name)}, {escape(label)}: {format_measured(value)}</title></rect>"
            )
    for column in range(0, len(columns), across):
        parts.append(
            _render_name_below(
                shorten_name(columns[column]), left + wide * (column + 0.5), bottom + 13, turned
            )
        )
    height = bottom + (10 + longest if turned else 20)
    width = left + wide * len(columns) + 4
    parts.append(f'<path class="axis" d="M{left:.1f} 8V{bottom:.1f}H{width - 4:.1f}"/>')
    about = f"{len(rows)} rows, {len(columns)} columns; the maximum is {format_measured(float(most))}"
    sized = f"min-width:{width * 0.7:.0f}px;max-width:{width * 1.3:.0f}px"
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="{sized}" role="img" '
        f'aria-label="{escape(about)}">'
        f"{''.join(parts)}</svg>"
    )


def render_graph(section: GraphSection) -> str:
    """Render a graph: heavier edges are darker; nodes have names if they fit."""
    width, height = GRAPH_SIZE
    node_count = len(section.nodes)
    radius = 13.0 if node_count <= 40 else max(3.0, 13.0 * math.sqrt(40 / node_count))
    positions = fit_points([(x, y) for _, x, y, _ in section.nodes], width, height, radius + 6)
    most = max((weight for *_, weight in section.edges), default=0.0) or 1.0
    # Edges get paler the more there are, so that the figure stays readable.
    dark = min(0.75, max(0.08, 6 / math.sqrt(max(1, len(section.edges)))))
    thick = 1.0 if len(section.edges) <= MANY_EDGES else 0.5
    parts = []
    for one, other, weight in sorted(section.edges, key=lambda edge: edge[2]):
        (x, y), (x2, y2) = positions[one], positions[other]
        share = weight / most
        pale, wide = dark * (0.2 + 0.8 * share), thick * (0.5 + 2 * share)
        parts.append(
            f'<path class="edge" d="M{x:.1f} {y:.1f}L{x2:.1f} {y2:.1f}" data-ends="{one} {other}" '
            f'stroke-opacity="{pale:.3g}" stroke-width="{wide:.2g}"/>'
        )
    degree = [0] * node_count
    for one, other, _ in section.edges:
        degree[one] += 1
        degree[other] += 1
    for number, (name, _, _, group) in enumerate(section.nodes):
        x, y = positions[number]
        text = ""
        if len(name) <= 3 and node_count <= 40:
            text = f'<text x="{x:.1f}" y="{y + 4:.1f}" class="mid inside">{escape(name)}</text>'
        parts.append(
            f'<g class="node {colour_class(group)}" data-node="{number}"><title>{escape(name)}: '
            f"{degree[number]} edges drawn</title>"
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>{text}</g>'
        )
    about = f"A graph of {node_count} nodes and {len(section.edges)} edges"
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{about}" '
        f'class="graph{" many" if node_count > FEW_NODES else ""}">'
        f"{''.join(parts)}</svg>"
    )


def fit_points(
    points: list[tuple[float, float]], width: float, height: float, margin: float
) -> list[tuple[float, float]]:
    """Scale points to fit a figure, with equal proportions; y points up."""
    if not points:
        return []
    xs, ys = [x for x, _ in points], [y for _, y in points]
    wide, tall = max(xs) - min(xs), max(ys) - min(ys)
    scale = min(
        (width - 2 * margin) / wide if wide else math.inf, (height - 2 * margin) / tall if tall else math.inf
    )
    scale = scale if math.isfinite(scale) else 1.0
    middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(width / 2 + scale * (x - middle[0]), height / 2 - scale * (y - middle[1])) for x, y in points]


def shorten_name(name: str) -> str:
    """Shorten a long name at its end."""
    return name if len(name) <= MAX_LETTERS else name[: MAX_LETTERS - 1] + "…"


def estimate_width(name: str) -> float:
    """Estimate the width of a name after shortening."""
    return sum(
        CAPITAL_WIDTH if character.isupper() or character in "_…%" else LETTER_WIDTH
        for character in shorten_name(name)
    )


def _render_name_below(text: str, x: float, y: float, turned: bool) -> str:
    text = escape(text)
    if turned:
        return f'<text transform="translate({x + 4:.1f} {y - 6:.1f}) rotate(-90)" class="end">{text}</text>'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="mid">{text}</text>'
