"""Shared parts of the plain versions of related methods, and the clients that they are tested on."""

import numpy as np
import pytest
import torch

import fedlap as fl
import reference
from random_inputs import random_arrays, random_weights

LABELS, FEATURES, HIDDEN, L2, LR, SEED, ROUNDS = 3, 4, 3, 0.02, 0.05, 11, 10


@pytest.fixture(scope="module", name="arrays")
def given_arrays():
    return random_arrays([7, 23, 5, 12, 2, 16], FEATURES, LABELS)


@pytest.fixture(scope="module", name="federation")
def given_federation(arrays):
    return fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")


@pytest.fixture(scope="module", name="graph")
def given_graph(federation):
    return fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)


def train_method(algorithm, federation, model=None, **schedule):
    schedule = {"rounds": ROUNDS, "batch": 4, "seed": SEED, "dtype": "float64", **schedule}
    return fl.fit(algorithm, federation, model or fl.models.linear(l2=L2), **schedule)


def stack(rows, size=6, seed=0):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distance(one, other):
    return np.abs(np.asarray(one) - np.asarray(other)).max()


# Plain versions. `steps(k, t)` gives the mini-batches of client k in round t, `slope(w, batch)` a gradient.


def rounds(arrays, share):
    """The numbers of rounds, each with the clients that are sampled."""
    return ((t, reference.draw_cohort(list(arrays), SEED, t, share)) for t in range(1, ROUNDS + 1))


def steps_of(arrays, work):
    def steps(k, t):
        x, y = arrays[k]
        for rows in reference.batches(k, len(x), SEED, t, 4, **work):
            yield x[rows], y[rows]

    return steps


def slope(w, batch):
    return reference.gradient(w, *batch, LABELS, L2)


def average_by_rows(models, counts):
    return sum(n * w for n, w in zip(counts, models, strict=True)) / sum(counts)


either_work = pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
either_share = pytest.mark.parametrize("share", [0.45, 1.0])


def fields(work):
    return {"lr": LR} | {f"local_{kind}": number for kind, number in work.items()}


def a_start(size=LABELS * FEATURES + LABELS):
    return np.random.default_rng(1).normal(size=size) / 3
