"""A page as one self-contained HTML file, readable also without its script."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from fedlap.report.page import svg_clients, svg_shapes
from fedlap.report.page.axis import format_measured
from fedlap.report.page.sections import (
    BarsSection,
    CurveSeries,
    FactsSection,
    FigureSection,
    FileSection,
    GraphSection,
    HeatmapSection,
    IntervalSection,
    MapSection,
    Page,
    PageSection,
    Panel,
    RecordedSection,
    ScatterSection,
    TableCell,
    TableSection,
    TextSection,
)
from fedlap.report.page.styles import number_methods, render_colour_variables
from fedlap.report.page.svg_curves import render_curves, render_key
from fedlap.report.page.table_formats import MARK

BEST_MARK = f'<span class="best" role="img" aria-label="best">{MARK}</span>'
MAX_NUMBER_ROWS = 11  # in the data table of a figure
# The page must not load anything from the network.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_html(page: Page, with_files: bool = False) -> str:
    """Render the whole file; `with_files` adds links to the files of tables and figures."""
    colours, ids = number_methods(page), _assign_ids(page.sections)
    body, group = [], ""
    for number, section in enumerate(page.sections):
        within = section.group if isinstance(section, TableSection) else ""
        if within and within != group:
            body.append(f'<h2 class="group" id="{ids[number]}-group">{escape(within)}</h2>')
        group = within
        body.append(_render_section(section, ids[number], colours, with_files))
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
{_read_asset("page.css")}{render_colour_variables()}</style>
</head>
<body>
<header>
<h1>{escape(page.title)}</h1>
{_render_paragraphs(page.lead)}
{_render_contents(page.sections, ids)}
</header>
<main>
{chr(10).join(body)}
</main>
{_render_command(page.command)}
<script>
{_read_asset("page.js")}</script>
</body>
</html>
"""


def _render_command(command: str) -> str:
    if not command:
        return ""
    return (
        '<footer><h2 id="again">Reproduce this page</h2>\n'
        f'<pre class="scroll" tabindex="0">{escape(command)}</pre></footer>'
    )


def _read_asset(name: str) -> str:
    return (files("fedlap.report.page") / name).read_text("utf-8")


def _assign_ids(sections: Sequence[PageSection]) -> list[str]:
    """Assign a unique id to each section for links."""
    ids: list[str] = []
    for section in sections:
        text = section.title if isinstance(section, TextSection | FactsSection) else section.name
        base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
        base, number = f"s-{base}", 2
        found = base
        while found in ids:
            found, number = f"{base}-{number}", number + 1
        ids.append(found)
    return ids


def _render_contents(sections: Sequence[PageSection], ids: Sequence[str]) -> str:
    """Render links to all sections; a group has one link."""
    items, group = [], ""
    for section, name in zip(sections, ids, strict=True):
        within = section.group if isinstance(section, TableSection) else ""
        if not within:
            items.append(f'<li><a href="#{name}">{escape(section.title)}</a></li>')
        elif within != group:
            items.append(f'<li><a href="#{name}-group">{escape(within)}</a></li>')
        group = within
    if len(items) < 3:
        return ""
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _render_section(
    section: PageSection, section_id: str, colours: Mapping[str, int], with_files: bool
) -> str:
    within = isinstance(section, TableSection) and section.group
    head = "h3" if within else "h2"
    parts = [f'<section id="{section_id}" aria-labelledby="{section_id}-head">']
    parts.append(f'<{head} id="{section_id}-head">{escape(section.title)}</{head}>')
    match section:
        case TextSection():
            parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
        case FactsSection():
            facts = "".join(
                f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in section.facts
            )
            parts.append(f"<dl>{facts}</dl>")
        case _:
            parts.append(_render_paragraphs(section.about, "about"))
            parts.append(_render_content(section, section_id, colours))
            parts.append(_render_file_links(section) if with_files else "")
    return "\n".join([*(part for part in parts if part), "</section>"])


def _render_content(
    section: FileSection,
    section_id: str,
    colours: Mapping[str, int],
) -> str:
    match section:
        case TableSection():
            foot = _render_paragraphs(section.footer, "about")
            return render_table(section.columns, section.rows, f"{section_id}-head") + foot
        case FigureSection():
            return _render_figure(section, colours)
        case BarsSection():
            return _render_bars(section)
        case HeatmapSection():
            return f'<figure class="scroll">{svg_shapes.render_heatmap(section)}</figure>'
        case GraphSection():
            return f"<figure>{svg_shapes.render_graph(section)}</figure>"
        case MapSection():
            return f"<figure>{svg_clients.render_map(section)}</figure>"
        case IntervalSection():
            drawn = [(panel.title, svg_clients.render_intervals(panel)) for panel in section.panels]
            panels = "".join(
                f'<div class="panel"><h4>{escape(title)}</h4>{svg}</div>' for title, svg in drawn
            )
            return f'<figure class="forest"><div class="panels">{panels}</div></figure>'
        case ScatterSection():
            return f"<figure>{svg_clients.render_scatter(section)}</figure>"


WORDS = ' class="words"'  # of cells and columns whose text may take several lines


def render_table(columns: Sequence[str], rows: Sequence[Sequence[TableCell]], label: str) -> str:
    """Render a table in a box that scrolls if the table is too wide."""
    words = [any(row[place].wraps for row in rows if place < len(row)) for place in range(len(columns))]
    heads = "".join(
        f'<th scope="col"{WORDS if wraps else ""}>{escape(column)}</th>'
        for column, wraps in zip(columns, words, strict=True)
    )
    lines = "\n".join(f"<tr>{_render_cells(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{label}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )


def _render_cells(row: Sequence[TableCell]) -> str:
    cells = []
    for place, cell in enumerate(row):
        text = escape(cell.text)
        if cell.best:
            text = f"<strong>{text}</strong>&nbsp;{BEST_MARK}"
        if cell.note:
            text += f"<small>{escape(cell.note)}</small>"
        kind = ' class="muted"' if cell.muted else WORDS if cell.wraps else ""
        cells.append(f'<th scope="row"{kind}>{text}</th>' if place == 0 else f"<td{kind}>{text}</td>")
    return "".join(cells)


def _render_figure(section: FigureSection, colours: Mapping[str, int]) -> str:
    every = [series for panel in section.panels for series in panel.series]
    dashed = {series.name: series.dashed for series in reversed(every)}
    keys = "".join(
        f'<button type="button" aria-pressed="true" data-name="{escape(name)}">'
        f"{render_key(name, colours[name], dashed[name])}</button>"
        for name in dict.fromkeys(series.name for series in every)
    )
    panels = "".join(
        f'<div class="panel"><h4>{escape(panel.title)}</h4>{render_curves(panel, colours)}</div>'
        for panel in section.panels
    )
    numbers = "".join(
        _render_numbers(panel, f"n-{section.name}-{n}") for n, panel in enumerate(section.panels)
    )
    return (
        f'<figure class="curves">\n<div class="keys" role="group" aria-label="Show or hide">{keys}</div>\n'
        f'<div class="panels">{panels}</div>\n'
        f"<details><summary>Data table</summary>{numbers}</details>\n</figure>"
    )


def _render_numbers(panel: Panel, table_id: str) -> str:
    """Render the curves of a panel as a table, at a limited number of points."""
    every = sorted({x for series in panel.series for x in series.x})
    step = max(1, -(-len(every) // MAX_NUMBER_ROWS))
    chosen = every[::-1][::step][::-1]  # includes the last one
    rows = [
        [TableCell(f"{x:g}"), *(TableCell(_format_point(series, x)) for series in panel.series)]
        for x in chosen
    ]
    table_id = re.sub(r"[^a-zA-Z0-9-]", "-", table_id)
    columns = [panel.x_label, *(series.name for series in panel.series)]
    head = f'<h4 id="{table_id}">{escape(panel.title)}: {escape(panel.y_label)}</h4>'
    return head + render_table(columns, rows, table_id)


def _format_point(series: CurveSeries, x: float) -> str:
    """Format the value of a curve at x, and its band."""
    if x not in series.x:
        return ""
    place = series.x.index(x)
    text = format_measured(series.mean[place])
    if series.low is None or series.high is None:
        return text
    return f"{text} ({format_measured(series.low[place])} to {format_measured(series.high[place])})"


def _render_bars(section: BarsSection) -> str:
    """Render one chart per method; the script shows one at a time."""
    charts, most = [], 0
    for place, (name, _) in enumerate(section.series):
        every = svg_shapes.sort_bars(section, place)
        most = max(most, len(every))
        charts.append(
            f'<div class="one scroll" data-name="{escape(name)}"><h4>{escape(name)}, in '
            f"{escape(section.unit)}: {escape(svg_shapes.summarise_bars(every))}</h4>"
            f"{svg_shapes.render_bars(section, place)}</div>"
        )
    thinned = (
        f'<p class="about">{svg_shapes.MAX_DRAWN_BARS:,} of {most:,} bars are drawn, evenly spaced from '
        "highest to lowest; the csv file has all values.</p>"
    )
    note = thinned if most > svg_shapes.MAX_DRAWN_BARS else ""
    return f'<figure class="bars">{"".join(charts)}</figure>{note}'


def _render_file_links(section: FileSection) -> str:
    tabular = isinstance(section, TableSection)
    kind, forms = ("tables", ["md", "tex"]) if tabular else ("figures", ["png", "pdf"])
    files = [(f"{kind}/{section.name}.{form}", form) for form in forms]
    if isinstance(section, RecordedSection) and section.records is not None:
        files.insert(1 if tabular else 2, (f"tables/{section.name}.csv", "csv"))
    if isinstance(section, TableSection) and section.by_seed is not None:
        files.insert(2, (f"tables/{section.name}-by-seed.csv", "csv by seed"))
    links = " ".join(f'<a href="{escape(path)}">{form}</a>' for path, form in files)
    return f'<p class="files">Files: {links}</p>'


def _render_paragraphs(text: str, kind: str = "") -> str:
    """Render paragraphs, which are separated by empty lines."""
    attribute = f' class="{kind}"' if kind else ""
    parts = [part.strip() for part in text.split("\n\n")]
    return "\n".join(f"<p{attribute}>{escape(part)}</p>" for part in parts if part)
