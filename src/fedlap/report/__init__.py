"""Results and data as tables and pictures."""

from fedlap.report.clients import Description, draw_clients
from fedlap.report.comparison import Comparison
from fedlap.report.curves import draw_curves

__all__ = ["Comparison", "Description", "draw_clients", "draw_curves"]
