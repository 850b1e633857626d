"""Figure of a graph: clients and the edges between them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.graph.description import list_vertices
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights
from fedlap.report.graph_layout import compute_layout
from fedlap.report.graph_thinning import thin_graph
from fedlap.report.png import create_figure, render_png

MAX_VERTICES, MAX_EDGES = 2_000, 10_000  # in a figure
TITLE_LETTERS_PER_LINE = 90
MAX_NAMES = 40  # more clients are drawn without names
MAX_INNER_LETTERS = 3  # of a name that fits inside its client
MAX_NAME_LETTERS = 18  # longer names are shortened
# The ten colours of Petroff (2021) are distinguishable for colour-blind readers, too; the rest is white.
CATEGORY_COLOURS = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581",
    "#92dadd",
)  # fmt: skip
OTHER_COLOUR = "white"


@dataclass(frozen=True, eq=False)
class ClientColours:
    """Values that colour the clients: numbers on a scale, or indices into `categories`."""

    label: str
    values: Float64[np.ndarray, "client"]  # NaN where unknown
    categories: tuple[str, ...] | None = None
    unknown: str = ""  # reason for unknown values

    @staticmethod
    def by_category(
        label: str, category: Int64[np.ndarray, "client"], names: Sequence[str]
    ) -> "ClientColours":
        """Colour by category, in the order of `names`; beyond ten, the rarest categories share one colour."""
        count = np.bincount(category, minlength=len(names))
        shown = np.flatnonzero(count)
        if len(shown) > len(CATEGORY_COLOURS):
            shown = np.sort(np.argsort(-count, kind="stable")[: len(CATEGORY_COLOURS)])
        place = np.full(len(names), len(shown))
        place[shown] = np.arange(len(shown))
        categories = tuple(names[index] for index in shown.tolist())
        others = int((count > 0).sum()) - len(shown)
        more = (f"{others} more",) if others else ()
        return ClientColours(label, place[category].astype(float), categories + more)


def draw_graph(
    title: str, graph: Graph, colours: ClientColours | None, rows: Int64[np.ndarray, "client"] | None = None
) -> bytes:
    """Draw a graph as PNG: neighbours close together, edge width by weight, client area by rows."""
    if isinstance(graph.weights, CompleteWeights) and graph.size > DENSE_UP_TO:
        raise InputError(f"draw: {graph.size:,} clients in a complete graph; draw a graph with fewer edges")
    drawn = thin_graph(graph, MAX_VERTICES, MAX_EDGES)
    clients = len(drawn.vertices) - graph.server
    drawn_clients = drawn.vertices[:clients]
    positions = compute_layout(drawn.matrix)
    figure, axis = create_figure(figsize=(8.5, 7), layout="constrained")
    _draw_edges(axis, positions, drawn.ends, drawn.weight)
    areas = _compute_areas(clients, None if rows is None else rows[drawn_clients])
    drawn_colours = None if colours is None else replace(colours, values=colours.values[drawn_clients])
    face = _draw_vertices(figure, axis, positions[:clients], areas, drawn_colours)
    if graph.server:
        axis.scatter(positions[-1, 0], positions[-1, 1], s=330, marker="s", color="black", zorder=3)
    if graph.size <= MAX_NAMES:
        _draw_names(figure, axis, positions[:clients], list_vertices(graph)[:clients], face)
    axis.set_aspect("equal")
    axis.margins(0.06)
    axis.axis("off")
    remarks = ["square: server"] if graph.server else []
    remarks += ["area: training rows"] if rows is not None else []
    if drawn_colours is not None and drawn_colours.unknown and not np.isfinite(drawn_colours.values).all():
        remarks.append(f"white: {drawn_colours.unknown}")
    about = fill("; ".join([drawn.about, *remarks]), TITLE_LETTERS_PER_LINE)
    axis.set_title(f"{title}\n{about}", fontsize="medium")
    return render_png(figure)


def _draw_edges(
    axis: Any,
    positions: Float64[np.ndarray, "vertex 2"],
    ends: Int64[np.ndarray, "2 edge"],
    weight: Float64[np.ndarray, "edge"],
) -> None:
    from matplotlib.collections import LineCollection

    share = weight / weight.max(initial=1e-300)
    # Edges get paler the more there are, so that the figure stays readable.
    dark = np.clip(6 / max(1, len(weight)) ** 0.5, 0.06, 0.75)
    colours = np.zeros((len(weight), 4))
    colours[:, :3] = 0.25
    colours[:, 3] = dark * (0.15 + 0.85 * share)
    widths = (0.4 + 2.0 * share) * (1 if len(weight) < 500 else 0.5)
    axis.add_collection(LineCollection(positions[ends.T], colors=colours, linewidths=widths, zorder=1))


def _compute_areas(clients: int, rows: Int64[np.ndarray, "client"] | None) -> Float64[np.ndarray, "client"]:
    """Return areas proportional to rows, within limits that keep each client visible."""
    usual = 330.0 if clients <= MAX_NAMES else max(8.0, 9_000 / clients)
    if rows is None:
        return np.full(clients, usual)
    return np.asarray(np.clip(usual * rows / max(1.0, float(np.mean(rows))), 0.55 * usual, 2.5 * usual))


def _draw_vertices(
    figure: Any,
    axis: Any,
    positions: Float64[np.ndarray, "client 2"],
    areas: Float64[np.ndarray, "client"],
    colours: ClientColours | None,
) -> Float64[np.ndarray, "client 4"]:
    """Draw clients as dots with a colour bar; return the colours."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize, to_rgba_array

    if colours is None:
        face = to_rgba_array([CATEGORY_COLOURS[0]] * len(positions))
    elif colours.categories is None:
        known = colours.values[np.isfinite(colours.values)]
        low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
        scale = ScalarMappable(Normalize(low, high if high > low else low + 1), colormaps["viridis"])
        face = scale.to_rgba(np.ma.masked_invalid(colours.values))
        face[~np.isfinite(colours.values)] = to_rgba_array(OTHER_COLOUR)
        figure.colorbar(scale, ax=axis, label=colours.label, shrink=0.7, aspect=30, pad=0.01)
    else:
        number = len(colours.categories)
        listed = ListedColormap([*CATEGORY_COLOURS, OTHER_COLOUR][:number])
        scale = ScalarMappable(BoundaryNorm(np.arange(number + 1) - 0.5, number), listed)
        face = scale.to_rgba(colours.values)
        bar = figure.colorbar(scale, ax=axis, label=colours.label, shrink=0.7, aspect=30, pad=0.01)
        bar.set_ticks(np.arange(number), labels=[_shorten_name(kind) for kind in colours.categories])
        bar.ax.invert_yaxis()
    rim = 0.8 if len(positions) <= 500 else 0.2
    axis.scatter(*positions.T, s=areas, c=face, edgecolors="black", linewidths=rim, zorder=2)
    return np.asarray(face, dtype=float)


def _draw_names(
    figure: Any,
    axis: Any,
    positions: Float64[np.ndarray, "client 2"],
    names: tuple[str, ...],
    face: Float64[np.ndarray, "client 4"],
) -> None:
    """Draw short names inside their clients; longer names, which would overlap, get numbers and a key."""
    from matplotlib.lines import Line2D

    labels = names
    if max(map(len, names)) > MAX_INNER_LETTERS:
        labels = tuple(str(number) for number in range(1, len(names) + 1))
        key = [f"{number}  {_shorten_name(name)}" for number, name in zip(labels, names, strict=True)]
        figure.legend(
            [Line2D([], [], linestyle="")] * len(names), key, loc="outside left center", fontsize=7,
            handlelength=0, handletextpad=0, frameon=False, labelspacing=0.35,
        )  # fmt: skip
    bright = face[:, :3] @ (0.299, 0.587, 0.114) > 0.5
    for name, place, light in zip(labels, positions, bright, strict=True):
        colour = "black" if light else "white"
        axis.annotate(name, place, ha="center", va="center", fontsize=8, zorder=4, color=colour)


def _shorten_name(name: str) -> str:
    return name if len(name) <= MAX_NAME_LETTERS else name[: MAX_NAME_LETTERS - 1] + "…"
