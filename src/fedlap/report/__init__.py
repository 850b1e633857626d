"""Results as tables and pictures."""

from fedlap.report.comparison import Comparison
from fedlap.report.curves import draw_curves

__all__ = ["Comparison", "draw_curves"]
