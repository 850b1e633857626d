"""One self-contained HTML page of tables and figures, and the same in other forms."""

from fedlap.report.page.html import html
from fedlap.report.page.sections import (
    BarsSection,
    Cell,
    DrawingSection,
    FactsSection,
    FigureSection,
    HeatSection,
    Page,
    Panel,
    Records,
    Section,
    Series,
    TableSection,
    TextSection,
)
from fedlap.report.page.table_formats import comma_separated, latex, markdown
from fedlap.report.page.write_page import write

__all__ = [
    "BarsSection",
    "Cell",
    "DrawingSection",
    "FactsSection",
    "FigureSection",
    "HeatSection",
    "Page",
    "Panel",
    "Records",
    "Section",
    "Series",
    "TableSection",
    "TextSection",
    "comma_separated",
    "html",
    "latex",
    "markdown",
    "write",
]
