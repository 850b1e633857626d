"""fedlap: federated multi-task learning with Laplacian regularisation."""

from fedlap import data, models, partition
from fedlap.algorithms import ALGORITHMS, DFedU, FedAvg, FedProx, FedU, Global, Local, Scaffold
from fedlap.errors import DataWarning, DivergedError, InputError
from fedlap.federation import Federation
from fedlap.graph import Graph
from fedlap.result import Result
from fedlap.rounds import fit
from fedlap.scores import Score

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "DFedU",
    "DataWarning",
    "DivergedError",
    "FedAvg",
    "FedProx",
    "FedU",
    "Federation",
    "Global",
    "Graph",
    "InputError",
    "Local",
    "Result",
    "Scaffold",
    "Score",
    "data",
    "fit",
    "models",
    "partition",
]
