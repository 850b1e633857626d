"""The table of methods that every law is tested for. A new method adds one line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fedlap as fl

LR = 0.05
LINEAR = fl.models.linear(l2=0.01)


@dataclass(frozen=True)
class Method:
    make: Callable  # (graph, **work) -> algorithm
    sampled: bool  # whether clients may be sampled
    model: Any = LINEAR  # that it is tried on


METHODS = {
    "fedu": Method(lambda graph, **work: fl.FedU(graph, strength=0.3, lr=LR, **work), True),
    "fedu-sampled": Method(
        lambda graph, **work: fl.FedU(graph, strength=0.3, lr=LR, neighbours="sampled", **work), True
    ),
    "dfedu": Method(lambda graph, **work: fl.DFedU(graph, strength=0.3, lr=LR, **work), False),
    "fedu-implicit": Method(
        lambda graph, **work: fl.FedU(graph, strength=30.0, lr=LR, mixing="implicit", **work), True
    ),
    "dfedu-implicit": Method(
        lambda graph, **work: fl.DFedU(graph, strength=30.0, lr=LR, mixing="implicit", exchanges=3, **work),
        False,
    ),
    "fedu-learned": Method(
        lambda graph, **work: fl.FedULearned(
            graph, strength=0.3, lr=LR, nearest=2, warmup=2, every=2, **work
        ),
        True,
    ),
    "local": Method(lambda graph, **work: fl.Local(lr=LR, **work), True),
    "global": Method(lambda graph, **work: fl.Global(lr=LR, **work), True),
    "fedavg": Method(lambda graph, **work: fl.FedAvg(lr=LR, **work), True),
    "fedprox": Method(lambda graph, **work: fl.FedProx(0.3, lr=LR, **work), True),
    "afl": Method(lambda graph, **work: fl.AFL(0.2, lr=LR, **work), True),
    "pfedme": Method(lambda graph, **work: fl.PFedMe(3.0, 4, 0.1, 1.2, lr=LR, **work), True),
    "perfedavg": Method(lambda graph, **work: fl.PerFedAvg("first-order", 0.1, lr=LR, **work), True),
    "perfedavg-hessian": Method(lambda graph, **work: fl.PerFedAvg("hessian", 0.1, lr=LR, **work), True),
    "mocha": Method(lambda graph, **work: fl.Mocha(graph, 0.3, drop=0.2, least_work=0.4, **work), True),
    "scaffold": Method(lambda graph, **work: fl.Scaffold(1.1, lr=LR, **work), True),
    "ditto": Method(lambda graph, **work: fl.Ditto(0.7, lr=LR, **work), True),
    "apfl": Method(lambda graph, **work: fl.APFL(0.4, adaptive=True, lr=LR, **work), True),
    "fedper": Method(lambda graph, **work: fl.FedPer(lr=LR, **work), True, fl.models.mlp((5,), l2=0.01)),
    "l2gd": Method(lambda graph, **work: fl.L2GD(2.0, 0.4, 5, lr=LR, **work), True),
    "lasso": Method(lambda graph, **work: fl.NetworkLasso(graph, 0.3, 0.3, lr=LR, **work), True),
}

WORK = {"steps": {"local_steps": 3}, "epochs": {"local_epochs": 2}}
