"""A graph as a picture: who is joined with whom."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.graph.description import vertices
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights
from fedlap.report.graph_layout import layout
from fedlap.report.graph_thinning import thin
from fedlap.report.png import blank, png

MOST_VERTICES, MOST_EDGES = 2_000, 10_000  # in a drawing
LINE = 90  # letters of a line of the title
MOST_NAMES = 40  # clients that are named
INSIDE = 3  # letters of a name that has room within its client
LONGEST = 18  # letters of a name that are shown
# The ten colours of Petroff (2021), made to be told apart by everybody; what is left is white.
CATEGORIES = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581",
    "#92dadd",
)  # fmt: skip
REST = "white"


@dataclass(frozen=True, eq=False)
class Colours:
    """What clients are coloured by: numbers along a scale, or places among the names of kinds."""

    what: str
    values: Float64[np.ndarray, "client"]  # not a number where it is not known
    kinds: tuple[str, ...] | None = None
    unknown: str = ""  # why a value is not known

    @staticmethod
    def by_kind(what: str, kind: Int64[np.ndarray, "client"], names: Sequence[str]) -> "Colours":
        """Kinds in the order of their names; of many, the rarest are put together."""
        count = np.bincount(kind, minlength=len(names))
        shown = np.flatnonzero(count)
        if len(shown) > len(CATEGORIES):
            shown = np.sort(np.argsort(-count, kind="stable")[: len(CATEGORIES)])
        place = np.full(len(names), len(shown))
        place[shown] = np.arange(len(shown))
        kinds = tuple(names[one] for one in shown.tolist())
        others = int((count > 0).sum()) - len(shown)
        more = (f"{others} more",) if others else ()
        return Colours(what, place[kind].astype(float), kinds + more)


def draw_graph(
    title: str, graph: Graph, colours: Colours | None, rows: Int64[np.ndarray, "client"] | None = None
) -> bytes:
    """A PNG: clients near their neighbours, edges the wider the heavier, areas as clients have rows."""
    if isinstance(graph.weights, CompleteWeights) and graph.size > DENSE_UP_TO:
        raise InputError(
            f"draw: each of {graph.size:,} clients is joined with every other one, which makes no picture"
        )
    drawn = thin(graph, MOST_VERTICES, MOST_EDGES)
    clients = len(drawn.vertices) - graph.server
    own = drawn.vertices[:clients]
    at = layout(drawn.matrix)
    figure, axis = blank(figsize=(8.5, 7), layout="constrained")
    _draw_edges(axis, at, drawn.ends, drawn.weight)
    areas = _areas(clients, None if rows is None else rows[own])
    shown = None if colours is None else replace(colours, values=colours.values[own])
    face = _draw_clients(figure, axis, at[:clients], areas, shown)
    if graph.server:
        axis.scatter(at[-1, 0], at[-1, 1], s=330, marker="s", color="black", zorder=3)
    if graph.size <= MOST_NAMES:
        _draw_names(figure, axis, at[:clients], vertices(graph)[:clients], face)
    axis.set_aspect("equal")
    axis.margins(0.06)
    axis.axis("off")
    remarks = ["the server is the square"] if graph.server else []
    remarks += ["the larger, the more rows"] if rows is not None else []
    if shown is not None and shown.unknown and not np.isfinite(shown.values).all():
        remarks.append(f"white: {shown.unknown}")
    about = fill("; ".join([drawn.about, *remarks]), LINE)
    axis.set_title(f"{title}\n{about}", fontsize="medium")
    return png(figure)


def _draw_edges(
    axis: Any,
    at: Float64[np.ndarray, "vertex 2"],
    ends: Int64[np.ndarray, "2 edge"],
    weight: Float64[np.ndarray, "edge"],
) -> None:
    from matplotlib.collections import LineCollection

    share = weight / weight.max(initial=1e-300)
    # The more edges, the paler each, so that the whole stays readable.
    dark = np.clip(6 / max(1, len(weight)) ** 0.5, 0.06, 0.75)
    colours = np.zeros((len(weight), 4))
    colours[:, :3] = 0.25
    colours[:, 3] = dark * (0.15 + 0.85 * share)
    widths = (0.4 + 2.0 * share) * (1 if len(weight) < 500 else 0.5)
    axis.add_collection(LineCollection(at[ends.T], colors=colours, linewidths=widths, zorder=1))


def _areas(clients: int, rows: Int64[np.ndarray, "client"] | None) -> Float64[np.ndarray, "client"]:
    """Areas that go with the rows, within limits at which a client is still seen, or named."""
    usual = 330.0 if clients <= MOST_NAMES else max(8.0, 9_000 / clients)
    if rows is None:
        return np.full(clients, usual)
    return np.asarray(np.clip(usual * rows / max(1.0, float(np.mean(rows))), 0.55 * usual, 2.5 * usual))


def _draw_clients(
    figure: Any,
    axis: Any,
    at: Float64[np.ndarray, "client 2"],
    areas: Float64[np.ndarray, "client"],
    colours: Colours | None,
) -> Float64[np.ndarray, "client 4"]:
    """Dots and what their colours mean; the colours themselves."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize, to_rgba_array

    if colours is None:
        face = to_rgba_array([CATEGORIES[0]] * len(at))
    elif colours.kinds is None:
        known = colours.values[np.isfinite(colours.values)]
        low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
        scale = ScalarMappable(Normalize(low, high if high > low else low + 1), colormaps["viridis"])
        face = scale.to_rgba(np.ma.masked_invalid(colours.values))
        face[~np.isfinite(colours.values)] = to_rgba_array(REST)
        figure.colorbar(scale, ax=axis, label=colours.what, shrink=0.7, aspect=30, pad=0.01)
    else:
        number = len(colours.kinds)
        listed = ListedColormap([*CATEGORIES, REST][:number])
        scale = ScalarMappable(BoundaryNorm(np.arange(number + 1) - 0.5, number), listed)
        face = scale.to_rgba(colours.values)
        bar = figure.colorbar(scale, ax=axis, label=colours.what, shrink=0.7, aspect=30, pad=0.01)
        bar.set_ticks(np.arange(number), labels=[_short(kind) for kind in colours.kinds])
        bar.ax.invert_yaxis()
    rim = 0.8 if len(at) <= 500 else 0.2
    axis.scatter(*at.T, s=areas, c=face, edgecolors="black", linewidths=rim, zorder=2)
    return np.asarray(face, dtype=float)


def _draw_names(
    figure: Any,
    axis: Any,
    at: Float64[np.ndarray, "client 2"],
    names: tuple[str, ...],
    face: Float64[np.ndarray, "client 4"],
) -> None:
    """Short names within their clients; instead of longer ones, which would overlap, numbers and a key."""
    from matplotlib.lines import Line2D

    shown = names
    if max(map(len, names)) > INSIDE:
        shown = tuple(str(number) for number in range(1, len(names) + 1))
        key = [f"{number}  {_short(name)}" for number, name in zip(shown, names, strict=True)]
        figure.legend(
            [Line2D([], [], linestyle="")] * len(names), key, loc="outside left center", fontsize=7,
            handlelength=0, handletextpad=0, frameon=False, labelspacing=0.35,
        )  # fmt: skip
    bright = face[:, :3] @ (0.299, 0.587, 0.114) > 0.5
    for name, place, light in zip(shown, at, bright, strict=True):
        colour = "black" if light else "white"
        axis.annotate(name, place, ha="center", va="center", fontsize=8, zorder=4, color=colour)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
