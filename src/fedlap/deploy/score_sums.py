"""Scores of a run from the clients' sums over rows; rows stay where they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedlap.algorithms import Penalised, State
from fedlap.deploy.run_storage import ServerCheckpoint
from fedlap.deploy.setup import Setup
from fedlap.training.scores import Score, Tally, compute_score
from fedlap.training.state import describe_shapes
from fedlap.training.worker import ClientTally, RowSums


def add_tallies(setup: Setup, checkpoint: ServerCheckpoint, tallies: Sequence[ClientTally]) -> Score:
    """Return the score of the last round from the sums of the clients that have answered."""
    train, test = (_join_sums([getattr(tally, rows) for tally in tallies]) for rows in ("train", "test"))
    ridge = torch.cat([tally.ridge for tally in tallies])
    gaps = [tally.gap for tally in tallies if tally.gap is not None]
    gap = float(torch.cat(gaps).sum()) if len(gaps) == len(tallies) else None
    method, penalty = setup.method, 0.0
    is_known = not isinstance(method, Penalised) or setup.initial_private is None
    if isinstance(method, Penalised) and is_known:
        penalty = float(method.penalty(checkpoint.server, None))
    sent = checkpoint.bytes_up, checkpoint.bytes_down
    score = compute_score(checkpoint.round, train, test, ridge, penalty, gap, sent, checkpoint.seconds)
    return score if is_known else replace(score, objective=None)  # A penalty of private state is not known.


def is_valid_tally(setup: Setup, rows: int, tally: State) -> bool:
    """Return whether sums of a client have the structure of its task, and count its training rows."""
    if not isinstance(tally, ClientTally):
        return False
    one, data = torch.zeros(1, dtype=torch.float64), setup.plan.data
    is_real = data.classes is None
    errors = torch.zeros(1, 4, data.outputs, dtype=torch.float64) if is_real else None
    sums = one, None if is_real else one, torch.zeros(1, dtype=torch.int64), errors
    expected = ClientTally(sums, sums, one, None if tally.gap is None else one)
    if describe_shapes(tally) != describe_shapes(expected):
        return False
    return int(tally.train[2]) == rows and int(tally.test[2]) >= 0


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
