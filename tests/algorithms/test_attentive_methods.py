"""FedAMP and pFedGraph: as their papers have them, and what is exactly true."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedlap as fl
from fedlap.algorithms.pfedgraph import infer_weights
from related_methods import (
    LR,
    ROUNDS,
    a_start,
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


def plain_fedamp(arrays, start, share, work, proximal, sigma, alpha):
    steps, names = steps_of(arrays, work), list(arrays)
    w = {k: start.copy() for k in names}
    for t, chosen in rounds(arrays, share):
        u = {}
        for k in chosen:
            xi = {o: alpha * np.exp(-((w[k] - w[o]) ** 2).sum() / sigma) / sigma for o in names if o != k}
            u[k] = (1 - sum(xi.values())) * w[k] + sum(x * w[o] for o, x in xi.items())
        for k in chosen:
            for batch in steps(k, t):
                w[k] = w[k] - LR * (slope(w[k], batch) + proximal * (w[k] - u[k]))
    return np.stack(list(w.values()))


@either_work
@either_share
@pytest.mark.parametrize("attention", [None, 0.3])
def test_fedamp_is_its_algorithm_1(arrays, federation, work, share, attention):
    start = a_start()
    method = fl.FedAMP(3.0, 1.7, attention, **fields(work))
    found = train_method(method, federation, sample=share, start=start)
    alpha = 1.7 / 6 if attention is None else attention
    expected = plain_fedamp(arrays, start, share, work, 3.0, 1.7, alpha)
    assert distance(found.models, expected) < 1e-9
    assert distance(found.private, expected) < 1e-9


@either_work
def test_fedamp_without_pull_is_local(federation, work):
    found, alone = (
        train_method(method, federation, sample=0.5)
        for method in (fl.FedAMP(0.0, **fields(work)), fl.Local(**fields(work)))
    )
    assert distance(found.models, alone.models) < 1e-13


def test_fedamp_s_message_is_a_step_along_its_penalty():
    """u = w − α ∇A/2, and the penalty is λ Σ_{k<ℓ} A with λ = α·proximal."""
    method, w = fl.FedAMP(0.7, 1.3, 0.2), stack(5)
    server = method.init_server(w)
    u = method.send(server, torch.arange(5))
    at = w.clone().requires_grad_()
    with torch.enable_grad():
        pairs = (1 - (-(at.unsqueeze(1) - at).square().sum(2) / 1.3).exp()).sum() / 2
        (gradient,) = torch.autograd.grad(pairs, at)
    assert distance(u, w - 0.2 * gradient / 2) < 1e-12
    assert float(method.penalty(server, w)) == pytest.approx(0.7 * 0.2 * pairs.item(), rel=1e-12)


def test_a_client_never_weighs_less_than_nothing(federation):
    with pytest.raises(fl.InputError, match=r"attention = 3 is too large for 6 clients: .* use at most 2"):
        train_method(fl.FedAMP(attention=3.0), federation)
    train_method(fl.FedAMP(attention=2.0), federation, rounds=1)


# pFedGraph


def plain_pfedgraph(arrays, start, share, work, alpha, lam):
    steps, names = steps_of(arrays, work), list(arrays)
    u = {k: start.copy() for k in names}
    v = {k: start / np.linalg.norm(start) for k in names}
    for t, chosen in rounds(arrays, share):
        w = {}
        for k in chosen:
            w[k] = u[k].copy()
            for batch in steps(k, t):
                size = np.linalg.norm(w[k])
                turn = v[k] / size - (v[k] @ w[k]) * w[k] / size**3
                w[k] = w[k] - LR * (slope(w[k], batch) - lam * turn)
        rows = sum(len(arrays[k][0]) for k in chosen)
        for k in chosen:
            target = []
            for o in chosen:
                one, other = w[k] - start, w[o] - start
                cos = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                target.append(len(arrays[o][0]) / rows + cos / (2 * alpha))
            a = nearest_mixture(np.array(target))
            u[k] = sum(x * w[o] for x, o in zip(a, chosen, strict=True))
            v[k] = sum(x * w[o] / np.linalg.norm(w[o]) for x, o in zip(a, chosen, strict=True))
    return np.stack(list(u.values()))


def nearest_mixture(v):
    """Return the nearest point of the simplex, by bisection on the shift."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


@either_work
@either_share
def test_pfedgraph_is_its_algorithm_1(arrays, federation, work, share):
    start = a_start()
    method = fl.PFedGraph(0.5, 0.3, **fields(work))
    found = train_method(method, federation, sample=share, start=start)
    assert distance(found.models, plain_pfedgraph(arrays, start, share, work, 0.5, 0.3)) < 1e-9
    without = train_method(fl.PFedGraph(0.5, 0.0, **fields(work)), federation, sample=share, start=start)
    assert distance(found.models, without.models) > 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_the_weights_solve_the_quadratic_programme(seed):
    changes, alpha = stack(5, seed=seed), 0.4
    shares = torch.tensor([[0.1, 0.3, 0.2, 0.25, 0.15]], dtype=torch.float64)
    found = infer_weights(changes, shares, alpha).numpy()
    unit = (changes / changes.norm(dim=1, keepdim=True)).numpy()
    p = shares.numpy()[0]
    for a, cos in zip(found, unit @ unit.T, strict=True):

        def cost(x, cos=cos):
            return alpha * ((x - p) ** 2).sum() - x @ cos

        solved = minimize(
            cost, p, bounds=[(0, 1)] * 5, constraints={"type": "eq", "fun": lambda x: x.sum() - 1}, tol=1e-14
        )
        assert cost(a) <= solved.fun + 1e-9
        assert a.sum() == pytest.approx(1)
        assert a.min() >= 0


def test_pfedgraph_that_trusts_the_rows_alone_is_fedavg(federation):
    one, other = (
        train_method(method, federation) for method in (fl.PFedGraph(1e12, 0.0, lr=LR), fl.FedAvg(lr=LR))
    )
    assert distance(one.models, other.models) < 1e-9


def test_bytes_of_mixtures(federation):
    size = 4 * 15
    for method, down, up in ((fl.FedAMP(), size, size), (fl.PFedGraph(), 2 * size, size + 4)):
        last = train_method(method, federation, sample=0.5, dtype="float32").scores[-1]
        assert last.bytes_down == ROUNDS * 3 * down
        assert last.bytes_up == ROUNDS * 3 * up
