"""Conversion from and to NetworkX graphs."""

from collections.abc import Sequence
from typing import Any

from fedlap.errors import InputError, unknown_name_error
from fedlap.graph.builders import check_edges
from fedlap.graph.graph import SERVER, Graph


def from_networkx(network: Any, clients: Sequence[str] | None = None) -> Graph:
    """Convert an undirected NetworkX graph: nodes are clients; the edge attribute `weight` defaults to 1.

    `clients` sets the order and adds clients without edges.
    """
    if network.is_directed():
        raise InputError(
            "the network is directed; pass an undirected one, e.g. network.to_undirected()", scope="graph"
        )
    nodes = [str(node) for node in network]
    names = nodes if clients is None else [str(name) for name in clients]
    for stranger in sorted(set(nodes) - set(names)):
        raise unknown_name_error("client in the network", stranger, names)
    if len(set(nodes)) < len(nodes):
        raise InputError("two nodes of the network have equal names as text; rename one", scope="graph")
    edges = ((str(a), str(b), weight) for a, b, weight in network.edges(data="weight", default=1.0))
    return Graph.from_edges(edges, names)


def to_networkx(graph: Graph) -> Any:
    """Convert to a NetworkX graph whose nodes are the clients' names, or indices without names."""
    import networkx  # type: ignore[import-untyped]

    check_edges("the graph", graph.edges)
    network = networkx.Graph()
    clients = range(graph.size) if graph.clients is None else graph.clients
    nodes = [*clients, SERVER] if graph.server and graph.clients is not None else list(clients)
    network.add_nodes_from(nodes)
    matrix = graph.weights.matrix().tocoo()
    upper = matrix.row < matrix.col
    ends = (matrix.row[upper].tolist(), matrix.col[upper].tolist(), matrix.data[upper].tolist())
    edges = ((nodes[k], nodes[other], weight) for k, other, weight in zip(*ends, strict=True))
    network.add_weighted_edges_from(edges)
    return network
