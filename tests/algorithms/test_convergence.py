"""Training converges to the minimiser of J, and to one common model as the strength grows."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedlap as fl
from graphs import laplacian
from random_inputs import random_arrays, random_weights

L2, ETA, LABELS, R = 0.3, 0.4, 3, 5


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays([7, 23, 5, 12, 40], labels=LABELS)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    return arrays, federation, fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)


def objective(flat, arrays, L, l2, eta):
    """J and its gradient, client by client."""
    W = flat.reshape(len(arrays), -1)
    value, gradient = eta / 2 * np.trace(W.T @ L @ W), eta * L @ W
    for k, (x, y) in enumerate(arrays.values()):
        weight, bias = W[k, :-LABELS].reshape(LABELS, -1), W[k, -LABELS:]
        scores = x @ weight.T + bias
        top = scores.max(1, keepdims=True)
        logsum = top[:, 0] + np.log(np.exp(scores - top).sum(1))
        value += (logsum - scores[np.arange(len(y)), y]).mean() + l2 / 2 * W[k] @ W[k]
        slope = (np.exp(scores - logsum[:, None]) - np.eye(LABELS)[y]) / len(y)
        gradient[k] += np.concatenate([(slope.T @ x).ravel(), slope.sum(0)]) + l2 * W[k]
    return value, gradient.ravel()


def train_to_optimum(algorithm, federation, l2, rounds, start=None):
    return fl.fit(
        algorithm,
        federation,
        fl.models.linear(l2=l2),
        rounds=rounds,
        batch="all",
        start=start,
        dtype="float64",
        evaluate_every=0,
    )


@pytest.mark.slow
def test_fedu_converges_to_the_minimiser_of_j_in_first_order(problem):
    arrays, federation, graph = problem
    size = 4 * LABELS + LABELS
    found = minimize(
        objective, np.zeros(5 * size), (arrays, laplacian(graph), L2, ETA), "L-BFGS-B", jac=True,
        options={"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-10},
    )  # fmt: skip
    best = torch.from_numpy(found.x.reshape(5, size))
    distances = []
    for step in (0.2, 0.1, 0.05):  # μ̃ = μR
        result = train_to_optimum(
            fl.FedU(graph, strength=ETA, lr=step / R, local_steps=R), federation, L2, int(45 / step), best
        )
        distances.append((result.models - best).norm().item())
        assert result.scores[-1].objective >= found.fun - 1e-12
    ratios = [far / near for far, near in itertools.pairwise(distances)]
    assert distances[-1] < 0.05 * best.norm().item()
    assert all(1.85 < ratio < 2.15 for ratio in ratios), (distances, ratios)


@pytest.mark.slow
def test_the_limit_does_not_depend_on_the_start(problem):
    _, federation, graph = problem
    method = fl.FedU(graph, strength=ETA, lr=0.04, local_steps=R)
    ends = [
        train_to_optimum(method, federation, L2, 600, torch.full((15,), value, dtype=torch.float64)).models
        for value in (-1.0, 2.0)
    ]
    assert (ends[0] - ends[1]).abs().max() < 1e-9


@pytest.mark.slow
def test_the_spread_falls_as_one_over_the_strength(problem):
    """μ̃ηρ = 1 held fixed, η up, μ down, on a connected graph."""
    _, federation, graph = problem
    assert graph.components == 1
    spreads, models = [], None
    for eta in (16.0, 32.0, 64.0):
        method = fl.FedU(graph, strength=eta, lr=1 / (R * eta * graph.rho), local_steps=R)
        result = train_to_optimum(method, federation, 1.0, int(10 * eta * graph.rho), models)
        models = result.models
        spreads.append((models - models.mean(0)).norm().item())
    ratios = [wide / narrow for wide, narrow in itertools.pairwise(spreads)]
    assert all(1.8 < ratio < 2.2 for ratio in ratios), (spreads, ratios)


def test_mixing_alone_is_stable_up_to_the_limit():
    """With the loss flat, disagreement dies at μ̃ηρ < 2 and grows past it."""
    names = ["a", "b", "c", "d"]
    graph = fl.Graph.path(names)
    W = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def disagreement(product):
        method = fl.DFedU(graph, strength=product / graph.rho, lr=1.0, local_steps=1, allow_unstable=True)
        mixed = W
        for _ in range(400):
            mixed = method.mix_all(mixed)
        return (mixed - mixed.mean(0)).norm().item()

    assert disagreement(1.95) < 1e-6
    assert disagreement(2.05) > 1e3


def test_a_strength_past_the_limit_is_refused_with_the_numbers():
    graph = fl.Graph.complete([str(k) for k in range(10)])
    fl.FedU(graph, strength=1.0, lr=0.04, local_steps=5)  # exactly 2
    for method in (fl.FedU, fl.DFedU):
        with pytest.raises(fl.InputError) as error:
            method(graph, strength=1.5, lr=0.04, local_steps=5)
        for number in ("1.5", "0.04", "10", " 3 ", "at most 1,", "allow_unstable"):
            assert number in str(error.value)
        assert method(graph, strength=1.5, lr=0.04, local_steps=5, allow_unstable=True).coupling.step > 0


def test_the_default_strength():
    names = [str(k) for k in range(10)]
    assert fl.FedU(fl.Graph.complete(names), lr=0.03).coupling.eta == 0.01
    assert fl.FedU(fl.Graph.complete(names), lr=3.0, local_epochs=10).coupling.eta == pytest.approx(1 / 300)
    assert fl.FedU(fl.Graph.empty(names)).coupling.eta == 0.01


@pytest.mark.slow
@pytest.mark.parametrize("sample", [0.1, 0.25])
def test_strong_mixing_of_few_clients_goes_uphill(sample):
    """A sampled client loses μRηd of its step and gets S/N of that back: past 1 in all, nothing is left."""
    federation = fl.data.load("digits")
    clients = len(federation.clients)
    graph = fl.Graph.complete(federation.clients)
    beginning = math.log(10)

    def loss(lost, **how):
        strength = lost / (0.03 * 5 * (clients - 1) * (1 - sample))
        method = fl.FedU(graph, strength=strength, allow_unstable=True, **how)
        schedule = {"rounds": 300, "sample": sample, "evaluate_every": 0, "start": torch.zeros(650)}
        return fl.fit(method, federation, fl.models.linear(), **schedule).scores[-1].train_loss

    assert loss(0.5) < 0.5 * beginning
    assert loss(1.1) > 1.5 * beginning
    assert loss(1.1, neighbours="sampled") < 0.5 * beginning


@pytest.mark.parametrize(("lost", "refused"), [(0.99, False), (1.01, True)])
def test_strong_mixing_of_few_clients_is_refused(lost, refused, federation):
    graph = fl.Graph.complete(federation.clients)  # six clients, of whom two are sampled
    method = fl.FedU(graph, strength=lost / (0.03 * 5 * 5 * (1 - 2 / 6)))
    if not refused:
        fl.fit(method, federation, fl.models.linear(), rounds=1, sample=0.33)
        return
    with pytest.raises(fl.InputError, match="mixing undoes more than local steps gain"):
        fl.fit(method, federation, fl.models.linear(), rounds=1, sample=0.33)
    fl.fit(method, federation, fl.models.linear(), rounds=1)
    fl.fit(replace(method, neighbours="sampled"), federation, fl.models.linear(), rounds=1, sample=0.33)
