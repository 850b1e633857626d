"""Figure of a test score and the training loss over rounds."""

import math
from typing import TYPE_CHECKING

from fedlap.report.comparison import Comparison
from fedlap.report.png import create_figure, render_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_INSIDE = 8  # rows whose legend leaves room for the curves; that of more is right of the panels
LEGEND_ROWS = 15  # per column of a legend right of the panels, whose height is that of the figure
LEGEND_WIDTH = 1.6  # inches per column
COLOURS = 10  # of Matplotlib's cycle


def draw_curves(comparison: Comparison) -> bytes:
    """Draw test score and training loss over rounds as PNG."""
    return render_png(plot_curves(comparison), powers=True)


def plot_curves(comparison: Comparison) -> "Figure":
    """Draw test score and training loss over rounds; bands are one standard deviation over seeds.

    The training loss is drawn if training rows were scored in several rounds.
    Diverged rows have a legend entry but no curve.
    """
    metric = comparison.metric
    title = f"pooled test {metric.label}{metric.unit}{metric.direction}"
    panels = [(metric.name, metric.factor, title)]
    if comparison.has_training_curves():
        panels.append(("train_loss", 1.0, "pooled training loss"))
    number = len(panels)
    columns = 0 if len(comparison.runs) <= MOST_INSIDE else math.ceil(len(comparison.runs) / LEGEND_ROWS)
    size = (5 * number + LEGEND_WIDTH * columns, 4)
    figure, axes = create_figure(1, number, figsize=size, layout="constrained", squeeze=False)
    for axis, (field, factor, title) in zip(axes[0], panels, strict=True):
        for place, name in enumerate(comparison.runs):
            if name not in comparison.ranked_rows:
                axis.plot([], [], label=f"{name} (diverged)", color="none")
                continue
            rounds, values = comparison.curve(name, field)
            values = factor * values
            mean, std = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0.0
            # Curves that coincide stay visible because each later one has wider gaps; of many curves, each
            # later one of the same colour.
            gap = 2 * (place // COLOURS if columns else place)
            dash = (0, (5, gap)) if gap else "-"
            axis.plot(rounds, mean, label=name, linestyle=dash, linewidth=1.8, color=f"C{place}")
            axis.fill_between(rounds, mean - std, mean + std, alpha=0.15, color=f"C{place}")
        axis.set_title(title)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
        axis.set_yscale("log" if field == "train_loss" else "linear")
    if columns:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", ncols=columns)
    else:
        axes[0, 0].legend()
    figure.suptitle(f"{comparison.data}, {comparison.describe_repeats()}")
    plotted: Figure = figure
    return plotted
