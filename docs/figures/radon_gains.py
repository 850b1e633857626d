"""The map of the landing page: what each county of Minnesota gains by FedU over training alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from figure_files import BLUE, FAINT, GREY, INK, ORANGE, PAPER, Facts, run_script
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

import fedlap as fl

NAME = "radon-gains"
SEEDS = 10
LIMIT = 0.6  # gain at which the colours end
NAMED = 2  # counties at either end whose names are drawn
RADIUS = 4  # of a dot, in points
SIDES = [  # offsets in points and alignment of a name at its dot
    (0, 6, "center", "bottom"), (-6, 0, "right", "center"),
    (6, 0, "left", "center"), (0, -6, "center", "top"),
    (4, 4, "left", "bottom"), (-4, 4, "right", "bottom"),
    (4, -4, "left", "top"), (-4, -4, "right", "top"),
]  # fmt: skip
COLOURS = LinearSegmentedColormap.from_list("gain", [ORANGE, "lightgrey", BLUE])


def compute(seeds: int = SEEDS) -> dict[str, Any]:
    """Return the places and borders of the counties, and their mean gains; None without test houses."""
    federation, graph = fl.data.load_with_graph("radon", seed=0)
    result = fl.compare(["fedu", "local"], data="radon", graph="known", seeds=range(seeds))
    errors = result.clients.groupby(["method", "client"])["value"].mean().unstack(0)
    gain = (errors["local"] - errors["fedu"]).round(4)
    assert federation.places is not None
    places = dict(zip(federation.clients, np.array(federation.places.values).tolist(), strict=True))
    borders = [
        (name, graph.clients[other])
        for k, name in enumerate(graph.clients)
        for other in graph.neighbours(k)[0]
        if k < other
    ]
    gains = {name: None if np.isnan(gain.get(name, np.nan)) else float(gain[name]) for name in places}
    return {"places": places, "borders": borders, "gain": gains}


def draw(facts: Facts) -> Figure:
    """Draw the counties as dots, coloured by their gain or hollow without one, and their borders as lines."""
    figure = Figure((4.2, 4.6))
    ax = figure.subplots()
    places, gain = facts["places"], {k: v for k, v in facts["gain"].items() if v is not None}
    for one, other in facts["borders"]:
        ax.plot(*zip(places[one], places[other], strict=True), color=FAINT, linewidth=0.9, zorder=0)
    hollow = [places[name] for name in places if name not in gain]
    if hollow:
        ax.scatter(*zip(*hollow, strict=True), s=60, c=PAPER, edgecolors=GREY, linewidths=0.9)
    x, y = zip(*(places[name] for name in gain), strict=True)
    dots = ax.scatter(
        x, y, s=60, c=list(gain.values()), cmap=COLOURS, norm=TwoSlopeNorm(0, -LIMIT, LIMIT),
        edgecolors=GREY, linewidths=0.6,
    )  # fmt: skip
    order = sorted(gain, key=gain.__getitem__)
    bar = figure.colorbar(dots, ax=ax, orientation="horizontal", fraction=0.04, pad=0.01, aspect=30)
    bar.set_label("RMSE alone minus RMSE with FedU")
    bar.set_ticks([-LIMIT, -LIMIT / 2, 0, LIMIT / 2, LIMIT])
    ax.set_aspect(1.4)
    ax.axis("off")
    figure.draw_without_rendering()  # which places the axes: names need the positions of all dots
    for name in (*order[:NAMED], *order[-NAMED:]):
        draw_name(ax, name, places)
    return figure


def draw_name(ax: Axes, name: str, places: Mapping[str, Sequence[float]]) -> None:
    """Write the name of a county on the side of its dot where it covers least of other dots."""
    others = ax.transData.transform([place for other, place in places.items() if other != name])
    found = []
    for x, y, across, up in SIDES:
        text = ax.annotate(
            name, places[name], (x, y), textcoords="offset points", ha=across, va=up, color=INK, size=7.5,
            path_effects=[withStroke(linewidth=2, foreground=PAPER)],  # hides the lines behind the name
        )  # fmt: skip
        box = text.get_window_extent()
        gaps = np.maximum(0, np.maximum(box.min - others, others - box.max))  # between name and dots
        share = 1 - np.linalg.norm(gaps, axis=1) / (RADIUS * ax.figure.dpi / 72)
        found.append((share.clip(0).sum(), text))
    best = min(found, key=lambda side: side[0])[1]
    for _, text in found:
        text.set_visible(text is best)


if __name__ == "__main__":
    run_script(NAME, compute, draw)
