"""Figure of the measured objective of a run against the bound of Theorem 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlap.report.png import create_figure, render_png

Curve = Sequence[tuple[float, float]]  # rounds and heights

BOUND_POINTS = 300


@dataclass(frozen=True)
class BoundFigure:
    """Curves of J(W) − J* over rounds.

    measured: of the run's models. weighted: of the weighted mean in the theorem, where it is known.
    bound: of the theorem, at the step that `bound_label` names; it may extend far beyond the run's end.
    """

    title: str
    measured: Curve
    weighted: Curve
    weighted_label: str
    bound: Curve
    bound_label: str
    end: int


def choose_rounds(last: float) -> list[float]:
    """Choose rounds at which a bound is drawn, evenly on a logarithmic axis from 1."""
    return [float(value) for value in np.unique(np.geomspace(1, max(last, 2.0), BOUND_POINTS).round())]


def draw_bound(figure_data: BoundFigure) -> bytes:
    """Draw the curves as PNG, both axes logarithmic."""
    figure, axis = create_figure(figsize=(7.5, 4.6), layout="constrained")
    lines = [
        (figure_data.bound, figure_data.bound_label, "C3", "--"),
        (figure_data.measured, "measured J(W) − J*", "C0", "-"),
        (figure_data.weighted, figure_data.weighted_label, "C2", ":"),
    ]
    for curve, label, colour, style in lines:
        # Values below zero are rounding error.
        points = [
            (rounds, height) for rounds, height in curve if height > 0 and np.isfinite(height) and rounds > 0
        ]
        if points:
            rounds, height = zip(*points, strict=True)
            axis.plot(rounds, height, label=label, linewidth=1.8, color=colour, linestyle=style)
    axis.axvline(figure_data.end, color="0.6", linewidth=1, label="end of this run")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("rounds T")
    axis.set_ylabel("J(W) − J*")
    axis.grid(alpha=0.3)
    axis.legend(loc="best", fontsize=9)
    axis.set_title(figure_data.title, fontsize=10)
    return render_png(figure, powers=True)
