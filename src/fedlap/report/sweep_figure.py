"""Figure of a score against the values of varied settings."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlap.experiments.settings import format_value
from fedlap.report.png import create_figure, render_png
from fedlap.report.sweep_table import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_AXIS_RATIO = 10  # values whose largest ratio exceeds this get a logarithmic axis
MAX_TICK_LABELS = 9  # more values get automatic ticks
MAX_LEGEND_LINES = 16  # more lines are pale, except the best one
LABEL_LETTERS_PER_LINE = 32  # of a label next to the axis
PALE_COLOUR = "0.8"

RowGroups = dict[str, list[str]]  # rows that are drawn as one line, by their common values


def draw_sweep(sweep: Sweep) -> bytes:
    """Draw the headline score over the varied settings as PNG."""
    return render_png(plot_sweep(sweep))


def plot_sweep(sweep: Sweep) -> "Figure":
    """Draw the headline score, mean and standard deviation over seeds.

    Numbers lie along an axis, with a line per value of the other settings; words lie one below another.
    """
    numbers = [place for place in range(len(sweep.field_names)) if sweep.is_numeric(place)]
    # The setting with the most values goes along the axis.
    along = max(numbers, key=lambda place: len(sweep.list_values(place)), default=0)
    groups = _group_rows(sweep, along)
    height = 1.6 + 0.22 * len(sweep.list_values(along)) * max(1.5, len(groups))
    figure, axis = create_figure(figsize=(7, 4.2 if numbers else min(height, 20)), layout="constrained")
    (_draw_numbers if numbers else _draw_words)(axis, sweep, along, groups)
    axis.grid(alpha=0.3)
    others = [name for place, name in enumerate(sweep.field_names) if place != along]
    _draw_legend(figure, axis, ", ".join(others))
    figure.suptitle(f"{sweep.describe_subject()}, {sweep.describe_repeats()}", fontsize="medium")
    plotted: Figure = figure
    return plotted


def _group_rows(sweep: Sweep, along: int) -> RowGroups:
    """Group rows that differ only in the setting along the axis."""
    groups: RowGroups = {}
    for row, values in sweep.values.items():
        rest = ", ".join(format_value(value) for place, value in enumerate(values) if place != along)
        groups.setdefault(rest, []).append(row)
    return groups


def _choose_styles(sweep: Sweep, groups: RowGroups) -> list[tuple[str, str | None]]:
    """Choose colour and label of each line; of very many, only the best one has a colour."""
    from matplotlib import color_sequences, colors

    if len(groups) <= MAX_LEGEND_LINES:
        colours = color_sequences["tab10" if len(groups) <= 10 else "tab20"]
        return [(colors.to_hex(colours[n]), label or None) for n, label in enumerate(groups)]
    best = sweep.best
    return [
        ("C0", f"{label} (best)") if best in rows else (PALE_COLOUR, None) for label, rows in groups.items()
    ]


def _compute_mean_std(sweep: Sweep, rows: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each row; the mean is NaN where a run diverged."""
    factor = sweep.metric.factor
    scores = [
        factor * sweep.final_scores(row, sweep.headline) if row in sweep.ranked_rows else None for row in rows
    ]
    mean = [np.nan if row_scores is None else row_scores.mean() for row_scores in scores]
    std = [
        0.0 if row_scores is None or len(row_scores) < 2 else row_scores.std(ddof=1) for row_scores in scores
    ]
    return np.array(mean), np.nan_to_num(np.array(std))


def _format_score_label(sweep: Sweep) -> str:
    return f"pooled test {sweep.metric.label}{sweep.metric.unit}{sweep.metric.direction}"


def _draw_numbers(axis: Any, sweep: Sweep, along: int, groups: RowGroups) -> None:
    """Draw lines over numbers, with gaps where runs diverged."""
    drawn = False
    for (colour, label), rows in zip(_choose_styles(sweep, groups), groups.values(), strict=True):
        rows = sorted(rows, key=lambda row: sweep.values[row][along])
        x = np.array([sweep.values[row][along] for row in rows], dtype=float)
        mean, std = _compute_mean_std(sweep, rows)
        drawn = drawn or not np.isnan(mean).all()
        axis.errorbar(
            x, mean, None if colour == PALE_COLOUR else std, marker="o", markersize=4, capsize=3,
            linewidth=1.5, color=colour, label=label, zorder=1 if colour == PALE_COLOUR else 2,
        )  # fmt: skip
        failed = x[[row not in sweep.ranked_rows for row in rows]]
        if len(failed):
            foot = axis.get_xaxis_transform()
            axis.plot(
                failed, [0.03] * len(failed), "x", color=colour, transform=foot, zorder=3, label="diverged"
            )
    _set_x_scale(axis, np.unique(np.array(sweep.list_values(along), dtype=float)))
    axis.set_xlabel(sweep.field_names[along])
    axis.set_ylabel(_format_score_label(sweep))
    if not drawn:
        axis.set_yticks([])


def _set_x_scale(axis: Any, tried: np.ndarray) -> None:
    """Set a logarithmic axis for a wide range of values, linear around zero if zero is among them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    sizes = np.abs(tried[tried != 0])
    wide = len(sizes) > 1 and sizes.max() / sizes.min() > LOG_AXIS_RATIO
    if wide and (tried > 0).all():
        axis.set_xscale("log")
    elif wide:
        axis.set_xscale("symlog", linthresh=sizes.min(), linscale=0.5)
    if len(tried) > MAX_TICK_LABELS:
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        return
    labels = [format_value(float(value)) for value in tried]
    long = sum(map(len, labels)) > 45
    axis.set_xticks(tried, labels, rotation=45 if long else 0, ha="right" if long else "center")
    axis.xaxis.set_minor_locator(NullLocator())


def _draw_words(axis: Any, sweep: Sweep, along: int, groups: RowGroups) -> None:
    """Draw dots, one value below another."""
    places = {format_value(value): place for place, value in enumerate(sweep.list_values(along))}
    for number, ((colour, label), rows) in enumerate(
        zip(_choose_styles(sweep, groups), groups.values(), strict=True)
    ):
        shift = 0.6 * ((number + 0.5) / len(groups) - 0.5)
        y = np.array([places[format_value(sweep.values[row][along])] + shift for row in rows])
        mean, std = _compute_mean_std(sweep, rows)
        axis.errorbar(mean, y, xerr=std, fmt="o", markersize=5, capsize=3, color=colour, label=label)
        for row, height in zip(rows, y, strict=True):
            if row not in sweep.ranked_rows:
                side = axis.get_yaxis_transform()
                axis.text(
                    0.01, height, "diverged", color=colour, transform=side, va="center", fontsize="small"
                )
    axis.set_yticks(list(places.values()), [fill(text, LABEL_LETTERS_PER_LINE) for text in places])
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.set_ylabel(sweep.field_names[along])
    axis.set_xlabel(_format_score_label(sweep))
    if not sweep.ranked_rows:
        axis.set_xticks([])


def _draw_legend(figure: Any, axis: Any, title: str) -> None:
    """Draw a legend next to the axis if any line has a label; the diverged mark comes last, once."""
    handles = {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if "diverged" in handles:
        handles["diverged"] = handles.pop("diverged")
    if handles:
        figure.legend(
            handles.values(), handles, loc="outside right upper", fontsize="small", title=title or None
        )
