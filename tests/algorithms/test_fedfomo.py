"""FedFomo: as its paper has it, and what is exactly true."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
import reference
from fedlap.randomness import digest_names, draws
from related_methods import (
    LABELS,
    LR,
    ROUNDS,
    SEED,
    a_start,
    distance,
    either_share,
    either_work,
    fields,
    given_arrays,  # noqa: F401 — a fixture
    given_federation,  # noqa: F401 — a fixture
    rounds,
    slope,
    train_method,
)


def held_out(rows, every):
    return [row for row in rows if row % every == every - 1]


def validation_loss(w, x, y, every):
    rows = held_out(range(len(y)), every)
    if not rows:
        return 0.0
    scores = x[rows] @ w[:-LABELS].reshape(LABELS, -1).T + w[-LABELS:]
    return (np.log(np.exp(scores).sum(1)) - scores[np.arange(len(rows)), y[rows]]).mean()


def plain_slope(w, x, y, rows, every):
    """Gradient of a mini-batch without held-out rows; with none left, that of the L2 term."""
    left = [row for row in rows if row not in held_out(rows, every)]
    return slope(w, (x[left], y[left])) if left else 0.02 * w


def plain_fedfomo(arrays, start, share, work, models, explore, every, seed):
    names = list(arrays)
    w, affinity = {k: start.copy() for k in names}, {k: dict.fromkeys(names, 0.0) for k in names}
    for t, clients in rounds(arrays, share):
        numbers = draws(seed, "coin", t).uniforms(digest_names(names), 0, 2).tolist()
        place, coin = ({k: n[part] for k, n in zip(names, numbers, strict=True)} for part in (0, 1))
        new, found = {}, {}
        for k in clients:
            known = dict.fromkeys(names, 0.0) if coin[k] < explore else affinity[k]
            order = sorted((o for o in names if o != k), key=lambda o: (-known[o], (place[k] + place[o]) % 1))
            gains = {}
            for o in order[:models]:
                away = np.linalg.norm(w[o] - w[k])
                better = validation_loss(w[k], *arrays[k], every) - validation_loss(w[o], *arrays[k], every)
                gains[o] = better / away if away else 0.0
            total = sum(max(g, 0.0) for g in gains.values())
            mixed = w[k].copy()
            for o, g in gains.items():
                mixed += max(g, 0.0) / total * (w[o] - w[k]) if total else 0.0
            x, y = arrays[k]
            for rows in reference.batches(k, len(x), SEED, t, 4, **work):
                mixed = mixed - LR * plain_slope(mixed, x, y, rows, every)
            new[k], found[k] = mixed, gains
        w |= new
        for k, gains in found.items():
            for o, g in gains.items():
                affinity[k][o] += g
    return np.stack(list(w.values())), np.array([list(row.values()) for row in affinity.values()])


@either_work
@either_share
@pytest.mark.parametrize("models", [2, 9])
def test_fedfomo_is_its_algorithm_1(arrays, federation, work, share, models):
    start, method = a_start(), fl.FedFomo(models, 0.3, 3, 7, **fields(work))
    found = train_method(method, federation, sample=share, start=start)
    expected, affinity = plain_fedfomo(arrays, start, share, work, models, 0.3, 3, 7)
    assert distance(found.models, expected) < 1e-9
    assert distance(found.server.affinity, affinity) < 1e-9
    assert (affinity > 0).any()


@either_work
def test_a_client_without_validation_rows_trains_alone(federation, work):
    found, alone = (
        train_method(method, federation)
        for method in (fl.FedFomo(validate_every=100, **fields(work)), fl.Local(**fields(work)))
    )
    assert distance(found.models, alone.models) < 1e-13
    assert not found.server.affinity.any()


def test_validation_rows_are_never_trained_on(arrays):
    """Their labels change the mixture alone, and the first round from a common start has none."""
    changed = {k: (x, np.where(np.arange(len(y)) % 3 == 2, (y + 1) % 3, y)) for k, (x, y) in arrays.items()}
    one, other = (
        train_method(
            fl.FedFomo(2, validate_every=3, lr=LR),
            fl.Federation.from_arrays(rows, test_share=0, labels=LABELS, scale="none"),
            rounds=1,
        ).models
        for rows in (arrays, changed)
    )
    assert torch.equal(one, other)


def test_fedfomo_counts_all_models(federation):
    last = train_method(fl.FedFomo(2, lr=LR), federation, sample=0.5, dtype="float32").scores[-1]
    assert last.bytes_down == ROUNDS * 3 * 2 * 4 * 15
    assert last.bytes_up == ROUNDS * 3 * 4 * (15 + 2)


def test_nobody_receives_its_own_model(federation):
    method = replace(fl.FedFomo(3, 1.0), _roster=federation.roster)
    server, ids = method.init_server(torch.zeros(6, 4)), torch.arange(6)
    chosen = method._choose(server, ids)
    assert not (chosen == ids.unsqueeze(1)).any()
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert torch.equal(method._choose(server, ids[[4, 1]]), chosen[[4, 1]])  # whoever else is sampled


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FedFomo(0), "fedfomo: models = 0"),
        (lambda: fl.FedFomo(explore=1.5), "fedfomo: explore = 1.5"),
        (lambda: fl.FedFomo(validate_every=1), "fedfomo: validate_every = 1"),
        (lambda: fl.FedFomo(lr=0), "fedfomo: lr = 0"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(fl.InputError, match=message):
        make()
