"""Thinning of large graphs: the clients and edges that a figure shows, and its caption."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, triu
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

from fedlap.graph import Graph
from fedlap.graph.description import list_vertices

GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 are evenly spread for every count
EDGE_RULE = "a spanning forest with the heaviest edge of every client, then the heaviest other edges"


@dataclass(frozen=True, eq=False)
class ThinnedGraph:
    """The part of a graph that is drawn.

    vertices: their indices in the graph, ascending, so that a server stays last.
    matrix: weights of all edges between the drawn vertices.
    ends, weight: the drawn edges, each once, as indices into `vertices`, from light to heavy.
    about: the number of clients and edges, and how many are drawn.
    """

    vertices: Int64[np.ndarray, "drawn"]
    matrix: csr_array
    ends: Int64[np.ndarray, "2 edge"]
    weight: Float64[np.ndarray, "edge"]
    about: str


def thin_graph(graph: Graph, max_vertices: int, max_edges: int) -> ThinnedGraph:
    """Choose at most `max_vertices` and `max_edges` so that no vertex with an edge looks isolated.

    Vertices: the nearest ones to a start vertex along edges. Edges: a maximum spanning forest, which contains
    the heaviest edge of every vertex, then the heaviest others. Ties are broken by client name, not by order.
    """
    if max_edges < max_vertices:
        raise ValueError(f"max_edges = {max_edges}; expected at least max_vertices = {max_vertices}")
    matrix, names = csr_array(graph.weights.matrix()), list_vertices(graph)
    places, rule = np.arange(graph.size), ""
    if graph.size > max_vertices:
        places, rule = _select_nearest(matrix, names, graph.server, max_vertices)
        matrix = csr_array(matrix[places][:, places])
    edges = triu(matrix, 1).tocoo()
    ends, weight = np.stack([edges.row, edges.col]).astype(np.int64), edges.data.astype(np.float64)
    drawn_edges = np.argsort(weight, kind="stable")
    if len(weight) > max_edges:
        by_name = np.empty(len(places), np.int64)
        by_name[_sort_by_name(tuple(names[place] for place in places.tolist()))] = np.arange(len(places))
        drawn_edges = _select_strongest(by_name[ends], weight, len(places), max_edges)
    clients, server = graph.size - graph.server, " and the server" if graph.server else ""
    about = f"{clients:,} clients{server}, {graph.edges:,} edges"
    if len(places) < graph.size or len(drawn_edges) < len(weight):
        drawn = (
            f"{len(places) - graph.server:,} of {clients:,} clients drawn{rule}"
            if rule
            else f"{clients:,} clients"
        )
        about = f"{drawn}{server}; {len(drawn_edges):,} of {graph.edges:,} edges drawn"
        about += f": {EDGE_RULE}" if len(drawn_edges) < len(weight) else ""
    return ThinnedGraph(places.astype(np.int64), matrix, ends[:, drawn_edges], weight[drawn_edges], about)


def _sort_by_name(names: tuple[str, ...]) -> Int64[np.ndarray, "vertex"]:
    """Return indices in the order of names."""
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def _select_nearest(
    matrix: csr_array, names: tuple[str, ...], server: bool, most: int
) -> tuple[Int64[np.ndarray, "drawn"], str]:
    """Select vertices nearest to the server, or to the first client by name of the largest component.

    If that component is small, further ones follow, largest first. Return the vertices and the rule as text.
    """
    order = _sort_by_name(names)
    matrix = csr_array(matrix[order][:, order])  # so that ties are broken by name
    component = connected_components(matrix, directed=False)[1]
    size, first = np.bincount(component), np.unique(component, return_index=True)[1]
    priority = -size
    if server:
        hub = int(np.flatnonzero(order == len(names) - 1)[0])
        first[component[hub]], priority[component[hub]] = hub, -len(names) - 1  # before all others
    ranked = np.lexsort((first, priority))
    fit = int(np.searchsorted(np.cumsum(size[ranked]), most, side="right"))  # components drawn whole
    selected = np.flatnonzero(np.isin(component, ranked[:fit]))
    if len(selected) < most and fit < len(ranked):
        nearest = breadth_first_order(matrix, first[ranked[fit]], directed=False, return_predecessors=False)
        selected = np.concatenate([selected, nearest[: most - len(selected)]])
    start = names[order[first[ranked[0]]]]
    rule = f" (the nearest to {start})" if fit == 0 else f" ({fit:,} components, the largest first)"
    return np.sort(order[selected]).astype(np.int64), rule


def _select_strongest(
    ends: Int64[np.ndarray, "2 edge"], weight: Float64[np.ndarray, "edge"], size: int, most: int
) -> Int64[np.ndarray, "shown"]:
    """Select a spanning forest and the heaviest others, from light to heavy; `ends` are ranks by name."""
    one, other = np.sort(ends, axis=0)
    order = np.lexsort((other, one, -weight))
    rank = np.empty(len(weight), np.int64)
    rank[order] = np.arange(len(weight))
    # Ranks as lengths are distinct, so the forest is unique and contains every vertex's heaviest edge.
    at = one.astype(np.int32), other.astype(np.int32)  # SciPy below 1.16 expects int32
    forest = minimum_spanning_tree(csr_array((rank + 1.0, at), shape=(size, size)))
    in_forest = np.zeros(len(weight), bool)
    in_forest[order[forest.data.astype(np.int64) - 1]] = True
    # Among equal weights the other edges are spread over all names.
    chosen = np.lexsort((rank * GOLDEN_RATIO % 1, -weight, ~in_forest))[:most]
    return chosen[np.argsort(weight[chosen], kind="stable")].astype(np.int64)
