"""Results and data as tables and pictures."""

from fedlap.report.comparison import Comparison, Outcome, bytes_text
from fedlap.report.curves import draw_curves
from fedlap.report.data_summary import Description, draw_clients
from fedlap.report.sweep_figure import draw_sweep
from fedlap.report.sweep_table import Sweep, shown

__all__ = [
    "Comparison",
    "Description",
    "Outcome",
    "Sweep",
    "bytes_text",
    "draw_clients",
    "draw_curves",
    "draw_sweep",
    "shown",
]
