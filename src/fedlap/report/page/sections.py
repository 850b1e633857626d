"""What a page is made of: plain data, from which HTML, Markdown, CSV, LaTeX and pictures are written.

A section with a name has files of its own (`tables/NAME.md`, `figures/NAME.png`), each name once on a page.
"""

from dataclasses import dataclass

EVEN, UNKNOWN = -2, -1  # colour groups of nodes: grey, and hollow


Value = str | int | float | None  # None and NaN are missing


@dataclass(frozen=True)
class Records:
    """Plain values for other programs: a name with its unit for each column, then rows."""

    columns: list[str]
    rows: list[list[Value]]


@dataclass(frozen=True)
class Cell:
    """One cell: `note` stands small beneath (the paper's number), `best` is marked, `muted` is grey."""

    text: str
    note: str = ""
    best: bool = False
    muted: bool = False


@dataclass(frozen=True)
class TableSection:
    """A table; `columns[0]` names the rows. Neighbouring tables of one `group` stand under one heading.

    Cells are texts; `records` are the numbers behind them, for the CSV file.
    """

    title: str
    about: str
    name: str
    columns: list[str]
    rows: list[list[Cell]]
    footer: str = ""
    group: str = ""
    records: Records | None = None


@dataclass(frozen=True)
class Series:
    """A curve, and the band from `low` to `high` around it. Its name gives it its colour on the page."""

    name: str
    x: list[float]
    mean: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its curves."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class FigureSection:
    """Curves in one panel or more, with one legend."""

    title: str
    about: str
    name: str
    panels: list[Panel]


@dataclass(frozen=True)
class BarsSection:
    """A bar for each label, up for gains and down for losses; one set of bars for each of the `series`.

    `records` are all values for a CSV file; of very many bars not all are drawn.
    """

    title: str
    about: str
    name: str
    labels: list[str]
    series: list[tuple[str, list[float]]]
    unit: str
    records: Records | None = None


@dataclass(frozen=True)
class HeatSection:
    """A picture of a table of numbers: the stronger the colour, the more."""

    title: str
    about: str
    name: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]


@dataclass(frozen=True)
class DrawingSection:
    """A graph: nodes are (name, x, y, colour group), edges (node, node, weight).

    Nodes of the group EVEN are grey, those of UNKNOWN hollow.
    """

    title: str
    about: str
    name: str
    nodes: list[tuple[str, float, float, int]]
    edges: list[tuple[int, int, float]]


@dataclass(frozen=True)
class TextSection:
    """Paragraphs."""

    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class FactsSection:
    """What and its value, line by line."""

    title: str
    facts: list[tuple[str, str]]


Named = TableSection | FigureSection | BarsSection | HeatSection | DrawingSection  # those with files
Section = Named | TextSection | FactsSection


@dataclass(frozen=True)
class Page:
    """A page: title, a sentence or two that lead in, sections, and the command that makes it again."""

    title: str
    lead: str
    sections: list[Section]
    command: str
