"""Results and data as tables and pictures."""

from fedlap.report.clients import Description, draw_clients
from fedlap.report.comparison import Comparison, bytes_text
from fedlap.report.curves import draw_curves

__all__ = ["Comparison", "Description", "bytes_text", "draw_clients", "draw_curves"]
