"""Weighted graphs between clients, and their Laplacians."""

import inspect
from collections.abc import Callable
from typing import Any, Final

from fedlap.data.federation import Federation
from fedlap.graph.builders import blocks, equal, erdos_renyi, grid, random, watts_strogatz
from fedlap.graph.graph import SERVER, Graph
from fedlap.graph.io import from_file, to_file
from fedlap.graph.networkx_io import from_networkx, to_networkx
from fedlap.graph.similarity import kernel, nearest, similar, weight_by_rows

GRAPHS: Final[dict[str, Callable[..., Graph]]] = {
    "complete": Graph.complete,
    "ring": Graph.ring,
    "path": Graph.path,
    "star": Graph.star,
    "empty": Graph.empty,
    "grid": grid,
    "erdos-renyi": erdos_renyi,
    "watts-strogatz": watts_strogatz,
    "blocks": blocks,
    "random": random,
    "equal": equal,
    "weighted": weight_by_rows,
    "similar": similar,
    "nearest": nearest,
    "kernel": kernel,
    "file": from_file,
}
# Parameters of a builder that `build_graph` fills in; all other parameters are settings.
BUILDER_INPUTS: Final = ("clients", "federation", "seed")


def build_graph(name: str, federation: Federation, seed: int = 0, **settings: Any) -> Graph:
    """Build the graph with this name for a federation's clients."""
    inputs = {"clients": federation.clients, "federation": federation, "seed": seed}
    parameters = inspect.signature(GRAPHS[name]).parameters
    return GRAPHS[name](**{key: inputs[key] for key in BUILDER_INPUTS if key in parameters}, **settings)


__all__ = [
    "BUILDER_INPUTS",
    "GRAPHS",
    "SERVER",
    "Graph",
    "blocks",
    "build_graph",
    "equal",
    "erdos_renyi",
    "from_file",
    "from_networkx",
    "grid",
    "kernel",
    "nearest",
    "random",
    "similar",
    "to_file",
    "to_networkx",
    "watts_strogatz",
    "weight_by_rows",
]
