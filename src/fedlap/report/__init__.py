"""Tables and figures of results and data."""

from fedlap.report.comparison import Comparison, format_bytes
from fedlap.report.curves import draw_curves
from fedlap.report.data_summary import DataSummary, draw_clients
from fedlap.report.sweep_figure import draw_sweep
from fedlap.report.sweep_table import Sweep

__all__ = [
    "Comparison",
    "DataSummary",
    "Sweep",
    "draw_clients",
    "draw_curves",
    "draw_sweep",
    "format_bytes",
]
