"""Methods that the benchmark of passed steps compares, and the values that cross-validation chooses from.

Strengths are in units of 1/ρ of a case's graph, with ρ the largest eigenvalue of its Laplacian.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fedlap as fl

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
COUPLINGS = (0.03, 0.1, 0.3, 1.0, 3.0)  # ηρ
FINE_TUNE_STEPS = 20
Build = Callable[[fl.Graph, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Entry:
    """A method before tuning, the values of its settings, and those of lr.

    coupled: whether the values of `strength` are in units of 1/ρ.
    """

    build: Build
    values: Mapping[str, Sequence[float]]
    rates: Sequence[float] = RATES
    coupled: bool = False

    def list_values(self, rho: float) -> dict[str, list[float]]:
        """Return the values of every tuned setting; rho: the largest eigenvalue of the graph's Laplacian."""
        vary = {key: list(values) for key, values in self.values.items()}
        if self.coupled:
            vary["strength"] = [coupling / rho for coupling in vary["strength"]]
        return vary | ({"lr": list(self.rates)} if self.rates else {})


def over_graph(
    method: Callable[..., Any],
    couplings: Sequence[float] = COUPLINGS,
    rates: Sequence[float] = RATES,
    **settings: Any,
) -> Entry:
    """Return a method on the graph of a case, with its couplings ηρ."""

    def build(graph: fl.Graph, work: Mapping[str, Any]) -> Any:
        return method(graph, strength=0.0, **settings, **work)

    return Entry(build, {"strength": couplings}, rates, coupled=True)


def without_graph(
    method: Callable[..., Any], values: Mapping[str, Sequence[float]] | None = None, **settings: Any
) -> Entry:
    """Return a method without a graph."""
    return Entry(lambda graph, work: method(**settings, **work), values or {})


PROXIMAL = {"proximal": (0.01, 0.1, 1.0)}
METHODS = {
    "fedu-passing": over_graph(fl.FedUPassing),
    "fedu": over_graph(fl.FedU),
    "local": without_graph(fl.Local),
    "fedavg": without_graph(fl.FedAvg),
    "ditto": without_graph(fl.Ditto, {"proximal": (0.01, 0.03, 0.1, 0.3, 1.0)}),
    "pfedme": without_graph(fl.PFedMe, {"regularisation": (1.0, 5.0, 15.0)}),
    "apfl": without_graph(fl.APFL, {"mixture": (0.25, 0.5, 0.75)}),
    "mocha": over_graph(fl.Mocha, rates=()),
    "fedu-learned": over_graph(fl.FedULearned),
    "lasso": over_graph(fl.NetworkLasso, smoothing=0.1),
    "fedper": without_graph(fl.FedPer),
    "fedrep": without_graph(fl.FedRep),
    "fedavg-fine-tuned": without_graph(fl.FedAvg, fine_tune_steps=FINE_TUNE_STEPS),
    "fedprox": without_graph(fl.FedProx, PROXIMAL),
    "fedprox-fine-tuned": without_graph(fl.FedProx, PROXIMAL, fine_tune_steps=FINE_TUNE_STEPS),
    "perfedavg": without_graph(fl.PerFedAvg, {"adapt_lr": (0.01, 0.03, 0.1, 0.3, 1.0)}),
    "scaffold": without_graph(fl.Scaffold),
    "afl": without_graph(fl.AFL, {"mixture_lr": (0.0001, 0.001, 0.01, 0.1)}),
    "fedamp": without_graph(fl.FedAMP, {"proximal": (0.01, 0.1, 1.0), "scale": (1.0, 10.0, 100.0)}),
    "pfedgraph": without_graph(fl.PFedGraph, {"trust": (0.02, 0.2, 0.8)}),
    "fedfomo": without_graph(fl.FedFomo, {"models": (5, 10)}),
    "ifca": without_graph(fl.IFCA, {"clusters": (2, 5, 10)}),
    "cfl": without_graph(fl.CFL, {"split_below": (0.1, 0.2, 0.4)}),
    "l2gd": without_graph(fl.L2GD, {"strength": (0.01, 0.03, 0.1, 0.3)}),
}
LINEAR_ONLY = ("mocha",)
HIDDEN_LAYER_ONLY = ("fedper", "fedrep")  # their personal layer is the last one, so one layer shares nothing
# On a graph of the data, mixing is implicit: strong pulls are stable there.
STRONG = (0.3, 3.0, 30.0)
IMPLICIT = {
    "fedu-passing": over_graph(fl.FedUPassing, STRONG, mixing="implicit"),
    "fedu": over_graph(fl.FedU, STRONG, mixing="implicit"),
}
