"""Figures of the clients: label distribution and graph."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from fedlap.data.federation import Federation
from fedlap.graph import Graph
from fedlap.graph.description import label_components, list_vertices
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights
from fedlap.report.data_summary import DataSummary
from fedlap.report.graph_layout import compute_layout
from fedlap.report.graph_thinning import thin_graph
from fedlap.report.page.sections import EVEN, UNKNOWN, GraphSection, HeatmapSection, TextSection
from fedlap.report.page.styles import LIGHT

MAX_HEATMAP_CLIENTS = 200  # of the label heatmap
MAX_HEATMAP_LABELS = 60
MAX_PAGE_NODES, MAX_PAGE_EDGES = 400, 5_000  # in a graph
GAIN_GROUP, LOSS_GROUP = 0, 1  # colour groups


def build_label_heatmap(federation: Federation, seed: str) -> HeatmapSection | None:
    """Build a heatmap of rows per label and client; None for real targets or too many labels."""
    about = DataSummary.of("", federation)
    if about.label_counts is None or about.labels is None or len(about.labels) > MAX_HEATMAP_LABELS:
        return None
    clients = about.clients[:MAX_HEATMAP_CLIENTS]
    more = (
        f"; the first {len(clients):,} of {len(about.clients):,} clients"
        if len(clients) < len(about.clients)
        else ""
    )
    values = about.label_counts[: len(clients)].T.double().tolist()
    text = f"One line per label, one column per client, {seed}{more}; darker: more rows."
    return HeatmapSection("Label distribution", text, "labels", list(about.labels), list(clients), values)


@dataclass(frozen=True)
class ClientGains:
    """Gain of each client over the row `base`, NaN without test rows, and the seeds it covers, as text."""

    base: str
    gains: Mapping[str, float]
    seeds: str


def build_graph_sections(
    row: str, graph: Graph, client_gains: ClientGains | None, seed: str, name: str = "graph"
) -> Iterator[GraphSection | TextSection]:
    """Build a figure of a graph; colours show gains and losses, or components if `client_gains` is None.

    `seed` names the seed of the graph if there are several.
    """
    title = f"Graph of {row}"
    complete = isinstance(graph.weights, CompleteWeights) and graph.edges > 0
    complete_note = ", complete graph" if complete else ""
    if complete and graph.size > DENSE_UP_TO:
        yield TextSection(
            title, [f"{graph.size:,} clients, {graph.edges:,} edges{complete_note}; too dense to draw."]
        )
        return
    drawn = thin_graph(graph, MAX_PAGE_NODES, MAX_PAGE_EDGES)
    all_names = list_vertices(graph)
    names = [all_names[place] for place in drawn.vertices.tolist()]
    edges = [
        (int(one), int(other), float(weight))
        for one, other, weight in zip(*drawn.ends, drawn.weight, strict=True)
    ]
    group, coloured = (
        _group_by_component(graph, drawn.vertices)
        if client_gains is None
        else _group_by_gain(client_gains, names, graph.server)
    )
    nodes = [
        (name, float(x), float(y), colour)
        for name, (x, y), colour in zip(names, compute_layout(drawn.matrix), group, strict=True)
    ]
    if client_gains is not None and len(names) < graph.size:
        coloured += "; counts are of drawn clients"
    when = f" Edges of {seed}." if seed else ""
    yield GraphSection(title, f"{drawn.about}{complete_note}.{when} {coloured}.", name, nodes, edges)


def _group_by_component(graph: Graph, drawn: Int64[np.ndarray, "drawn"]) -> tuple[list[int], str]:
    """Return a colour group per vertex: one per largest component, one for all others; and a caption."""
    component_of = label_components(graph.weights)
    number, most = int(component_of.max(initial=0)) + 1, len(LIGHT) - 1
    group = [int(place) if place < most or number <= most + 1 else EVEN for place in component_of[drawn]]
    if number <= most + 1:
        return group, "Colours: components"
    return (
        group,
        f"Colours: the {most} largest components; clients of the {number - most:,} others are grey",
    )


def _group_by_gain(client_gains: ClientGains, names: Sequence[str], server: bool) -> tuple[list[int], str]:
    """Return a colour group per vertex (gain, loss, neither, unknown) and a caption. A server comes last."""
    group = [_choose_gain_group(client_gains.gains[name]) for name in names[: len(names) - server]]
    number = {side: f"{group.count(side):,}" for side in (GAIN_GROUP, LOSS_GROUP, EVEN, UNKNOWN)}
    text = (
        f"Colours, {client_gains.seeds}: blue clients gain against {client_gains.base} "
        f"({number[GAIN_GROUP]}), orange ones lose ({number[LOSS_GROUP]}), "
        f"grey ones are unchanged ({number[EVEN]})"
    )
    text += f", hollow ones have no test rows ({number[UNKNOWN]})" if UNKNOWN in group else ""
    return group + [len(LIGHT) - 1] * server, text


def _choose_gain_group(gain: float) -> int:
    if math.isnan(gain):
        return UNKNOWN
    return GAIN_GROUP if gain > 0 else LOSS_GROUP if gain < 0 else EVEN
