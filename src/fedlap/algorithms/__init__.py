"""Federated learning methods, one file per method, and the registry of their names."""

from typing import Final

from fedlap.algorithms.afl import AFL
from fedlap.algorithms.apfl import APFL
from fedlap.algorithms.coupling import Coupled, LaplacianMethod
from fedlap.algorithms.dfedu import DFedU
from fedlap.algorithms.ditto import Ditto
from fedlap.algorithms.fedavg import FedAvg, FedProx
from fedlap.algorithms.fedper import FedPer
from fedlap.algorithms.fedu import FEDU_CITATION, FedU
from fedlap.algorithms.fedu_learned import FedULearned
from fedlap.algorithms.global_model import Global
from fedlap.algorithms.interface import (
    Adapting,
    Algorithm,
    Analysed,
    Binding,
    Certified,
    GraphLearning,
    Grouping,
    PeerAlgorithm,
    Penalised,
    Pooling,
    Sampling,
    ServerAlgorithm,
    State,
    Traits,
    list_settings,
)
from fedlap.algorithms.l2gd import L2GD
from fedlap.algorithms.local import Local
from fedlap.algorithms.mocha import Mocha
from fedlap.algorithms.network_lasso import NetworkLasso
from fedlap.algorithms.perfedavg import PerFedAvg
from fedlap.algorithms.pfedme import PFedMe
from fedlap.algorithms.scaffold import Scaffold
from fedlap.algorithms.server_state import ClientTable, GatheredRows, RowUpdate
from fedlap.algorithms.task import Task

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {
    "fedu": FedU,
    "dfedu": DFedU,
    "fedu-learned": FedULearned,
    "local": Local,
    "global": Global,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "mocha": Mocha,
    "pfedme": PFedMe,
    "perfedavg": PerFedAvg,
    "afl": AFL,
    "ditto": Ditto,
    "apfl": APFL,
    "fedper": FedPer,
    "l2gd": L2GD,
    "lasso": NetworkLasso,
}
DEFAULT_METHOD: Final = "fedu"  # the method that this library is about
BASELINES: Final = ("local", "global")  # methods that others are compared with: no sharing, and full sharing

__all__ = [
    "AFL",
    "ALGORITHMS",
    "APFL",
    "BASELINES",
    "DEFAULT_METHOD",
    "FEDU_CITATION",
    "L2GD",
    "Adapting",
    "Algorithm",
    "Analysed",
    "Binding",
    "Certified",
    "ClientTable",
    "Coupled",
    "DFedU",
    "Ditto",
    "FedAvg",
    "FedPer",
    "FedProx",
    "FedU",
    "FedULearned",
    "GatheredRows",
    "Global",
    "GraphLearning",
    "Grouping",
    "LaplacianMethod",
    "Local",
    "Mocha",
    "NetworkLasso",
    "PFedMe",
    "PeerAlgorithm",
    "Penalised",
    "PerFedAvg",
    "Pooling",
    "RowUpdate",
    "Sampling",
    "Scaffold",
    "ServerAlgorithm",
    "State",
    "Task",
    "Traits",
    "list_settings",
]
