"""Bars, heat pictures and drawings of graphs as SVG."""

import math
from html import escape

from fedlap.report.page.axis import Scale, short, tick_text
from fedlap.report.page.sections import BarsSection, DrawingSection, HeatSection
from fedlap.report.page.styles import colour_class

BARS = 720.0, 250.0  # width and height
HEAT = 720.0
DRAWING = 480.0, 400.0
NAMED_BARS = 36  # bars that are named below
DRAWN_BARS = 400  # bars of a chart
MANY_EDGES = 150  # more are drawn thin
FEW_NODES = 200  # more are drawn without rims
LONGEST = 16  # letters of a name that are shown
LETTER, CAPITAL = 6.6, 8.8  # width of one, about


def ordered(section: BarsSection, place: int) -> list[tuple[str, float]]:
    """The bars of one method from the highest to the lowest; those that are not known are left out."""
    pairs = zip(section.labels, section.series[place][1], strict=True)
    return sorted((pair for pair in pairs if math.isfinite(pair[1])), key=lambda pair: -pair[1])


def evenly(shown: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Of very many bars those at even distances, the first and the last among them."""
    if len(shown) <= DRAWN_BARS:
        return shown
    return [shown[round(place * (len(shown) - 1) / (DRAWN_BARS - 1))] for place in range(DRAWN_BARS)]


def bars(section: BarsSection, place: int) -> str:
    """One method's bars, from the highest to the lowest, on both sides of zero."""
    every = ordered(section, place)
    shown = evenly(every)
    width, height = BARS
    named = len(shown) <= NAMED_BARS
    longest = max((width_of(label) for label, _ in shown), default=0.0)
    turned = longest > 0.9 * (width - 58) / max(1, len(shown))
    foot = (10 + longest if turned else 20) if named else 8
    up = Scale.over([0.0, *(value for _, value in shown)], height - foot, 10, margin=0.03)
    zero = up.at(0.0) or 0.0
    left, room = 52.0, (width - 58) / max(1, len(shown))
    made = [
        f'<path class="grid" d="M{left} {up.at(tick):.1f}H{width - 6}"/>'
        f'<text x="{left - 6}" y="{(up.at(tick) or 0) + 4:.1f}" class="end">{tick_text(tick)}</text>'
        for tick in up.ticks(6)
    ]
    for number, (label, value) in enumerate(shown):
        x, y = left + number * room, up.at(value) or 0.0
        top, tall = min(y, zero), max(abs(y - zero), 0.8)
        kind = "gain" if value > 0 else "loss" if value < 0 else "even"
        wide = max(0.7, room * 0.8)
        made.append(
            f'<rect class="bar {kind}" x="{x + room * 0.1:.1f}" y="{top:.1f}" width="{wide:.1f}" '
            f'height="{tall:.1f}"><title>{escape(f"{label}: {short(value)} {section.unit}")}</title></rect>'
        )
        if named:
            made.append(_below(cut(label), x + room / 2, height - foot + 12, turned))
    made.append(f'<path class="axis" d="M{left} {zero:.1f}H{width - 6}"/>')
    about = f"{section.series[place][0]}, in {section.unit}: {counted(every)}"
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(about)}">'
        f"{''.join(made)}</svg>"
    )


def counted(shown: list[tuple[str, float]]) -> str:
    """How many bars go up and how many down, and how far."""
    if not shown:
        return "no bars"
    (high, most), (low, least) = shown[0], shown[-1]
    if least > 0:
        return f"{len(shown)} from {short(least)} ({low}) to {short(most)} ({high})"
    up, down = sum(value > 0 for _, value in shown), sum(value < 0 for _, value in shown)
    sides = [f"{up} above zero, up to {short(most)} ({high})"] if up else []
    sides += [f"{down} below, down to {short(least)} ({low})"] if down else []
    return "; ".join([*sides, *([f"{len(shown) - up - down} at zero"] if up + down < len(shown) else [])])


def heat(section: HeatSection) -> str:
    """Cells the stronger coloured the more, with names beside and below."""
    rows, columns = section.rows, section.columns
    left = 12 + max((width_of(name) for name in rows), default=0.0)
    wide = min(40.0, (HEAT - left - 4) / max(1, len(columns)))
    tall = min(24.0, max(9.0, 480 / max(1, len(rows))))
    longest = max((width_of(name) for name in columns), default=0.0)
    turned = longest + 4 > wide
    bottom = 8 + tall * len(rows)
    step, across = max(1, math.ceil(11 / tall)), max(1, math.ceil(11 / wide))
    most = max((value for line in section.values for value in line if math.isfinite(value)), default=0) or 1
    made = []
    for row, (name, line) in enumerate(zip(rows, section.values, strict=True)):
        y = 8 + tall * row
        if row % step == 0:
            made.append(
                f'<text x="{left - 6:.1f}" y="{y + tall / 2 + 4:.1f}" class="end">{escape(cut(name))}</text>'
            )
        for column, (label, value) in enumerate(zip(columns, line, strict=True)):
            share = max(0.0, value / most) if math.isfinite(value) else 0.0
            made.append(
                f'<rect class="heat" x="{left + wide * column:.1f}" y="{y:.1f}" width="{wide - 0.5:.1f}" '
                f'height="{tall - 0.5:.1f}" fill-opacity="{share**0.7:.3g}">'
                f"<title>{escape(name)}, {escape(label)}: {short(value)}</title></rect>"
            )
    for column in range(0, len(columns), across):
        made.append(_below(cut(columns[column]), left + wide * (column + 0.5), bottom + 13, turned))
    height = bottom + (10 + longest if turned else 20)
    width = left + wide * len(columns) + 4
    made.append(f'<path class="axis" d="M{left:.1f} 8V{bottom:.1f}H{width - 4:.1f}"/>')
    about = f"{len(rows)} rows, {len(columns)} columns; the most is {short(float(most))}"
    sized = f"min-width:{width * 0.7:.0f}px;max-width:{width * 1.3:.0f}px"
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="{sized}" role="img" '
        f'aria-label="{escape(about)}">'
        f"{''.join(made)}</svg>"
    )


def drawing(section: DrawingSection) -> str:
    """A graph: edges the stronger the heavier, nodes with their names where there is room."""
    width, height = DRAWING
    many = len(section.nodes)
    radius = 13.0 if many <= 40 else max(3.0, 13.0 * math.sqrt(40 / many))
    at = fitted([(x, y) for _, x, y, _ in section.nodes], width, height, radius + 6)
    most = max((weight for *_, weight in section.edges), default=0.0) or 1.0
    # The more edges, the paler each, so that the whole stays readable.
    dark = min(0.75, max(0.08, 6 / math.sqrt(max(1, len(section.edges)))))
    thick = 1.0 if len(section.edges) <= MANY_EDGES else 0.5
    made = []
    for one, other, weight in sorted(section.edges, key=lambda edge: edge[2]):
        (x, y), (x2, y2) = at[one], at[other]
        share = weight / most
        pale, wide = dark * (0.2 + 0.8 * share), thick * (0.5 + 2 * share)
        made.append(
            f'<path class="edge" d="M{x:.1f} {y:.1f}L{x2:.1f} {y2:.1f}" data-ends="{one} {other}" '
            f'stroke-opacity="{pale:.3g}" stroke-width="{wide:.2g}"/>'
        )
    degree = [0] * many
    for one, other, _ in section.edges:
        degree[one] += 1
        degree[other] += 1
    for number, (name, _, _, group) in enumerate(section.nodes):
        x, y = at[number]
        text = ""
        if len(name) <= 3 and many <= 40:
            text = f'<text x="{x:.1f}" y="{y + 4:.1f}" class="mid inside">{escape(name)}</text>'
        made.append(
            f'<g class="node {colour_class(group)}" data-node="{number}"><title>{escape(name)}: '
            f"{degree[number]} edges drawn</title>"
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>{text}</g>'
        )
    about = f"A graph of {many} nodes and {len(section.edges)} edges"
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{about}" '
        f'class="graph{" many" if many > FEW_NODES else ""}">'
        f"{''.join(made)}</svg>"
    )


def fitted(
    points: list[tuple[float, float]], width: float, height: float, margin: float
) -> list[tuple[float, float]]:
    """Points in a picture, as large as it allows and in the same proportions; up is up."""
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


def cut(name: str) -> str:
    """A name, its end left out where it is long."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def width_of(name: str) -> float:
    """Of a name as it is shown, about."""
    return sum(CAPITAL if sign.isupper() or sign in "_…%" else LETTER for sign in cut(name))


def _below(text: str, x: float, y: float, turned: bool) -> str:
    text = escape(text)
    if turned:
        return f'<text transform="translate({x + 4:.1f} {y - 6:.1f}) rotate(-90)" class="end">{text}</text>'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="mid">{text}</text>'
