"""Federated learning methods, one file per method, and the registry of their names."""

from typing import Final

from fedlap.algorithms.adaptation import adapt_models, is_adapting
from fedlap.algorithms.afl import AFL
from fedlap.algorithms.apfl import APFL
from fedlap.algorithms.cfl import CFL
from fedlap.algorithms.coupling import Coupled, LaplacianMethod
from fedlap.algorithms.dfedu import DFedU
from fedlap.algorithms.dfedu_learned import DFedULearned
from fedlap.algorithms.ditto import Ditto
from fedlap.algorithms.dpsgd import DPSGD
from fedlap.algorithms.fedamp import FedAMP
from fedlap.algorithms.fedavg import CountedModels, FedAvg, FedProx
from fedlap.algorithms.fedfomo import FedFomo
from fedlap.algorithms.fedper import FedPer
from fedlap.algorithms.fedrep import FedRep
from fedlap.algorithms.fedu import FEDU_CITATION, FedU
from fedlap.algorithms.fedu_learned import FedULearned
from fedlap.algorithms.fedu_passing import FedUPassing
from fedlap.algorithms.global_model import Global
from fedlap.algorithms.gtvmin import GTVMin
from fedlap.algorithms.ifca import IFCA
from fedlap.algorithms.interface import (
    Adapting,
    Algorithm,
    Analysed,
    Binding,
    Certified,
    FineTuning,
    GraphLearning,
    Grouping,
    PartlyStatic,
    Passing,
    PeerAlgorithm,
    Penalised,
    Pooling,
    Sampling,
    ServerAlgorithm,
    Splitting,
    State,
    Traits,
    list_settings,
)
from fedlap.algorithms.l2gd import L2GD
from fedlap.algorithms.local import Local
from fedlap.algorithms.mocha import Mocha
from fedlap.algorithms.network_lasso import NetworkLasso
from fedlap.algorithms.perfedavg import PerFedAvg
from fedlap.algorithms.pfedgraph import PFedGraph
from fedlap.algorithms.pfedme import PFedMe
from fedlap.algorithms.scaffold import Scaffold
from fedlap.algorithms.server_state import ClientTable, GatheredRows, RowUpdate
from fedlap.algorithms.task import Task

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {
    "fedu": FedU,
    "dfedu": DFedU,
    "fedu-passing": FedUPassing,
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
    "dpsgd": DPSGD,
    "fedrep": FedRep,
    "ifca": IFCA,
    "cfl": CFL,
    "fedamp": FedAMP,
    "pfedgraph": PFedGraph,
    "fedfomo": FedFomo,
    "dfedu-learned": DFedULearned,
    "gtvmin": GTVMin,
}
DEFAULT_METHOD: Final = "fedu"  # the method that this library is about
BASELINES: Final = ("local", "global")  # methods that others are compared with: no sharing, and full sharing

__all__ = [
    "AFL",
    "ALGORITHMS",
    "APFL",
    "BASELINES",
    "CFL",
    "DEFAULT_METHOD",
    "DPSGD",
    "FEDU_CITATION",
    "IFCA",
    "L2GD",
    "Adapting",
    "Algorithm",
    "Analysed",
    "Binding",
    "Certified",
    "ClientTable",
    "CountedModels",
    "Coupled",
    "DFedU",
    "DFedULearned",
    "Ditto",
    "FedAMP",
    "FedAvg",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedU",
    "FedULearned",
    "FedUPassing",
    "FineTuning",
    "GTVMin",
    "GatheredRows",
    "Global",
    "GraphLearning",
    "Grouping",
    "LaplacianMethod",
    "Local",
    "Mocha",
    "NetworkLasso",
    "PFedGraph",
    "PFedMe",
    "PartlyStatic",
    "Passing",
    "PeerAlgorithm",
    "Penalised",
    "PerFedAvg",
    "Pooling",
    "RowUpdate",
    "Sampling",
    "Scaffold",
    "ServerAlgorithm",
    "Splitting",
    "State",
    "Task",
    "Traits",
    "adapt_models",
    "is_adapting",
    "list_settings",
]
