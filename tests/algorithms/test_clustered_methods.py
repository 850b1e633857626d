"""IFCA and CFL: as their papers have them, and what is exactly true."""

from itertools import combinations

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms.cfl import split_by_cosine
from fedlap.randomness import draws
from related_methods import (
    FEATURES,
    L2,
    LABELS,
    LR,
    ROUNDS,
    a_start,
    average_by_rows,
    distance,
    either_share,
    either_work,
    fields,
    given_arrays,  # noqa: F401 — a fixture
    given_federation,  # noqa: F401 — a fixture
    rounds,
    slope,
    stack,
    steps_of,
    train_method,
)


def descend(w, batches):
    for batch in batches:
        w = w - LR * slope(w, batch)
    return w


def loss(w, x, y):
    scores = x @ w[:-LABELS].reshape(LABELS, -1).T + w[-LABELS:]
    return (np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]).mean() + L2 / 2 * w @ w


def plain_ifca(arrays, models, share, work):
    steps, chosen = steps_of(arrays, work), dict.fromkeys(arrays, 0)
    for t, clients in rounds(arrays, share):
        members = [[] for _ in models]
        for k in clients:
            chosen[k] = int(np.argmin([loss(w, *arrays[k]) for w in models]))
            members[chosen[k]].append(descend(models[chosen[k]], steps(k, t)))
        models = [np.mean(m, axis=0) if m else w for m, w in zip(members, models, strict=True)]
    return models, list(chosen.values())


@either_work
@either_share
def test_ifca_is_its_algorithm_1(arrays, federation, work, share):
    start = a_start()
    found = train_method(fl.IFCA(3, 0.5, 4, **fields(work)), federation, sample=share, start=start)
    noise = draws(4, "heterogeneity").normals(torch.arange(3), 0, len(start)).numpy()
    models, chosen = plain_ifca(arrays, list(start + 0.5 * noise), share, work)
    assert distance(found.server.models, np.stack(models)) < 1e-9
    assert found.private.flatten().tolist() == chosen
    assert len(set(chosen)) > 1
    assert distance(found.models, np.stack([models[j] for j in chosen])) < 1e-9


@either_share
def test_ifca_with_one_cluster_is_fedavg_with_equal_counts(share):
    rng = np.random.default_rng(0)
    arrays = {k: (rng.normal(size=(9, FEATURES)), rng.integers(0, LABELS, 9)) for k in "abcdef"}
    equal = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    one, other = (
        train_method(method, equal, sample=share) for method in (fl.IFCA(1, 0.0, lr=LR), fl.FedAvg(lr=LR))
    )
    assert distance(one.models, other.models) < 1e-12


def opposite(clients=6, rows=40):
    """Clients of two kinds, whose labels are swapped."""
    rng = np.random.default_rng(3)
    arrays = {}
    for place, k in enumerate("abcdefgh"[:clients]):
        x = rng.normal(size=(rows, FEATURES))
        y = (x[:, 0] > 0).astype(int)
        arrays[k] = (x, y if place % 2 else 1 - y)
    return arrays, fl.Federation.from_arrays(arrays, test_share=0, labels=2, scale="none")


def test_the_best_of_a_few_restarts_of_ifca_finds_two_kinds_of_clients():
    federation = opposite()[1]
    runs = [train_method(fl.IFCA(2, 0.3, seed, lr=0.2), federation, rounds=30) for seed in range(4)]
    best = min(runs, key=lambda run: run.scores[-1].train_loss).private.flatten()
    assert best[::2].unique().numel() == best[1::2].unique().numel() == 1
    assert best[0] != best[1]


def test_ifca_counts_all_models(federation):
    last = train_method(fl.IFCA(3, lr=LR), federation, sample=0.5, dtype="float32").scores[-1]
    assert last.bytes_down == ROUNDS * 3 * 3 * 4 * 15
    assert last.bytes_up == ROUNDS * 3 * (4 * 15 + 4)  # the number of the cluster goes with the model


# CFL


def cosine(u, v):
    return u @ v / np.linalg.norm(u) / np.linalg.norm(v)


def split_by_trying(updates):
    """Return the part, without the first update, of the best of all partitions into two."""
    others = range(1, len(updates))
    parts = [set(p) for size in range(1, len(updates)) for p in combinations(others, size)]
    return min(
        parts,
        key=lambda part: max(
            cosine(updates[i], updates[j]) for i in part for j in range(len(updates)) if j not in part
        ),
    )


def plain_cfl(arrays, start, share, work, below, above):
    steps, names = steps_of(arrays, work), list(arrays)
    clusters, models, last, largest = [names], [start.copy()], {}, 0.0
    splits = []
    for t, clients in rounds(arrays, share):
        sent = {}
        for k in clients:
            (c,) = (c for c, members in enumerate(clusters) if k in members)
            sent[k] = descend(models[c], steps(k, t)) - models[c]
        last |= sent
        for c, members in list(enumerate(clusters)):
            if any(k not in last for k in members):
                continue
            updates = [last[k] for k in members]
            mean = np.linalg.norm(average_by_rows(updates, [len(arrays[k][0]) for k in members]))
            largest = max(largest, mean)
            norms = [np.linalg.norm(u) for u in updates]
            if len(members) > 1 and mean < below * largest and max(norms) > above * largest:
                part = split_by_trying(updates)
                clusters[c] = [k for i, k in enumerate(members) if i not in part]
                clusters.append([k for i, k in enumerate(members) if i in part])
                models.append(models[c].copy())
                splits.append(t)
        for c, members in enumerate(clusters):
            trained = [k for k in members if k in sent]
            if trained:
                counts = [len(arrays[k][0]) for k in trained]
                models[c] = models[c] + average_by_rows([sent[k] for k in trained], counts)
    return np.stack([next(w for w, m in zip(models, clusters, strict=True) if k in m) for k in names]), splits


@either_work
@either_share
def test_cfl_is_its_algorithm_3(arrays, federation, work, share):
    start = a_start()
    found = train_method(fl.CFL(0.9, 0.5, **fields(work)), federation, sample=share, start=start)
    models, splits = plain_cfl(arrays, start, share, work, 0.9, 0.5)
    assert len(splits) > 1
    assert found.server.clusters.unique().numel() == len(splits) + 1
    assert distance(found.models, models) < 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_the_split_is_the_best_of_all(seed):
    updates = stack(7, seed=seed)
    part = split_by_cosine(updates)
    found = set(part.nonzero().flatten().tolist())
    assert found == split_by_trying(updates.numpy())
    assert not split_by_cosine(updates[:1]).any()


@either_work
@either_share
def test_cfl_without_splits_is_fedavg(federation, work, share):
    one, other = (
        train_method(method, federation, sample=share)
        for method in (fl.CFL(0.0, **fields(work)), fl.FedAvg(**fields(work)))
    )
    assert distance(one.models, other.models) < 1e-12


def test_cfl_separates_two_kinds_of_clients_by_its_defaults():
    federation = opposite()[1]
    found = train_method(fl.CFL(lr=0.2), federation, rounds=60, batch="all")
    assert found.server.clusters.tolist() == [0, 1] * 3 or found.server.clusters.tolist() == [1, 0] * 3
    assert found.scores[-1].train_loss < 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.IFCA(0), "ifca: clusters = 0"),
        (lambda: fl.IFCA(spread=-1.0), "ifca: spread = -1"),
        (lambda: fl.IFCA(lr=0), "ifca: lr = 0"),
        (lambda: fl.CFL(1.1), "cfl: split_below = 1.1"),
        (lambda: fl.CFL(split_above=-0.1), "cfl: split_above = -0.1"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(fl.InputError, match=message):
        make()
