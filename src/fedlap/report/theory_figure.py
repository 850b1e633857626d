"""What was measured of a run against what Theorem 1 promises, as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlap.report.png import blank, png

Curve = Sequence[tuple[float, float]]  # rounds and heights

POINTS = 300


@dataclass(frozen=True)
class BoundPicture:
    """Curves of J(W) − J* over rounds.

    measured: of the run's models. weighted: of what the theorem is about, where it is known.
    bound: the theorem's, at the step that `bound_of` names; it may go on far behind the run's end.
    """

    title: str
    measured: Curve
    weighted: Curve
    weighted_of: str
    bound: Curve
    bound_of: str
    end: int


def rounds_on_axis(last: float) -> list[float]:
    """Where a bound is drawn: evenly on a logarithmic axis from 1 on."""
    return [float(at) for at in np.unique(np.geomspace(1, max(last, 2.0), POINTS).round())]


def draw_bound(picture: BoundPicture) -> bytes:
    """A PNG, logarithmic in both."""
    figure, axis = blank(figsize=(7.5, 4.6), layout="constrained")
    lines = [
        (picture.bound, picture.bound_of, "C3", "--"),
        (picture.measured, "measured J(W) − J*", "C0", "-"),
        (picture.weighted, picture.weighted_of, "C2", ":"),
    ]
    for curve, label, colour, style in lines:
        # Below zero is what rounding leaves.
        kept = [(at, height) for at, height in curve if height > 0 and np.isfinite(height) and at > 0]
        if kept:
            at, height = zip(*kept, strict=True)
            axis.plot(at, height, label=label, linewidth=1.8, color=colour, linestyle=style)
    axis.axvline(picture.end, color="0.6", linewidth=1, label="end of this run")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("rounds T")
    axis.set_ylabel("J above its least value J*")
    axis.grid(alpha=0.3)
    axis.legend(loc="best", fontsize=9)
    axis.set_title(picture.title, fontsize=10)
    return png(figure, powers=True)
