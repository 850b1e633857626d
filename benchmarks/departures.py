"""Measure two departures of the paper's published code from its text (see docs/explanation/departures.md).

Sequential mixing: clients are mixed one after another, and each reads the models mixed before it, instead of
all at once from the old values. Random graph: random weights (normal values scaled into [0, 1]) instead of
equal weights, at the same ρ. Prints test accuracy, mean ± std over seeds, and the paired difference.

    python benchmarks/departures.py [--seeds 10]
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedlap as fl
from fedlap.algorithms.server_state import ClientModels
from fedlap.data.roster import Roster
from fedlap.models import Model


@dataclass(frozen=True)
class SequentialFedU:
    """FedU, except that each client reads the models mixed before it."""

    simultaneous: fl.FedU

    def __getattr__(self, name: str) -> object:
        return getattr(self.simultaneous, name)

    def bind(self, roster: Roster, model: Model) -> "SequentialFedU":
        """Bind FedU to the roster's order of clients."""
        return SequentialFedU(self.simultaneous.bind(roster, model))

    def merge(self, server: ClientModels, ids: Tensor, w: Tensor) -> ClientModels:
        """Mix one client after another, in the order of the federation."""
        W = server.models.values
        mixed = W.index_copy(0, ids, w)
        a = torch.from_numpy(self.simultaneous.graph.weights.matrix().toarray()).to(W)
        for k in ids.sort().values.tolist():
            pull = a[k].sum() * mixed[k] - a[k] @ mixed
            mixed[k] -= self.simultaneous.coupling.step * pull
        return ClientModels(server.models.with_rows(ids, mixed[ids]))


def random_graph(clients: tuple[str, ...], seed: int) -> fl.Graph:
    """Return symmetric normal weights in [0, 1], scaled to the ρ of the complete graph with weight 1."""
    values = np.triu(np.random.default_rng(seed).normal(size=(len(clients),) * 2), 1)
    at = np.triu_indices(len(clients), 1)
    values[at] = (values[at] - values[at].min()) / (values[at].max() - values[at].min())
    graph = fl.Graph.from_matrix(values + values.T, clients)
    return fl.Graph.from_matrix((values + values.T) * len(clients) / graph.rho, clients)


def accuracy(method: object, federation: fl.Federation, seed: int) -> float:
    """Pooled test accuracy in percent after 100 rounds of 5 steps."""
    result = fl.fit(method, federation, fl.models.linear(), rounds=100, seed=seed, evaluate_every=0)
    return 100 * result.scores[-1].accuracy


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    cases: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        digits = fl.data.load("digits", seed=seed)
        generated = fl.data.synthetic(seed=seed)
        equal = fl.FedU(fl.Graph.complete(digits.clients), strength=0.01)
        known = fl.FedU(generated.graph, strength=0.3)
        drawn = fl.FedU(random_graph(digits.clients, seed), strength=0.01)
        pairs = {
            "sequential mixing, digits, complete graph": (equal, SequentialFedU(equal), digits),
            "sequential mixing, synthetic, known graph": (known, SequentialFedU(known), generated.federation),
            "random graph, digits": (equal, drawn, digits),
        }
        for name, (ours, other, federation) in pairs.items():
            both = accuracy(ours, federation, seed), accuracy(other, federation, seed)
            cases.setdefault(name, []).append(both)
    table = Table("departure", "the text, %", "the published code, %", "paired difference ± s.e.")
    for name, values in cases.items():
        ours, other = np.array(values).T
        gap = other - ours
        spread = [f"{v.mean():.2f} ± {v.std(ddof=1):.2f}" for v in (ours, other)]
        table.add_row(name, *spread, f"{gap.mean():+.2f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
