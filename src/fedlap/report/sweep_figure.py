"""A score against the values of varied settings, as a picture."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np

from fedlap.report.png import blank, png
from fedlap.report.sweep_table import Sweep, shown

WIDE = 10  # values that span more than this many times are drawn on a logarithmic axis
MOST_TICKS = 9  # values that are all written below the axis
MOST_LINES = 16  # that a legend can tell apart
LONGEST = 32  # letters of a line beside the axis
PALE = "0.8"

Groups = dict[str, list[str]]  # rows that are drawn as one line, by what they have in common


def draw_sweep(sweep: Sweep) -> bytes:
    """A PNG: the headline score, mean and standard deviation over seeds.

    Numbers lie along an axis, with a line for each value of the other fields; words lie one below another.
    """
    numbers = [place for place in range(len(sweep.names)) if sweep.numeric(place)]
    # The field with most values makes the most of an axis.
    along = max(numbers, key=lambda place: len(sweep.tried(place)), default=0)
    groups = _groups(sweep, along)
    height = 1.6 + 0.22 * len(sweep.tried(along)) * max(1.5, len(groups))
    figure, axis = blank(figsize=(7, 4.2 if numbers else min(height, 20)), layout="constrained")
    (_draw_numbers if numbers else _draw_words)(axis, sweep, along, groups)
    axis.grid(alpha=0.3)
    others = [name for place, name in enumerate(sweep.names) if place != along]
    _legend(figure, axis, ", ".join(others))
    figure.suptitle(f"{sweep.subject()}, {sweep.over()}", fontsize="medium")
    return png(figure)


def _groups(sweep: Sweep, along: int) -> Groups:
    """Rows that differ in one field alone."""
    groups: Groups = {}
    for row, values in sweep.values.items():
        rest = ", ".join(shown(value) for place, value in enumerate(values) if place != along)
        groups.setdefault(rest, []).append(row)
    return groups


def _looks(sweep: Sweep, groups: Groups) -> list[tuple[str, str | None]]:
    """Colour and name of each line; of very many, the best one stands out and the others stay pale."""
    from matplotlib import color_sequences, colors

    if len(groups) <= MOST_LINES:
        colours = color_sequences["tab10" if len(groups) <= 10 else "tab20"]
        return [(colors.to_hex(colours[n]), label or None) for n, label in enumerate(groups)]
    best = sweep.best
    return [("C0", f"{label} (best)") if best in rows else (PALE, None) for label, rows in groups.items()]


def _points(sweep: Sweep, rows: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each row; not a number where a run diverged."""
    factor = 100.0 if sweep.classifies else 1.0
    scores = [factor * sweep.last(row, sweep.headline) if row in sweep.ranked else None for row in rows]
    mean = [np.nan if each is None else each.mean() for each in scores]
    std = [0.0 if each is None or len(each) < 2 else each.std(ddof=1) for each in scores]
    return np.array(mean), np.nan_to_num(np.array(std))


def _what(sweep: Sweep) -> str:
    return "test accuracy %, pooled" if sweep.classifies else "test loss, pooled (lower is better)"


def _draw_numbers(axis: Any, sweep: Sweep, along: int, groups: Groups) -> None:
    """Lines over numbers, with gaps where runs diverged."""
    drawn = False
    for (colour, label), rows in zip(_looks(sweep, groups), groups.values(), strict=True):
        rows = sorted(rows, key=lambda row: sweep.values[row][along])
        x = np.array([sweep.values[row][along] for row in rows], dtype=float)
        mean, std = _points(sweep, rows)
        drawn = drawn or not np.isnan(mean).all()
        axis.errorbar(
            x, mean, None if colour == PALE else std, marker="o", markersize=4, capsize=3, linewidth=1.5,
            color=colour, label=label, zorder=1 if colour == PALE else 2,
        )  # fmt: skip
        failed = x[[row not in sweep.ranked for row in rows]]
        if len(failed):
            foot = axis.get_xaxis_transform()
            axis.plot(
                failed, [0.03] * len(failed), "x", color=colour, transform=foot, zorder=3, label="diverged"
            )
    _scale(axis, np.unique(np.array(sweep.tried(along), dtype=float)))
    axis.set_xlabel(sweep.names[along])
    axis.set_ylabel(_what(sweep))
    if not drawn:
        axis.set_yticks([])


def _scale(axis: Any, tried: np.ndarray) -> None:
    """A logarithmic axis where values span much; one that goes through zero where that is among them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    sizes = np.abs(tried[tried != 0])
    wide = len(sizes) > 1 and sizes.max() / sizes.min() > WIDE
    if wide and (tried > 0).all():
        axis.set_xscale("log")
    elif wide:
        axis.set_xscale("symlog", linthresh=sizes.min(), linscale=0.5)
    if len(tried) > MOST_TICKS:
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        return
    labels = [shown(float(value)) for value in tried]
    long = sum(map(len, labels)) > 45
    axis.set_xticks(tried, labels, rotation=45 if long else 0, ha="right" if long else "center")
    axis.xaxis.set_minor_locator(NullLocator())


def _draw_words(axis: Any, sweep: Sweep, along: int, groups: Groups) -> None:
    """Dots, a value below another."""
    places = {shown(value): place for place, value in enumerate(sweep.tried(along))}
    for number, ((colour, label), rows) in enumerate(
        zip(_looks(sweep, groups), groups.values(), strict=True)
    ):
        shift = 0.6 * ((number + 0.5) / len(groups) - 0.5)
        y = np.array([places[shown(sweep.values[row][along])] + shift for row in rows])
        mean, std = _points(sweep, rows)
        axis.errorbar(mean, y, xerr=std, fmt="o", markersize=5, capsize=3, color=colour, label=label)
        for row, at in zip(rows, y, strict=True):
            if row not in sweep.ranked:
                side = axis.get_yaxis_transform()
                axis.text(0.01, at, "diverged", color=colour, transform=side, va="center", fontsize="small")
    axis.set_yticks(list(places.values()), [fill(text, LONGEST) for text in places])
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.set_ylabel(sweep.names[along])
    axis.set_xlabel(_what(sweep))
    if not sweep.ranked:
        axis.set_xticks([])


def _legend(figure: Any, axis: Any, title: str) -> None:
    """Beside the axis, where there is something to tell apart; what diverged comes last, once."""
    handles = {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if "diverged" in handles:
        handles["diverged"] = handles.pop("diverged")
    if handles:
        figure.legend(
            handles.values(), handles, loc="outside right upper", fontsize="small", title=title or None
        )
