"""Maps, forest plots and scatter plots of clients as SVG."""

import math
from html import escape

from fedlap.report.page.axis import Scale, format_measured, format_tick
from fedlap.report.page.sections import IntervalPanel, MapSection, ScatterSection
from fedlap.report.page.styles import mix_colour
from fedlap.report.page.svg_shapes import estimate_width, fit_points, shorten_name

MAP_WIDTH, MAX_MAP_HEIGHT = 640.0, 640.0
LEGEND_HEIGHT, LEGEND_STEPS = 44.0, 40
MAP_MARGIN = 26.0
INTERVAL_WIDTH, LINE_HEIGHT = 420.0, 15.0
MAX_DRAWN_LINES = 120  # of a forest plot; more are thinned
SCATTER_SIZE = 420.0


def find_limits(section: MapSection) -> tuple[float, float]:
    """Return the lowest and the highest value of a map."""
    known = [value for *_, value in section.nodes if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 0.0)


def render_map(section: MapSection) -> str:
    """Render clients at their places, coloured by value, with edges beneath and a legend below."""
    low, high = find_limits(section)
    points = [(x, y) for _, x, y, _ in section.nodes]
    wide = max((x for x, _ in points), default=1.0) - min((x for x, _ in points), default=0.0)
    tall = max((y for _, y in points), default=1.0) - min((y for _, y in points), default=0.0)
    height = min(MAX_MAP_HEIGHT, max(160.0, MAP_WIDTH * (tall / wide if wide else 1.0)))
    radius = 7.0 if len(points) <= 150 else max(2.5, 7.0 * math.sqrt(150 / len(points)))
    positions = fit_points(points, MAP_WIDTH, height, MAP_MARGIN)
    most = max((weight for *_, weight in section.edges), default=0.0) or 1.0
    pale = min(0.7, max(0.1, 8 / math.sqrt(max(1, len(section.edges)))))
    parts = []
    for one, other, weight in section.edges:
        (x, y), (x2, y2) = positions[one], positions[other]
        parts.append(
            f'<path class="edge" d="M{x:.1f} {y:.1f}L{x2:.1f} {y2:.1f}" data-ends="{one} {other}" '
            f'stroke-opacity="{pale * (0.3 + 0.7 * weight / most):.3g}"/>'
        )
    for number, (name, _, _, value) in enumerate(section.nodes):
        x, y = positions[number]
        known = math.isfinite(value)
        fill = f' style="--fill:{mix_colour(value, low, high, section.signed)}"' if known else ""
        text = f"{format_measured(value)} {section.unit}" if known else "no value"
        parts.append(
            f'<g class="node" data-node="{number}"{fill}><title>{escape(f"{name}: {text}")}</title>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/></g>'
        )
    for number in section.labelled:
        x, y = positions[number]
        name = shorten_name(section.nodes[number][0])
        half = estimate_width(name) / 2
        at = min(max(x, half), MAP_WIDTH - half)
        parts.append(f'<text x="{at:.1f}" y="{y - radius - 3:.1f}" class="mid label">{escape(name)}</text>')
    parts.append(_render_legend(section, low, high, height))
    limits = f"from {format_measured(low)} to {format_measured(high)}"
    about = f"A map of {len(points)} clients, {section.unit} {limits}"
    return (
        f'<svg viewBox="0 0 {MAP_WIDTH:g} {height + LEGEND_HEIGHT:g}" role="img" '
        f'aria-label="{escape(about)}" class="graph map">{"".join(parts)}</svg>'
    )


def _render_legend(section: MapSection, low: float, high: float, top: float) -> str:
    """Render a bar of colours with the limits below it."""
    if not high > low:
        return ""
    left, width, y = MAP_WIDTH / 2 - 130, 260.0, top + 8
    parts = []
    for step in range(LEGEND_STEPS):
        value = low + (step + 0.5) / LEGEND_STEPS * (high - low)
        parts.append(
            f'<rect x="{left + step * width / LEGEND_STEPS:.1f}" y="{y:.1f}" '
            f'width="{width / LEGEND_STEPS + 0.3:.1f}" height="9" '
            f'fill="{mix_colour(value, low, high, section.signed)}"/>'
        )
    across = Scale(low, high, left, left + width)
    for tick in across.choose_ticks(4):
        x = across.position(tick) or 0.0
        parts.append(f'<text x="{x:.1f}" y="{y + 22:.1f}" class="mid">{format_tick(tick)}</text>')
    parts.append(
        f'<text x="{left + width + 8:.1f}" y="{y + 9:.1f}" class="name">'
        f"{escape(section.meaning or section.unit)}</text>"
    )
    return "".join(parts)


def thin_lines(rows: list[tuple[str, float, float, float]]) -> list[tuple[str, float, float, float]]:
    """Thin very many lines of a forest plot evenly; the first and the last stay."""
    if len(rows) <= MAX_DRAWN_LINES:
        return rows
    last = MAX_DRAWN_LINES - 1
    return [rows[round(place * (len(rows) - 1) / last)] for place in range(MAX_DRAWN_LINES)]


def render_intervals(panel: IntervalPanel) -> str:
    """Render a line per client: its name, the estimate and the interval around it."""
    rows = thin_lines(panel.rows)
    left = 10 + max((estimate_width(shorten_name(label)) for label, *_ in rows), default=0.0)
    bottom = 8 + LINE_HEIGHT * len(rows)
    values = [value for _, *numbers in rows for value in numbers]
    values += [] if panel.reference is None else [panel.reference]
    across = Scale.fit(values, left + 4, INTERVAL_WIDTH - 8, margin=0.03)
    parts = []
    for tick in across.choose_ticks(5):
        x = across.position(tick) or 0.0
        parts.append(
            f'<path class="grid" d="M{x:.1f} 4V{bottom:.1f}"/>'
            f'<text x="{x:.1f}" y="{bottom + 14:.1f}" class="mid">{format_tick(tick)}</text>'
        )
    if panel.reference is not None:
        parts.append(f'<path class="guide" d="M{across.position(panel.reference) or 0:.1f} 4V{bottom:.1f}"/>')
    for number, (label, estimate, low, high) in enumerate(rows):
        y = 8 + LINE_HEIGHT * (number + 0.5)
        begin, middle, end = (across.position(value) for value in (low, estimate, high))
        text = format_measured(estimate)
        text += "" if math.isnan(low) else f" ({format_measured(low)} to {format_measured(high)})"
        span = (
            "" if begin is None or end is None else f'<path class="span" d="M{begin:.1f} {y:.1f}H{end:.1f}"/>'
        )
        point = "" if middle is None else f'<circle class="point" cx="{middle:.1f}" cy="{y:.1f}" r="3"/>'
        parts.append(
            f'<text x="{left:.1f}" y="{y + 4:.1f}" class="end">{escape(shorten_name(label))}</text>'
            f"<g><title>{escape(f'{label}: {text} {panel.unit}')}</title>{span}{point}</g>"
        )
    parts.append(
        f'<text x="{(left + INTERVAL_WIDTH) / 2:.1f}" y="{bottom + 30:.1f}" class="mid name">'
        f"{escape(panel.unit)}</text>"
    )
    about = f"{panel.title}: {len(rows)} clients"
    return (
        f'<svg viewBox="0 0 {INTERVAL_WIDTH:g} {bottom + 36:.0f}" role="img" aria-label="{escape(about)}">'
        f"{''.join(parts)}</svg>"
    )


def render_scatter(section: ScatterSection) -> str:
    """Render points around the diagonal."""
    values = [value for _, *point in section.points for value in point]
    across = Scale.fit(values, 52, SCATTER_SIZE - 8, margin=0.04)
    up = Scale(across.low, across.high, SCATTER_SIZE - 44, 8)
    parts = []
    for tick in across.choose_ticks(6):
        x, y = across.position(tick) or 0.0, up.position(tick) or 0.0
        parts.append(
            f'<path class="grid" d="M{x:.1f} {up.end}V{up.begin}M{across.begin} {y:.1f}H{across.end}"/>'
            f'<text x="{x:.1f}" y="{up.begin + 15:.1f}" class="mid">{format_tick(tick)}</text>'
            f'<text x="{across.begin - 6}" y="{y + 4:.1f}" class="end">{format_tick(tick)}</text>'
        )
    parts.append(f'<path class="guide" d="M{across.begin} {up.begin}L{across.end} {up.end}"/>')
    for label, x_value, y_value in section.points:
        text = escape(f"{label}: {format_measured(x_value)}, {format_measured(y_value)}")
        parts.append(
            f'<circle class="dot" cx="{across.position(x_value) or 0:.1f}" '
            f'cy="{up.position(y_value) or 0:.1f}" r="2.6"><title>{text}</title></circle>'
        )
    middle = (across.begin + across.end) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{SCATTER_SIZE - 8:.1f}" class="mid name">{escape(section.x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(13 {(up.begin + up.end) / 2:.1f}) rotate(-90)" class="mid name">'
        f"{escape(section.y_label)}</text>"
    )
    about = f"{len(section.points)} points: {section.y_label} against {section.x_label}"
    return (
        f'<svg viewBox="0 0 {SCATTER_SIZE:g} {SCATTER_SIZE:g}" role="img" aria-label="{escape(about)}" '
        f'class="scatter">{"".join(parts)}</svg>'
    )
