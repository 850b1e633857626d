"""What clients hold, and the graph that joins them."""

from collections.abc import Iterator, Mapping

import numpy as np

from fedlap.federation import Federation
from fedlap.graph import Graph
from fedlap.graph.description import component, vertices
from fedlap.graph.fit import pairs
from fedlap.graph.weights import CompleteWeights
from fedlap.report.clients import Description
from fedlap.report.layout import layout
from fedlap.report.page.colours import LIGHT
from fedlap.report.page.sections import DrawingSection, HeatSection, TextSection

MOST_CLIENTS = 200  # of the picture of labels
MOST_LABELS = 60
MOST_NODES = 400
MOST_EDGES = 1_000  # that are drawn
GAINS, LOSES, REST = 0, 1, 6  # colour groups


def held(federation: Federation, when: str) -> HeatSection | None:
    """Who has how many rows of which label; None where targets are real numbers."""
    about = Description.of("", federation)
    if about.held is None or about.labels is None or len(about.labels) > MOST_LABELS:
        return None
    clients = about.clients[:MOST_CLIENTS]
    more = (
        f"; the first {len(clients)} of {len(about.clients)} clients"
        if len(clients) < len(about.clients)
        else ""
    )
    values = about.held[: len(clients)].T.double().tolist()
    text = f"A line a label, a column a client, {when}{more}: the stronger the colour, the more rows."
    return HeatSection("Who has which labels", text, "labels", list(about.labels), list(clients), values)


def drawing(
    row: str, graph: Graph, gains: Mapping[str, float] | None, name: str = "graph"
) -> Iterator[DrawingSection | TextSection]:
    """The graph, neighbours near each other; colours say who gains, or which component a client is in."""
    title = f"The graph of {row}"
    complete = isinstance(graph.weights, CompleteWeights)
    if graph.size > MOST_NODES:
        yield TextSection(title, [f"{graph.size:,} clients, {graph.edges:,} edges: too many to be drawn."])
        return
    names, at = vertices(graph), layout(graph.weights.matrix())
    ends, weight = pairs(graph)
    heaviest = np.argsort(-weight, kind="stable")[:MOST_EDGES]
    edges = [
        (int(one), int(other), float(each))
        for one, other, each in zip(*ends[:, heaviest], weight[heaviest], strict=True)
    ]
    if gains is None:
        group, coloured = _components(graph), "Colours tell components apart"
    else:
        group = [_side(gains.get(name)) for name in names]
        coloured = "Blue clients gain against local, orange ones lose, others neither"
    nodes = [
        (name, float(x), float(y), colour) for name, (x, y), colour in zip(names, at, group, strict=True)
    ]
    drawn = f"the {len(edges):,} heaviest of " if len(edges) < len(weight) else ""
    all_joined = ": everybody is joined with everybody" if complete and graph.edges else ""
    about = f"{graph.size - graph.server:,} clients, {drawn}{len(weight):,} edges{all_joined}. {coloured}."
    yield DrawingSection(title, about, name, nodes, edges)


def _components(graph: Graph) -> list[int]:
    return [min(int(place), len(LIGHT) - 1) for place in component(graph.weights)]


def _side(gain: float | None) -> int:
    if gain is None or not gain or np.isnan(gain):
        return REST
    return GAINS if gain > 0 else LOSES
