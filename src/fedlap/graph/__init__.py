"""Who should be like whom: weighted graphs of clients and their Laplacians."""

from collections.abc import Callable
from typing import Final

from fedlap.graph.files import from_file
from fedlap.graph.graph import SERVER, Graph

GRAPHS: Final[dict[str, Callable[..., Graph]]] = {
    "complete": Graph.complete,
    "ring": Graph.ring,
    "path": Graph.path,
    "star": Graph.star,
    "empty": Graph.empty,
    "file": from_file,
}

__all__ = ["GRAPHS", "SERVER", "Graph", "from_file"]
