"""Names of the methods in the registry, by how they train."""

from fedlap.algorithms import ALGORITHMS

PEER_METHODS = [name for name, method in ALGORITHMS.items() if hasattr(method, "mix")]
SERVER_METHODS = [
    name for name, method in ALGORITHMS.items() if hasattr(method, "merge") and not hasattr(method, "view")
]
