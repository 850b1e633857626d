"""The methods, one file each."""

from typing import Final

from fedlap.algorithms.algorithm import Algorithm, PeerAlgorithm, Rows, ServerAlgorithm, State, Task
from fedlap.algorithms.coupling import Coupled
from fedlap.algorithms.fedu import DFedU, FedU
from fedlap.algorithms.globally import Global
from fedlap.algorithms.local import Local

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {
    "fedu": FedU,
    "dfedu": DFedU,
    "local": Local,
    "global": Global,
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Coupled",
    "DFedU",
    "FedU",
    "Global",
    "Local",
    "PeerAlgorithm",
    "Rows",
    "ServerAlgorithm",
    "State",
    "Task",
]
