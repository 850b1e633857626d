"""The table of methods that every law is tested for. A new method adds one line."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import fedlap as fl
from fedlap.graph.sparse_weights import SparseWeights

LR = 0.05
LINEAR = fl.models.linear(l2=0.01)


@dataclass(frozen=True)
class Method:
    make: Callable  # (graph, **work) -> algorithm
    sampled: bool  # whether clients may be sampled
    model: Any = LINEAR  # that it is tried on


def make_compressed(compression, graph, **work):
    return fl.DFedU(graph, strength=0.3, lr=LR, compression=compression, **work)


def make_peers_with_blocks(compression, graph, **work):
    return fl.DFedU(graph, strength={"1": 0.3, "3.bias": 0.1}, lr=LR, compression=compression, **work)


def make_passing_on_large_graph(graph, **work):
    """Return fedu-passing on this graph, stored as a large one is."""
    large = fl.Graph(graph.clients, SparseWeights(graph.weights.matrix()))
    return fl.FedUPassing(large, strength=0.3, lr=LR, **work)


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
    "dfedu-int8": Method(partial(make_compressed, "int8"), False),
    "dfedu-top-k": Method(partial(make_compressed, "top-k:0.2"), False),
    "fedu-learned": Method(
        lambda graph, **work: fl.FedULearned(
            graph, strength=0.3, lr=LR, nearest=2, warmup=2, every=2, **work
        ),
        True,
    ),
    "fedu-blocks": Method(
        lambda graph, **work: fl.FedU(graph, strength={"1": 0.3, "3.bias": 0.1}, lr=LR, **work),
        True,
        fl.models.mlp((5,), l2=0.01),
    ),
    "dfedu-blocks": Method(partial(make_peers_with_blocks, None), False, fl.models.mlp((5,), l2=0.01)),
    "dfedu-blocks-int8": Method(partial(make_peers_with_blocks, "int8"), False, fl.models.mlp((5,), l2=0.01)),
    "fedu-passing": Method(lambda graph, **work: fl.FedUPassing(graph, strength=0.3, lr=LR, **work), True),
    "fedu-passing-complete": Method(
        lambda graph, **work: fl.FedUPassing(fl.Graph.complete(graph.clients), strength=0.3, lr=LR, **work),
        True,
    ),
    "fedu-passing-large": Method(make_passing_on_large_graph, True),
    "local": Method(lambda graph, **work: fl.Local(lr=LR, **work), True),
    "global": Method(lambda graph, **work: fl.Global(lr=LR, **work), True),
    "fedavg": Method(lambda graph, **work: fl.FedAvg(lr=LR, **work), True),
    "fedavg-tuned": Method(lambda graph, **work: fl.FedAvg(lr=LR, fine_tune_steps=2, **work), True),
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
    "dpsgd": Method(lambda graph, **work: fl.DPSGD(graph, lr=LR, **work), False),
    "fedrep": Method(lambda graph, **work: fl.FedRep(lr=LR, **work), True, fl.models.mlp((5,), l2=0.01)),
    "ifca": Method(lambda graph, **work: fl.IFCA(lr=LR, **work), True),
    "cfl": Method(lambda graph, **work: fl.CFL(0.9, 0.5, lr=LR, **work), True),
    "fedamp": Method(lambda graph, **work: fl.FedAMP(0.5, 2.0, lr=LR, **work), True),
    "pfedgraph": Method(lambda graph, **work: fl.PFedGraph(0.5, 0.3, lr=LR, **work), True),
    "fedfomo": Method(lambda graph, **work: fl.FedFomo(2, 0.2, 3, lr=LR, **work), True),
    "dfedu-learned": Method(
        lambda graph, **work: fl.DFedULearned(graph, 0.3, 0.2, graph_lr=0.1, lr=LR, **work), False
    ),
    "gtvmin": Method(lambda graph, **work: fl.GTVMin(graph, 0.1, lr=LR, **work), False),
}

WORK = {"steps": {"local_steps": 3}, "epochs": {"local_epochs": 2}}
