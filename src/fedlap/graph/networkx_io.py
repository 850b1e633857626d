"""Graphs from NetworkX and to it."""

from collections.abc import Sequence
from typing import Any

from fedlap.errors import InputError, unknown
from fedlap.graph.builders import check_edges
from fedlap.graph.graph import SERVER, Graph


def from_networkx(network: Any, clients: Sequence[str] | None = None) -> Graph:
    """From an undirected graph of NetworkX: nodes are clients, an edge's `weight` is 1 unless it says so.

    `clients` says their order, and names those without edges.
    """
    if network.is_directed():
        raise InputError(
            "the network is directed; weights are symmetric, so give it undirected", scope="graph"
        )
    nodes = [str(node) for node in network]
    names = nodes if clients is None else [str(name) for name in clients]
    for stranger in sorted(set(nodes) - set(names)):
        raise unknown("client in the network", stranger, names)
    if len(set(nodes)) < len(nodes):
        raise InputError("two nodes of the network have the same name as text; rename one", scope="graph")
    edges = ((str(a), str(b), weight) for a, b, weight in network.edges(data="weight", default=1.0))
    return Graph.from_edges(edges, names)


def to_networkx(graph: Graph) -> Any:
    """The same graph as NetworkX has it, with clients' names, or places where it has none, for nodes."""
    import networkx  # type: ignore[import-untyped]

    check_edges("it", graph.edges)
    network = networkx.Graph()
    own = range(graph.size) if graph.clients is None else graph.clients
    nodes = [*own, SERVER] if graph.server and graph.clients is not None else list(own)
    network.add_nodes_from(nodes)
    matrix = graph.weights.matrix().tocoo()
    upper = matrix.row < matrix.col
    ends = (matrix.row[upper].tolist(), matrix.col[upper].tolist(), matrix.data[upper].tolist())
    edges = ((nodes[k], nodes[other], weight) for k, other, weight in zip(*ends, strict=True))
    network.add_weighted_edges_from(edges)
    return network
