"""Who should be like whom: weighted graphs of clients and their Laplacians."""

import inspect
from collections.abc import Callable
from typing import Any, Final

from fedlap.data.federation import Federation
from fedlap.graph.builders import blocks, equal, erdos_renyi, grid, random, watts_strogatz
from fedlap.graph.graph import SERVER, Graph
from fedlap.graph.io import from_file, to_file
from fedlap.graph.networkx_io import from_networkx, to_networkx
from fedlap.graph.similarity import kernel, nearest, similar, weighted

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
    "weighted": weighted,
    "similar": similar,
    "nearest": nearest,
    "kernel": kernel,
    "file": from_file,
}
GIVEN: Final = ("clients", "federation", "seed")  # what whoever makes a graph fills in; the rest are settings


def built(name: str, federation: Federation, seed: int = 0, **settings: Any) -> Graph:
    """The graph of this name for a federation's clients."""
    given = {"clients": federation.clients, "federation": federation, "seed": seed}
    taken = inspect.signature(GRAPHS[name]).parameters
    return GRAPHS[name](**{key: given[key] for key in GIVEN if key in taken}, **settings)


__all__ = [
    "GIVEN",
    "GRAPHS",
    "SERVER",
    "Graph",
    "blocks",
    "built",
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
    "weighted",
]
