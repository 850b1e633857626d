"""Accuracy or loss over rounds, as a picture."""

import io

import matplotlib
import numpy as np

from fedlap.report.comparison import Comparison


def draw_curves(comparison: Comparison) -> bytes:
    """A PNG: test accuracy and training loss over rounds; bands are one standard deviation over seeds."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(comparison.headline, 100.0 if comparison.classifies else 1.0), ("train_loss", 1.0)]
    titles = [
        "test accuracy %, pooled" if comparison.classifies else "test loss, pooled",
        "training loss, pooled",
    ]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, (field, factor), title in zip(axes, panels, titles, strict=True):
        for place, (name, runs) in enumerate(comparison.runs.items()):
            rounds = [score.round for score in runs[0]]
            values = factor * np.array(
                [[getattr(score, field) for score in scores] for scores in runs], dtype=float
            )
            mean, std = values.mean(0), values.std(0, ddof=1) if len(runs) > 1 else 0.0
            # Curves that coincide stay visible: each later one has wider gaps.
            dash = (0, (5, 2 * place)) if place else "-"
            axis.plot(rounds, mean, label=name, linestyle=dash, linewidth=1.8)
            axis.fill_between(rounds, mean - std, mean + std, alpha=0.15)
        axis.set_title(title)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[1].set_yscale("log")
    axes[0].legend()
    figure.suptitle(f"{comparison.data}, {comparison.over()}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()
