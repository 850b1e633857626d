"""A page as one HTML file that needs nothing beside it; without its script it is readable, too."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from fedlap.report.page import svg_shapes
from fedlap.report.page.axis import short
from fedlap.report.page.sections import (
    BarsSection,
    Cell,
    DrawingSection,
    FactsSection,
    FigureSection,
    HeatSection,
    Named,
    Page,
    Panel,
    Section,
    Series,
    TableSection,
    TextSection,
)
from fedlap.report.page.styles import places, style
from fedlap.report.page.svg_curves import curves, key
from fedlap.report.page.table_formats import MARK

BEST = f'<span class="best" role="img" aria-label="best">{MARK}</span>'
MOST_LINES = 11  # of the table of a figure's numbers
# Nothing may be fetched from anywhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def html(page: Page, beside: bool = False) -> str:
    """The whole file; `beside` says that the other forms of tables and figures lie beside it."""
    colours, own = places(page), _ids(page.sections)
    body, group = [], ""
    for number, section in enumerate(page.sections):
        within = section.group if isinstance(section, TableSection) else ""
        if within and within != group:
            body.append(f'<h2 class="group" id="{own[number]}-group">{escape(within)}</h2>')
        group = within
        body.append(_section(section, own[number], colours, beside))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>
{_kept("page.css")}{style()}</style>
</head>
<body>
<header>
<h1>{escape(page.title)}</h1>
{_paragraphs(page.lead)}
{_contents(page.sections, own)}
</header>
<main>
{chr(10).join(body)}
</main>
{_again(page.command)}
<script>
{_kept("page.js")}</script>
</body>
</html>
"""


def _again(command: str) -> str:
    if not command:
        return ""
    return (
        '<footer><h2 id="again">To make it again</h2>\n'
        f'<pre class="scroll" tabindex="0">{escape(command)}</pre></footer>'
    )


def _kept(name: str) -> str:
    return (files("fedlap.report.page") / name).read_text("utf-8")


def _ids(sections: Sequence[Section]) -> list[str]:
    """A name for each section that links can use, each another."""
    made: list[str] = []
    for section in sections:
        text = section.title if isinstance(section, TextSection | FactsSection) else section.name
        base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
        base, number = f"s-{base}", 2
        found = base
        while found in made:
            found, number = f"{base}-{number}", number + 1
        made.append(found)
    return made


def _contents(sections: Sequence[Section], own: Sequence[str]) -> str:
    """Links to all sections; those of a group have one together."""
    items, group = [], ""
    for section, name in zip(sections, own, strict=True):
        within = section.group if isinstance(section, TableSection) else ""
        if not within:
            items.append(f'<li><a href="#{name}">{escape(section.title)}</a></li>')
        elif within != group:
            items.append(f'<li><a href="#{name}-group">{escape(within)}</a></li>')
        group = within
    if len(items) < 3:
        return ""
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _section(section: Section, own: str, colours: Mapping[str, int], beside: bool) -> str:
    within = isinstance(section, TableSection) and section.group
    head = "h3" if within else "h2"
    parts = [f'<section id="{own}" aria-labelledby="{own}-head">']
    parts.append(f'<{head} id="{own}-head">{escape(section.title)}</{head}>')
    match section:
        case TextSection():
            parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
        case FactsSection():
            facts = "".join(
                f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in section.facts
            )
            parts.append(f"<dl>{facts}</dl>")
        case _:
            parts.append(_paragraphs(section.about, "about"))
            parts.append(_shown(section, own, colours))
            parts.append(_files(section) if beside else "")
    return "\n".join([*(part for part in parts if part), "</section>"])


def _shown(
    section: Named,
    own: str,
    colours: Mapping[str, int],
) -> str:
    match section:
        case TableSection():
            foot = _paragraphs(section.footer, "about")
            return table(section.columns, section.rows, f"{own}-head") + foot
        case FigureSection():
            return _figure(section, colours)
        case BarsSection():
            return _bars(section)
        case HeatSection():
            return f'<figure class="scroll">{svg_shapes.heat(section)}</figure>'
        case DrawingSection():
            return f"<figure>{svg_shapes.drawing(section)}</figure>"


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], label: str) -> str:
    """A table in a box of its own, which scrolls where it is too wide."""
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = "\n".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{label}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )


def _cells(row: Sequence[Cell]) -> str:
    made = []
    for place, cell in enumerate(row):
        text = escape(cell.text)
        if cell.best:
            text = f"<strong>{text}</strong>&nbsp;{BEST}"
        if cell.note:
            text += f"<small>{escape(cell.note)}</small>"
        kind = ' class="muted"' if cell.muted else ""
        made.append(f'<th scope="row"{kind}>{text}</th>' if place == 0 else f"<td{kind}>{text}</td>")
    return "".join(made)


def _figure(section: FigureSection, colours: Mapping[str, int]) -> str:
    every = [series for panel in section.panels for series in panel.series]
    dashed = {series.name: series.dashed for series in reversed(every)}
    keys = "".join(
        f'<button type="button" aria-pressed="true" data-name="{escape(name)}">'
        f"{key(name, colours[name], dashed[name])}</button>"
        for name in dict.fromkeys(series.name for series in every)
    )
    panels = "".join(
        f'<div class="panel"><h4>{escape(panel.title)}</h4>{curves(panel, colours)}</div>'
        for panel in section.panels
    )
    numbers = "".join(_numbers(panel, f"n-{section.name}-{n}") for n, panel in enumerate(section.panels))
    return (
        f'<figure class="curves">\n<div class="keys" role="group" aria-label="Show or hide">{keys}</div>\n'
        f'<div class="panels">{panels}</div>\n'
        f"<details><summary>The same in numbers</summary>{numbers}</details>\n</figure>"
    )


def _numbers(panel: Panel, own: str) -> str:
    """A panel's curves as a table, at not too many places."""
    every = sorted({x for series in panel.series for x in series.x})
    step = max(1, -(-len(every) // MOST_LINES))
    chosen = every[::-1][::step][::-1]  # the last one is among them
    rows = [[Cell(f"{x:g}"), *(Cell(_at(series, x)) for series in panel.series)] for x in chosen]
    own = re.sub(r"[^a-zA-Z0-9-]", "-", own)
    columns = [panel.x_label, *(series.name for series in panel.series)]
    return f'<h4 id="{own}">{escape(panel.title)}: {escape(panel.y_label)}</h4>{table(columns, rows, own)}'


def _at(series: Series, x: float) -> str:
    """A curve's number there, and its band."""
    if x not in series.x:
        return ""
    place = series.x.index(x)
    text = short(series.mean[place])
    if series.low is None or series.high is None:
        return text
    return f"{text} ({short(series.low[place])} to {short(series.high[place])})"


def _bars(section: BarsSection) -> str:
    """A chart for each method; the script shows one at a time."""
    charts, most = [], 0
    for place, (name, _) in enumerate(section.series):
        every = svg_shapes.ordered(section, place)
        most = max(most, len(every))
        charts.append(
            f'<div class="one scroll" data-name="{escape(name)}"><h4>{escape(name)}, in '
            f"{escape(section.unit)}: {escape(svg_shapes.counted(every))}</h4>"
            f"{svg_shapes.bars(section, place)}</div>"
        )
    thinned = (
        f'<p class="about">{svg_shapes.DRAWN_BARS:,} of {most:,} bars are drawn, at even distances from the '
        "highest to the lowest; the csv file has all values.</p>"
    )
    return f'<figure class="bars">{"".join(charts)}</figure>{thinned if most > svg_shapes.DRAWN_BARS else ""}'


def _files(section: Named) -> str:
    tabular = isinstance(section, TableSection)
    kind, forms = ("tables", ["md", "tex"]) if tabular else ("figures", ["png", "pdf"])
    files = [(f"{kind}/{section.name}.{form}", form) for form in forms]
    if isinstance(section, TableSection | BarsSection) and section.records is not None:
        files.insert(1 if tabular else 2, (f"tables/{section.name}.csv", "csv"))
    links = " ".join(f'<a href="{escape(path)}">{form}</a>' for path, form in files)
    return f'<p class="files">Files: {links}</p>'


def _paragraphs(text: str, kind: str = "") -> str:
    """Paragraphs are parted by empty lines."""
    style = f' class="{kind}"' if kind else ""
    parts = [part.strip() for part in text.split("\n\n")]
    return "\n".join(f"<p{style}>{escape(part)}</p>" for part in parts if part)
