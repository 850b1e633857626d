"""Accuracy or loss over rounds, as a picture."""

import numpy as np

from fedlap.report.comparison import Comparison
from fedlap.report.png import blank, png


def draw_curves(comparison: Comparison) -> bytes:
    """A PNG: test accuracy and training loss over rounds; bands are one standard deviation over seeds.

    What diverged is not drawn.
    """
    panels = [(comparison.headline, 100.0 if comparison.classifies else 1.0), ("train_loss", 1.0)]
    titles = [
        "test accuracy %, pooled" if comparison.classifies else "test loss, pooled",
        "training loss, pooled",
    ]
    figure, axes = blank(1, 2, figsize=(10, 4), layout="constrained")
    for axis, (field, factor), title in zip(axes, panels, titles, strict=True):
        for place, name in enumerate(comparison.runs):
            runs = comparison.finished(name)
            if name not in comparison.ranked:
                axis.plot([], [], label=f"{name} (diverged)", color="none")
                continue
            rounds = [score.round for score in runs[0]]
            values = factor * np.array(
                [[getattr(score, field) for score in scores] for scores in runs], dtype=float
            )
            mean, std = values.mean(0), values.std(0, ddof=1) if len(runs) > 1 else 0.0
            # Curves that coincide stay visible: each later one has wider gaps.
            dash = (0, (5, 2 * place)) if place else "-"
            axis.plot(rounds, mean, label=name, linestyle=dash, linewidth=1.8, color=f"C{place}")
            axis.fill_between(rounds, mean - std, mean + std, alpha=0.15, color=f"C{place}")
        axis.set_title(title)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[1].set_yscale("log")
    axes[0].legend()
    figure.suptitle(f"{comparison.data}, {comparison.over()}")
    return png(figure, powers=True)
