"""Outcomes: what is kept of a run when it is done, and of several over seeds, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import Coupled, FedULearned
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError
from fedlap.experiments.experiment import Experiment
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.training.placement import PlacedClients
from fedlap.training.result import Result
from fedlap.training.scores import Tally

CURVES = ("accuracy", "loss", "train_loss")  # kept round by round, mean and std over seeds
LAST = (
    "round",
    "accuracy",
    "accuracy_mean",
    "accuracy_worst",
    "accuracy_std",
    "loss",
    "train_loss",
    "objective",
    "bytes_up",
    "bytes_down",
)


def outcome(run: Experiment, result: Result | DivergedError) -> dict[str, Any]:
    """What a ledger keeps: of a fold its accuracy alone."""
    if isinstance(result, DivergedError):
        return {"diverged": str(result)}
    last = result.scores[-1]
    if run.fold is not None:
        return {"accuracy": last.accuracy}
    made: dict[str, Any] = {
        "last": {name: _rounded(value) for name, value in last.as_dict().items() if name in LAST},
        "curves": {
            "round": [score.round for score in result.scores],
            **{name: [_rounded(getattr(score, name)) for score in result.scores] for name in CURVES},
        },
        "clients": accuracies(result),
        "seconds": last.seconds,
    }
    if isinstance(result.algorithm, Coupled):
        made["product"] = result.algorithm.coupling.product
    if isinstance(result.algorithm, FedULearned):
        clients = result.progress.clients or result.federation.clients
        made["graph"] = _edges(FedULearned.learned(result.server, clients))
    return made


def _rounded(value: float | None) -> float | None:
    """Digits that mean something."""
    return round(value, 6) if isinstance(value, float) else value


def tally_test_rows(federation: Federation, objective: Model, W: Float[Tensor, "client param"]) -> Tally:
    """Sums over each client's own test rows, by its own model."""
    home = federation.resident(W.device, W.dtype, as_bytes=True)
    clients = PlacedClients.of([home], [0], objective, 1, W.device, W.dtype)
    return clients.tally(W, home.test, torch.arange(len(W)))


def accuracies(result: Result) -> dict[str, float | None]:
    """Each client's share of right answers on its own test rows; none without test rows."""
    tally = tally_test_rows(result.federation, result.objective, result.models)
    assert tally.hits is not None  # recipes are of classes
    shares = (tally.hits / tally.count).tolist()
    return {
        name: share if count else None
        for name, share, count in zip(result.federation.clients, shares, tally.count.tolist(), strict=True)
    }


def _edges(graph: Graph) -> list[list[float]]:
    """Begin, end and weight of each edge, by the numbers of clients."""
    weights = graph.weights.matrix().tocoo()
    return [
        [int(i), int(j), round(float(w), 4)]
        for i, j, w in zip(weights.row, weights.col, weights.data, strict=True)
        if i < j
    ]


def mean_curves(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, round by round."""
    made: dict[str, Any] = {"round": entries[0]["curves"]["round"]}
    for name in CURVES:
        values = np.array([entry["curves"][name] for entry in entries], dtype=float)
        made[name] = [round(float(v), 6) for v in values.mean(0)]
        made[f"{name}_std"] = [round(float(v), 6) for v in values.std(0)]
    return made


def mean_clients(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Each client's accuracy, mean over seeds."""
    names = list(entries[0]["clients"])
    made: dict[str, float] = {}
    for name in names:
        known = [entry["clients"][name] for entry in entries if entry["clients"].get(name) is not None]
        if known:
            made[name] = round(float(np.mean(known)), 6)
    return made
