"""fedlap: federated multi-task learning with Laplacian regularisation.

A name is loaded when it is first used, so that `import fedlap` and `fedlap --help` need no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlap import data, models
    from fedlap.algorithms import (
        AFL,
        ALGORITHMS,
        APFL,
        CFL,
        DPSGD,
        IFCA,
        L2GD,
        DFedU,
        DFedULearned,
        Ditto,
        FedAMP,
        FedAvg,
        FedFomo,
        FedPer,
        FedProx,
        FedRep,
        FedU,
        FedULearned,
        FedUPassing,
        Global,
        GTVMin,
        Local,
        Mocha,
        NetworkLasso,
        PerFedAvg,
        PFedGraph,
        PFedMe,
        Scaffold,
    )
    from fedlap.comparisons.compare import compare
    from fedlap.comparisons.result import ComparisonResult
    from fedlap.comparisons.sweep import sweep
    from fedlap.data import partition
    from fedlap.data.federation import Federation
    from fedlap.errors import DataWarning, DivergedError, InputError
    from fedlap.estimators import FedUClassifier as FedUClassifier
    from fedlap.estimators import FedURegressor as FedURegressor
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
    "CFL",
    "DPSGD",
    "IFCA",
    "L2GD",
    "Callback",
    "ComparisonResult",
    "DFedU",
    "DFedULearned",
    "DataWarning",
    "Ditto",
    "DivergedError",
    "EarlyStopping",
    "FedAMP",
    "FedAvg",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedU",
    "FedULearned",
    "FedUPassing",
    "Federation",
    "GTVMin",
    "Global",
    "Graph",
    "InputError",
    "Local",
    "Mocha",
    "NetworkLasso",
    "PFedGraph",
    "PFedMe",
    "PerFedAvg",
    "Result",
    "Scaffold",
    "Score",
    "compare",
    "data",
    "fit",
    "models",
    "partition",
    "sweep",
    "tune",
]

# Modules that are attributes of fedlap, and modules of its public names; a name without an entry is a method.
_MODULES = {
    "algorithms": "fedlap.algorithms",
    "data": "fedlap.data",
    "errors": "fedlap.errors",
    "graph": "fedlap.graph",
    "models": "fedlap.models",
    "partition": "fedlap.data.partition",
    "personal": "fedlap.personal",
    "training": "fedlap.training",
}
_METHODS = "fedlap.algorithms"
_HOMES = {
    "Callback": "fedlap.training.callbacks",
    "ComparisonResult": "fedlap.comparisons.result",
    "DataWarning": "fedlap.errors",
    "DivergedError": "fedlap.errors",
    "EarlyStopping": "fedlap.training.callbacks",
    "FedUClassifier": "fedlap.estimators",  # not in __all__, since it needs scikit-learn, …
    "FedURegressor": "fedlap.estimators",  # … and so does this one
    "Federation": "fedlap.data.federation",
    "Graph": "fedlap.graph",
    "InputError": "fedlap.errors",
    "Result": "fedlap.training.result",
    "Score": "fedlap.training.scores",
    "compare": "fedlap.comparisons.compare",
    "fit": "fedlap.experiments.fit",
    "sweep": "fedlap.comparisons.sweep",
    "tune": "fedlap.training.tuning",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in __all__ or name in _HOMES:
        found = getattr(import_module(_HOMES.get(name, _METHODS)), name)
    else:
        raise AttributeError(f"module 'fedlap' has no attribute {name!r}")
    globals()[name] = found  # the next use finds it without this function
    return found


def __dir__() -> list[str]:
    """Return public names, loaded or not."""
    return sorted({*globals(), *__all__, *_HOMES})
