"""Thinning of large graphs: which clients and edges a drawing shows, and what its caption says of it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, triu
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

from fedlap.graph import Graph
from fedlap.graph.description import vertices

GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly, however many are taken
RULE = "a spanning forest with the heaviest edge of every client, then the heaviest others"


@dataclass(frozen=True, eq=False)
class Thinned:
    """The part of a graph that is drawn.

    vertices: their places in the graph, rising, so that a server stays the last one.
    matrix: weights of all edges among these vertices.
    ends, weight: the drawn edges, each once, by places among `vertices`, from light to heavy.
    about: the number of clients and edges, and how many of them are drawn.
    """

    vertices: Int64[np.ndarray, "drawn"]
    matrix: csr_array
    ends: Int64[np.ndarray, "2 edge"]
    weight: Float64[np.ndarray, "edge"]
    about: str


def thin(graph: Graph, most_vertices: int, most_edges: int) -> Thinned:
    """Choose at most this many vertices and edges so that no vertex with an edge looks isolated.

    Vertices: those nearest to one of them along edges. Edges: a spanning forest of the heaviest, which holds
    the heaviest edge of every vertex, then the heaviest others. Ties go by clients' names, not their places.
    """
    if most_edges < most_vertices:
        raise ValueError(f"{most_edges} edges do not reach for a forest of {most_vertices} vertices")
    matrix, names = csr_array(graph.weights.matrix()), vertices(graph)
    places, how = np.arange(graph.size), ""
    if graph.size > most_vertices:
        places, how = _nearest(matrix, names, graph.server, most_vertices)
        matrix = csr_array(matrix[places][:, places])
    edges = triu(matrix, 1).tocoo()
    ends, weight = np.stack([edges.row, edges.col]).astype(np.int64), edges.data.astype(np.float64)
    shown = np.argsort(weight, kind="stable")
    if len(weight) > most_edges:
        by_name = np.empty(len(places), np.int64)
        by_name[_sort_by_name(tuple(names[place] for place in places.tolist()))] = np.arange(len(places))
        shown = _strongest(by_name[ends], weight, len(places), most_edges)
    clients, server = graph.size - graph.server, " and the server" if graph.server else ""
    about = f"{clients:,} clients{server}, {graph.edges:,} edges"
    if len(places) < graph.size or len(shown) < len(weight):
        drawn = (
            f"{len(places) - graph.server:,} of {clients:,} clients drawn{how}"
            if how
            else f"{clients:,} clients"
        )
        about = f"{drawn}{server}; {len(shown):,} of {graph.edges:,} edges drawn"
        about += f": {RULE}" if len(shown) < len(weight) else ""
    return Thinned(places.astype(np.int64), matrix, ends[:, shown], weight[shown], about)


def _sort_by_name(names: tuple[str, ...]) -> Int64[np.ndarray, "vertex"]:
    """Places in the order of names."""
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def _nearest(
    matrix: csr_array, names: tuple[str, ...], server: bool, most: int
) -> tuple[Int64[np.ndarray, "drawn"], str]:
    """Vertices nearest to the server, or to the first client by name of the largest component; in words.

    Where that component is small, further ones follow, the largest first.
    """
    order = _sort_by_name(names)
    matrix = csr_array(matrix[order][:, order])  # so that ties go by name
    part = connected_components(matrix, directed=False)[1]
    size, first = np.bincount(part), np.unique(part, return_index=True)[1]
    behind = -size
    if server:
        hub = int(np.flatnonzero(order == len(names) - 1)[0])
        first[part[hub]], behind[part[hub]] = hub, -len(names) - 1  # before all others
    ranked = np.lexsort((first, behind))
    fit = int(np.searchsorted(np.cumsum(size[ranked]), most, side="right"))  # components drawn whole
    taken = np.flatnonzero(np.isin(part, ranked[:fit]))
    if len(taken) < most and fit < len(ranked):
        near = breadth_first_order(matrix, first[ranked[fit]], directed=False, return_predecessors=False)
        taken = np.concatenate([taken, near[: most - len(taken)]])
    start = names[order[first[ranked[0]]]]
    how = f" (the nearest to {start})" if fit == 0 else f" ({fit:,} components, the largest first)"
    return np.sort(order[taken]).astype(np.int64), how


def _strongest(
    ends: Int64[np.ndarray, "2 edge"], weight: Float64[np.ndarray, "edge"], size: int, most: int
) -> Int64[np.ndarray, "shown"]:
    """A spanning forest and the heaviest others, from light to heavy; ends are numbered by name."""
    one, other = np.sort(ends, axis=0)
    order = np.lexsort((other, one, -weight))
    rank = np.empty(len(weight), np.int64)
    rank[order] = np.arange(len(weight))
    # Ranks as lengths: all differ, so that the forest is unique and holds every vertex's first edge.
    at = one.astype(np.int32), other.astype(np.int32)  # as SciPy below 1.16 wants them
    forest = minimum_spanning_tree(csr_array((rank + 1.0, at), shape=(size, size)))
    held = np.zeros(len(weight), bool)
    held[order[forest.data.astype(np.int64) - 1]] = True
    # Among equal weights the others are spread over all names.
    chosen = np.lexsort((rank * GOLDEN % 1, -weight, ~held))[:most]
    return chosen[np.argsort(weight[chosen], kind="stable")].astype(np.int64)
