"""What clients hold, and the graph that joins them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from fedlap.data.federation import Federation
from fedlap.graph import Graph
from fedlap.graph.description import component, vertices
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights
from fedlap.report.data_summary import Description
from fedlap.report.graph_layout import layout
from fedlap.report.graph_thinning import thin
from fedlap.report.page.sections import EVEN, UNKNOWN, DrawingSection, HeatSection, TextSection
from fedlap.report.page.styles import LIGHT

MOST_CLIENTS = 200  # of the picture of labels
MOST_LABELS = 60
MOST_NODES, MOST_EDGES = 400, 5_000  # in a drawing
GAINS, LOSES = 0, 1  # colour groups


def held(federation: Federation, when: str) -> HeatSection | None:
    """Who has how many rows of which label; None where targets are real numbers."""
    about = Description.of("", federation)
    if about.held is None or about.labels is None or len(about.labels) > MOST_LABELS:
        return None
    clients = about.clients[:MOST_CLIENTS]
    more = (
        f"; the first {len(clients):,} of {len(about.clients):,} clients"
        if len(clients) < len(about.clients)
        else ""
    )
    values = about.held[: len(clients)].T.double().tolist()
    text = f"A line a label, a column a client, {when}{more}: the stronger the colour, the more rows."
    return HeatSection("Who has which labels", text, "labels", list(about.labels), list(clients), values)


@dataclass(frozen=True)
class Sides:
    """Each client's gain over a row, NaN without test rows, and the seeds that it is of, in words."""

    base: str
    gains: Mapping[str, float]
    over: str


def drawing(
    row: str, graph: Graph, sides: Sides | None, seed: str, name: str = "graph"
) -> Iterator[DrawingSection | TextSection]:
    """The graph, neighbours near each other; colours say who gains, or which component a client is in.

    `seed` says which seed's graph it is, where there are several.
    """
    title = f"The graph of {row}"
    complete = isinstance(graph.weights, CompleteWeights) and graph.edges > 0
    all_joined = ": everybody is joined with everybody" if complete else ""
    if complete and graph.size > DENSE_UP_TO:
        yield TextSection(
            title, [f"{graph.size:,} clients, {graph.edges:,} edges{all_joined}, which makes no picture."]
        )
        return
    drawn = thin(graph, MOST_NODES, MOST_EDGES)
    every = vertices(graph)
    names = [every[place] for place in drawn.vertices.tolist()]
    edges = [
        (int(one), int(other), float(each))
        for one, other, each in zip(*drawn.ends, drawn.weight, strict=True)
    ]
    group, coloured = (
        _components(graph, drawn.vertices) if sides is None else _sides(sides, names, graph.server)
    )
    nodes = [
        (name, float(x), float(y), colour)
        for name, (x, y), colour in zip(names, layout(drawn.matrix), group, strict=True)
    ]
    if sides is not None and len(names) < graph.size:
        coloured += "; numbers count the clients drawn"
    when = f" The edges are those of {seed}." if seed else ""
    yield DrawingSection(title, f"{drawn.about}{all_joined}.{when} {coloured}.", name, nodes, edges)


def _components(graph: Graph, drawn: Int64[np.ndarray, "drawn"]) -> tuple[list[int], str]:
    """A colour for each of the largest components, one for all others; in words."""
    own = component(graph.weights)
    number, most = int(own.max(initial=0)) + 1, len(LIGHT) - 1
    group = [int(place) if place < most or number <= most + 1 else EVEN for place in own[drawn]]
    if number <= most + 1:
        return group, "Colours tell components apart"
    return (
        group,
        f"Colours tell the {most} largest components apart; clients of the {number - most:,} others are grey",
    )


def _sides(sides: Sides, names: Sequence[str], server: bool) -> tuple[list[int], str]:
    """Who gains, loses, does neither, or is not known to; in words. A server comes last."""
    group = [_side(sides.gains[name]) for name in names[: len(names) - server]]
    number = {side: f"{group.count(side):,}" for side in (GAINS, LOSES, EVEN, UNKNOWN)}
    text = f"Colours, {sides.over}: blue clients gain against {sides.base} ({number[GAINS]}), orange ones "
    text += f"lose ({number[LOSES]}), grey ones do neither ({number[EVEN]})"
    text += f", hollow ones have no test rows ({number[UNKNOWN]})" if UNKNOWN in group else ""
    return group + [len(LIGHT) - 1] * server, text


def _side(gain: float) -> int:
    if math.isnan(gain):
        return UNKNOWN
    return GAINS if gain > 0 else LOSES if gain < 0 else EVEN
