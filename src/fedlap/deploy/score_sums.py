"""Scores of a run from the clients' sums over rows; rows stay where they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedlap.algorithms import Penalised, State
from fedlap.deploy.run_state import Site
from fedlap.deploy.setup import Setup
from fedlap.training.scores import Score, Tally, compute_score
from fedlap.training.state import describe_shapes
from fedlap.training.worker import ClientTally, RowSums


def add_tallies(
    round: int,
    tallies: Sequence[ClientTally],
    penalty: float | None,
    sent: tuple[int, int],
    seconds: float,
) -> Score:
    """Return the score of a round from the clients' sums; other arguments are those of `compute_score`.

    penalty: None if it is not known; then the score has no objective.
    """
    train, test = (_join_sums([getattr(tally, rows) for tally in tallies]) for rows in ("train", "test"))
    ridge = torch.cat([tally.ridge for tally in tallies])
    gaps = [tally.gap for tally in tallies if tally.gap is not None]
    gap = float(torch.cat(gaps).sum()) if len(gaps) == len(tallies) else None
    score = compute_score(round, train, test, ridge, 0.0 if penalty is None else penalty, gap, sent, seconds)
    return score if penalty is not None else replace(score, objective=None)


def compute_server_penalty(setup: Setup, server: State) -> float | None:
    """Return the term that J(W) adds to the losses; None if it depends on private state of clients."""
    if not isinstance(setup.method, Penalised):
        return 0.0
    return float(setup.method.penalty(server, None)) if setup.initial_private is None else None


def is_valid_tally(setup: Setup, site: Site, tally: State) -> bool:
    """Return whether sums of a client have the structure of its task, and count the rows that it registered.

    A server that resumed knows the number of training rows alone, until the client registers again.
    """
    if not isinstance(tally, ClientTally):
        return False
    one, data = torch.zeros(1, dtype=torch.float64), setup.plan.data
    is_real = data.classes is None
    errors = torch.zeros(1, 4, data.outputs, dtype=torch.float64) if is_real else None
    sums = one, None if is_real else one, torch.zeros(1, dtype=torch.int64), errors
    expected = ClientTally(sums, sums, one, None if tally.gap is None else one)
    if describe_shapes(tally) != describe_shapes(expected):
        return False
    train_rows, test_rows = int(tally.train[2]), int(tally.test[2])
    return train_rows == site.rows and test_rows >= 0 and site.test_rows in (None, test_rows)


def list_client_scores(tallies: Mapping[str, ClientTally]) -> dict[str, dict[str, float | None]]:
    """Return each client's numbers of rows, and its test scores by metric; None where one is not defined."""
    clients = {}
    for name, tally in tallies.items():
        train, test = Tally(*tally.train), Tally(*tally.test)
        scores = {metric: values.item() for metric, values in test.client_scores().items()}
        clients[name] = {
            "train_rows": int(train.count),
            "test_rows": int(test.count),
            **{metric: value if math.isfinite(value) else None for metric, value in scores.items()},
        }
    return clients


def _join_sums(sums: Sequence[RowSums]) -> Tally:
    loss, hits, count, errors = zip(*sums, strict=True)
    return Tally(
        torch.cat(loss),
        None if hits[0] is None else torch.cat(hits),
        torch.cat(count),
        None if errors[0] is None else torch.cat(errors),
    )
