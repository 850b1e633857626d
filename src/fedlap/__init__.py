"""fedlap: federated multi-task learning with Laplacian regularisation."""

from fedlap import data, models
from fedlap.algorithms import (
    AFL,
    ALGORITHMS,
    APFL,
    L2GD,
    DFedU,
    Ditto,
    FedAvg,
    FedPer,
    FedProx,
    FedU,
    FedULearned,
    Global,
    Local,
    Mocha,
    NetworkLasso,
    PerFedAvg,
    PFedMe,
    Scaffold,
)
from fedlap.data import partition
from fedlap.data.federation import Federation
from fedlap.errors import DataWarning, DivergedError, InputError
from fedlap.experiments.fit import fit
from fedlap.graph import Graph
from fedlap.training.callbacks import Callback, EarlyStopping
from fedlap.training.result import Result
from fedlap.training.scores import Score
from fedlap.training.tuning import tune

__version__ = "0.1.0"

__all__ = [
    "AFL",
    "ALGORITHMS",
    "APFL",
    "L2GD",
    "Callback",
    "DFedU",
    "DataWarning",
    "Ditto",
    "DivergedError",
    "EarlyStopping",
    "FedAvg",
    "FedPer",
    "FedProx",
    "FedU",
    "FedULearned",
    "Federation",
    "Global",
    "Graph",
    "InputError",
    "Local",
    "Mocha",
    "NetworkLasso",
    "PFedMe",
    "PerFedAvg",
    "Result",
    "Scaffold",
    "Score",
    "data",
    "fit",
    "models",
    "partition",
    "tune",
]
