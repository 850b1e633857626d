"""Pages of tables and figures: one self-contained HTML file, with all tables and figures as files."""

from fedlap.report.page.html import render_html
from fedlap.report.page.page_files import write_page
from fedlap.report.page.sections import (
    BarsSection,
    CurveSeries,
    FactsSection,
    FigureSection,
    GraphSection,
    HeatmapSection,
    IntervalPanel,
    IntervalSection,
    MapSection,
    Page,
    PageSection,
    Panel,
    Records,
    ScatterSection,
    TableCell,
    TableSection,
    TextSection,
)
from fedlap.report.page.table_formats import render_csv, render_latex, render_markdown

__all__ = [
    "BarsSection",
    "CurveSeries",
    "FactsSection",
    "FigureSection",
    "GraphSection",
    "HeatmapSection",
    "IntervalPanel",
    "IntervalSection",
    "MapSection",
    "Page",
    "PageSection",
    "Panel",
    "Records",
    "ScatterSection",
    "TableCell",
    "TableSection",
    "TextSection",
    "render_csv",
    "render_html",
    "render_latex",
    "render_markdown",
    "write_page",
]
