"""Ditto and APFL: as their papers have them, and what is exactly true; what all related methods refuse."""

import numpy as np
import pytest
from torch import nn

import fedlap as fl
from random_inputs import random_arrays
from related_methods import (
    FEATURES,
    L2,
    LABELS,
    LR,
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
    steps_of,
    train_method,
)


def plain_ditto(arrays, start, share, work, lam):
    steps = steps_of(arrays, work)
    w, v = start.copy(), {k: start.copy() for k in arrays}
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            mine = w.copy()
            for batch in steps(k, t):
                mine = mine - LR * slope(mine, batch)
            for batch in steps(k, t):
                v[k] = v[k] - LR * (slope(v[k], batch) + lam * (v[k] - w))
            sent.append(mine)
        w = average_by_rows(sent, [len(arrays[k][0]) for k in chosen])
    return np.stack(list(v.values())), w


def plain_apfl(arrays, start, share, work, alpha, adaptive):
    steps = steps_of(arrays, work)
    w, v, a = start.copy(), {k: start.copy() for k in arrays}, dict.fromkeys(arrays, alpha)
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            mine = w.copy()
            for number, batch in enumerate(steps(k, t)):
                mixed = a[k] * v[k] + (1 - a[k]) * mine
                by_mixed = slope(mixed, batch)
                by_mixture = (v[k] - mine) @ by_mixed
                mine, v[k] = mine - LR * slope(mine, batch), v[k] - LR * a[k] * by_mixed
                if adaptive and number == 0:
                    a[k] = min(max(a[k] - LR * by_mixture, 0.0), 1.0)
            sent.append(mine)
        w = sum(sent) / len(sent)
    return np.stack([a[k] * v[k] + (1 - a[k]) * w for k in arrays]), w


@either_work
@either_share
def test_ditto_is_its_algorithm_1(arrays, federation, work, share):
    start = a_start()
    found = train_method(fl.Ditto(0.7, **fields(work)), federation, sample=share, start=start)
    models, w = plain_ditto(arrays, start, share, work, 0.7)
    assert distance(found.models, models) < 1e-9
    assert distance(found.server.model, w) < 1e-9
    assert distance(models, w) > 0.01


@either_work
@either_share
@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
def test_apfl_is_its_algorithm_1(arrays, federation, work, share, adaptive):
    start = a_start()
    found = train_method(fl.APFL(0.3, adaptive, **fields(work)), federation, sample=share, start=start)
    models, w = plain_apfl(arrays, start, share, work, 0.3, adaptive)
    assert distance(found.models, models) < 1e-9
    assert distance(found.server.model, w) < 1e-9
    assert (found.private.mixture.std() > 1e-3) == adaptive


# What is exactly true.


@either_work
@either_share
def test_ditto_that_holds_nobody_back_is_local_beside_fedavg(federation, work, share):
    found, alone, mean = (
        train_method(method, federation, sample=share)
        for method in (fl.Ditto(0.0, **fields(work)), fl.Local(**fields(work)), fl.FedAvg(**fields(work)))
    )
    # To rounding: many plain steps are summed where that is fastest, Ditto's are not.
    assert distance(found.models, alone.models) < 1e-14
    assert distance(found.server.model, mean.server.model) < 1e-14


def test_ditto_s_penalty_is_how_far_personal_models_are_from_w(federation):
    found = train_method(fl.Ditto(0.7, lr=LR), federation)
    penalty = 0.35 * (found.models - found.server.model).square().sum().item()
    assert penalty > 0.01
    assert found.scores[-1].objective == pytest.approx(losses(found.models, federation) + penalty, rel=1e-6)


def losses(models, federation):
    """Σ_k F_k(w_k), client by client."""
    total = 0.0
    for place, w in enumerate(models):
        at = federation.train.locate_client(place)
        x, y = federation.train.x[at].double(), federation.train.y[at]
        scores = x @ w[:-LABELS].view(LABELS, -1).T + w[-LABELS:]
        total += float(nn.functional.cross_entropy(scores, y) + L2 / 2 * w.square().sum())
    return total


@either_work
def test_apfl_with_its_own_model_alone_is_local(federation, work):
    personal = train_method(fl.APFL(1.0, **fields(work)), federation, sample=0.5)
    alone = train_method(fl.Local(**fields(work)), federation, sample=0.5)
    assert distance(personal.models, alone.models) < 1e-12


@either_work
def test_apfl_without_models_of_its_own_is_fedavg_with_equal_counts(work):
    equal = fl.Federation.from_arrays(
        random_arrays([9] * 6, FEATURES, LABELS), test_share=0, labels=LABELS, scale="none"
    )
    found = train_method(fl.APFL(0.0, **fields(work)), equal, sample=0.5)
    mean = train_method(fl.FedAvg(**fields(work)), equal, sample=0.5)
    assert distance(found.models, mean.models) < 1e-12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.Ditto(-0.1), "ditto: proximal = -0.1"),
        (lambda: fl.Ditto(float("nan")), "ditto: proximal = nan"),
        (lambda: fl.Ditto(lr=0), "ditto: lr = 0"),
        (lambda: fl.APFL(1.1), "apfl: mixture = 1.1"),
        (lambda: fl.APFL(-0.1), "apfl: mixture = -0.1"),
        (lambda: fl.APFL(lr=-1), "apfl: lr = -1"),
        (lambda: fl.FedPer(-1), "fedper: personal_layers = -1"),
        (lambda: fl.FedPer(lr=0), "fedper: lr = 0"),
        (lambda: fl.FedPer(local_steps=0), "local_steps = 0"),
        (lambda: fl.L2GD(-0.1), "l2gd: strength = -0.1"),
        (lambda: fl.L2GD(probability=0), "l2gd: probability = 0"),
        (lambda: fl.L2GD(probability=1.0), "l2gd: probability = 1"),
        (lambda: fl.L2GD(10.0, 0.1), r"= 13\.5 > 2.*at most 1\.481"),
        (lambda: fl.L2GD(lr=0), "l2gd: lr = 0"),
        (lambda: fl.NetworkLasso(fl.Graph.complete("ab"), -1.0), "lasso: strength = -1"),
        (lambda: fl.NetworkLasso(fl.Graph.complete("ab"), smoothing=0.0), "lasso: smoothing = 0"),
        (lambda: fl.NetworkLasso(fl.Graph.complete("ab"), lr=0), "lasso: lr = 0"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(fl.InputError, match=message):
        make()
