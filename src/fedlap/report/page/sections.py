"""Sections of a page as plain data, which is rendered as HTML, Markdown, CSV, LaTeX, PNG and PDF.

A section with a name has files (`tables/NAME.md`, `figures/NAME.png`); names are unique on a page.
"""

from dataclasses import dataclass

EVEN, UNKNOWN = -2, -1  # colour groups of nodes: grey, and hollow

RecordValue = str | int | float | None  # None and NaN are missing


@dataclass(frozen=True)
class Records:
    """Plain values for other programs: column names with units, then rows."""

    columns: list[str]
    rows: list[list[RecordValue]]


@dataclass(frozen=True)
class TableCell:
    """One cell: `note` is small text below (the paper's number), `best` is marked, `muted` is grey.

    wraps: the text is words, which may take several lines.
    """

    text: str
    note: str = ""
    best: bool = False
    muted: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class TableSection:
    """A table; `columns[0]` names the rows. Adjacent tables of one `group` share a heading.

    Cells are texts; `records` are the numbers behind them, for the CSV file. `by_seed` are the scores behind
    these, one per line, for tables/NAME-by-seed.csv.
    """

    title: str
    about: str
    name: str
    columns: list[str]
    rows: list[list[TableCell]]
    footer: str = ""
    group: str = ""
    records: Records | None = None
    by_seed: Records | None = None


@dataclass(frozen=True)
class CurveSeries:
    """A curve, and the band from `low` to `high` around it. Its name selects its colour on the page."""

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
    series: list[CurveSeries]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class FigureSection:
    """Curves in one panel or more, with one legend; `records` are the values of every run for a CSV file."""

    title: str
    about: str
    name: str
    panels: list[Panel]
    records: Records | None = None


@dataclass(frozen=True)
class BarsSection:
    """Bars, one per label, up for gains and down for losses; one chart per series.

    `records` are all values for a CSV file; very many bars are not all drawn.
    """

    title: str
    about: str
    name: str
    labels: list[str]
    series: list[tuple[str, list[float]]]
    unit: str
    records: Records | None = None


@dataclass(frozen=True)
class HeatmapSection:
    """A heatmap of a table of numbers: stronger colours are higher values."""

    title: str
    about: str
    name: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]


@dataclass(frozen=True)
class GraphSection:
    """A graph: nodes are (name, x, y, colour group), edges (node, node, weight).

    Nodes of the group EVEN are grey, those of UNKNOWN hollow.
    """

    title: str
    about: str
    name: str
    nodes: list[tuple[str, float, float, int]]
    edges: list[tuple[int, int, float]]


@dataclass(frozen=True)
class MapSection:
    """Clients at their places: nodes are (name, x, y, value), edges (node, node, weight).

    Colours show values, with the sign if `signed`; a node without a value (NaN) is hollow. `labelled` lists
    the nodes whose names are written next to them. `records` are all values for a CSV file. `meaning` is
    written next to the bar of colours; by default the unit.
    """

    title: str
    about: str
    name: str
    nodes: list[tuple[str, float, float, float]]
    edges: list[tuple[int, int, float]]
    unit: str
    signed: bool
    labelled: list[int]
    records: Records | None = None
    meaning: str = ""


@dataclass(frozen=True)
class IntervalPanel:
    """Estimates with intervals: rows are (label, estimate, low, high); `reference` is a vertical line."""

    title: str
    unit: str
    rows: list[tuple[str, float, float, float]]
    reference: float | None = None


@dataclass(frozen=True)
class IntervalSection:
    """A forest plot in one panel or more, one line per client."""

    title: str
    about: str
    name: str
    panels: list[IntervalPanel]
    records: Records | None = None


@dataclass(frozen=True)
class ScatterSection:
    """Points (label, x, y) around the diagonal y = x."""

    title: str
    about: str
    name: str
    x_label: str
    y_label: str
    points: list[tuple[str, float, float]]
    records: Records | None = None


@dataclass(frozen=True)
class TextSection:
    """Paragraphs."""

    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class FactsSection:
    """Names and values, line by line."""

    title: str
    facts: list[tuple[str, str]]


# Sections whose values are also in a CSV file.
RecordedSection = TableSection | FigureSection | BarsSection | MapSection | IntervalSection | ScatterSection
# Sections with files.
FileSection = RecordedSection | HeatmapSection | GraphSection
PageSection = FileSection | TextSection | FactsSection


@dataclass(frozen=True)
class Page:
    """A page: title, introduction, sections, and the command that reproduces it."""

    title: str
    lead: str
    sections: list[PageSection]
    command: str
