"""Results and data as tables and pictures."""

from fedlap.report.clients import Description, draw_clients
from fedlap.report.comparison import Comparison, Outcome, bytes_text
from fedlap.report.curves import draw_curves
from fedlap.report.response import draw_sweep
from fedlap.report.sweep import Sweep, shown

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
