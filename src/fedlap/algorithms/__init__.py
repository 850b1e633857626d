"""The methods, one file each."""

from typing import Final

from fedlap.algorithms.algorithm import (
    Adapting,
    Algorithm,
    Certified,
    Grouping,
    PeerAlgorithm,
    Penalised,
    Pooling,
    Rows,
    ServerAlgorithm,
    State,
    Suited,
    Task,
)
from fedlap.algorithms.coupling import Coupled
from fedlap.algorithms.fedavg import FedAvg, FedProx
from fedlap.algorithms.fedu import DFedU, FedU
from fedlap.algorithms.globally import Global
from fedlap.algorithms.local import Local
from fedlap.algorithms.scaffold import Scaffold

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {
    "fedu": FedU,
    "dfedu": DFedU,
    "local": Local,
    "global": Global,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
}

__all__ = [
    "ALGORITHMS",
    "Adapting",
    "Algorithm",
    "Certified",
    "Coupled",
    "DFedU",
    "FedAvg",
    "FedProx",
    "FedU",
    "Global",
    "Grouping",
    "Local",
    "PeerAlgorithm",
    "Penalised",
    "Pooling",
    "Rows",
    "Scaffold",
    "ServerAlgorithm",
    "State",
    "Suited",
    "Task",
]
