"""Outcomes of finished runs, and averages over seeds, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedlap.algorithms import Coupled, GraphLearning
from fedlap.errors import DivergedError
from fedlap.experiments.experiment import Experiment
from fedlap.graph import Graph
from fedlap.training.client_answers import tally_test_rows
from fedlap.training.result import Result

CURVES = ("accuracy", "loss", "train_loss")  # stored per round, with mean and std over seeds
LAST_SCORE_FIELDS = (
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


def summarise_run(run: Experiment, result: Result | DivergedError) -> dict[str, Any]:
    """Return the plain values that a ledger stores of a run; for a fold, only its accuracy."""
    if isinstance(result, DivergedError):
        return {"diverged": str(result)}
    last = result.scores[-1]
    if run.fold is not None:
        return {"accuracy": last.accuracy}
    summary: dict[str, Any] = {
        "last": {
            name: _round_digits(value) for name, value in last.as_dict().items() if name in LAST_SCORE_FIELDS
        },
        "curves": {
            "round": [score.round for score in result.scores],
            **{name: [_round_digits(getattr(score, name)) for score in result.scores] for name in CURVES},
        },
        "clients": compute_client_accuracies(result),
        "seconds": last.seconds,
    }
    if isinstance(result.algorithm, Coupled):
        summary["product"] = result.algorithm.coupling.product
    if isinstance(result.algorithm, GraphLearning):
        clients = result.progress.clients or result.federation.clients
        summary["graph"] = _list_edges(result.algorithm.learned_graph(result.server, clients))
    return summary


def _round_digits(value: float | None) -> float | None:
    """Round to six decimals, beyond which digits are noise."""
    return round(value, 6) if isinstance(value, float) else value


def compute_client_accuracies(result: Result) -> dict[str, float | None]:
    """Return each client's test accuracy; None for a client without test rows."""
    tally = tally_test_rows(result.federation, result.objective, result.models)
    assert tally.hits is not None  # recipes use classification data
    shares = (tally.hits / tally.count).tolist()
    return {
        name: share if count else None
        for name, share, count in zip(result.federation.clients, shares, tally.count.tolist(), strict=True)
    }


def _list_edges(graph: Graph) -> list[list[float]]:
    """Return both ends, as client indices, and the weight of every edge."""
    weights = graph.weights.matrix().tocoo()
    return [
        [int(i), int(j), round(float(w), 4)]
        for i, j, w in zip(weights.row, weights.col, weights.data, strict=True)
        if i < j
    ]


def average_curves(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds, per round."""
    curves: dict[str, Any] = {"round": entries[0]["curves"]["round"]}
    for name in CURVES:
        values = np.array([entry["curves"][name] for entry in entries], dtype=float)
        curves[name] = [round(float(v), 6) for v in values.mean(0)]
        curves[f"{name}_std"] = [round(float(v), 6) for v in values.std(0)]
    return curves


def average_clients(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return each client's mean accuracy over seeds."""
    names = list(entries[0]["clients"])
    means: dict[str, float] = {}
    for name in names:
        known = [entry["clients"][name] for entry in entries if entry["clients"].get(name) is not None]
        if known:
            means[name] = round(float(np.mean(known)), 6)
    return means
