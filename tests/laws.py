"""The table of methods that every law is tested for. A new method adds one line."""

from collections.abc import Callable
from dataclasses import dataclass

import fedlap as fl

LR = 0.05


@dataclass(frozen=True)
class Method:
    make: Callable  # (graph, **work) -> algorithm
    sampled: bool  # whether clients may be sampled


METHODS = {
    "fedu": Method(lambda graph, **work: fl.FedU(graph, strength=0.3, lr=LR, **work), True),
    "fedu-sampled": Method(
        lambda graph, **work: fl.FedU(graph, strength=0.3, lr=LR, neighbours="sampled", **work), True
    ),
    "dfedu": Method(lambda graph, **work: fl.DFedU(graph, strength=0.3, lr=LR, **work), False),
    "local": Method(lambda graph, **work: fl.Local(lr=LR, **work), True),
    "global": Method(lambda graph, **work: fl.Global(lr=LR, **work), True),
    "fedavg": Method(lambda graph, **work: fl.FedAvg(lr=LR, **work), True),
    "fedprox": Method(lambda graph, **work: fl.FedProx(0.3, lr=LR, **work), True),
    "scaffold": Method(lambda graph, **work: fl.Scaffold(1.1, lr=LR, **work), True),
}

WORK = {"steps": {"local_steps": 3}, "epochs": {"local_epochs": 2}}
