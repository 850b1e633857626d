"""FedAvg, FedProx, SCAFFOLD and AFL against their papers' pseudo-code, and what ties them together."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms.simplex import project_to_simplex
from linear_fits import either_sample, every_batch, fields
from random_inputs import random_arrays
from reference import batches, draw_cohort, gradient, local_steps

LABELS, L2, LR, SEED, ROUNDS = 3, 0.02, 0.05, 11, 10
WORK = {"steps": {"steps": 3}, "epochs": {"epochs": 2}}

every_work = pytest.mark.parametrize("work", WORK.values(), ids=WORK)


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays([7, 23, 5, 12, 41, 9, 2], labels=LABELS)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    return arrays, federation, np.random.default_rng(1).normal(size=5 * LABELS) / 3


def train(method, problem, batch=4, sample=1.0, rounds=ROUNDS, **more):
    _, federation, start = problem
    return fl.fit(
        method, federation, fl.models.linear(l2=L2), rounds=rounds, batch=batch, sample=sample, seed=SEED,
        start=torch.from_numpy(start), dtype="float64", **more,
    )  # fmt: skip


def distance(one, other):
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def own_batches(data, k, t, batch, work):
    x, y = data[k]
    return [(x[rows], y[rows]) for rows in batches(k, len(x), SEED, t, batch, **work)]


def fedprox(data, start, proximal, batch, share, work):
    """Algorithm 2 of Li et al.; with proximal = 0, Algorithm 1 of McMahan et al."""
    w = start.copy()
    for t in range(1, ROUNDS + 1):
        total, rows = np.zeros_like(w), 0
        for k in draw_cohort(list(data), SEED, t, share):
            local = w.copy()
            for x, y in own_batches(data, k, t, batch, work):
                local = local - LR * (gradient(local, x, y, LABELS, L2) + proximal * (local - w))
            total, rows = total + len(data[k][0]) * local, rows + len(data[k][0])
        w = total / rows
    return w


def scaffold(data, start, server_lr, batch, share, work):
    """Algorithm 1 of Karimireddy et al. with option II."""
    x, c = start.copy(), np.zeros_like(start)
    client_controls = {k: np.zeros_like(start) for k in data}
    controls = []
    for t in range(1, ROUNDS + 1):
        clients = draw_cohort(list(data), SEED, t, share)
        moved, changed = [], []
        for k in clients:
            y, steps = x.copy(), 0
            for features, labels in own_batches(data, k, t, batch, work):
                y = y - LR * (gradient(y, features, labels, LABELS, L2) - client_controls[k] + c)
                steps += 1
            new = client_controls[k] - c + (x - y) / (steps * LR)
            moved.append(y - x)
            changed.append(new - client_controls[k])
            client_controls[k] = new
        x = x + server_lr * np.mean(moved, axis=0)
        c = c + len(clients) / len(data) * np.mean(changed, axis=0)
        controls.append((c, np.mean(list(client_controls.values()), axis=0)))
    return x, controls


def loss(w, x, y):
    scores = x @ w[:-LABELS].reshape(LABELS, -1).T + w[-LABELS:]
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]
    return losses.mean() + L2 / 2 * w @ w


def project_mixture(v):
    """Return the nearest mixture, by bisection on the shift."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def afl(data, start, mixture_lr, batch, share, work):
    """Stochastic-AFL of Mohri et al., R local steps, N/S-weighted under sampling."""
    names = list(data)
    w, mixture, seen = start.copy(), np.full(len(names), 1 / len(names)), []
    for t in range(1, ROUNDS + 1):
        clients = draw_cohort(names, SEED, t, share)
        scale = len(names) / len(clients)
        step, ascent = np.zeros_like(w), np.zeros(len(names))
        for k in clients:
            local = local_steps(w, data, k, SEED, t, LR, batch, LABELS, L2, work)
            step += scale * mixture[names.index(k)] * (local - w)
            ascent[names.index(k)] = scale * loss(w, *data[k])
        w, mixture = w + step, project_mixture(mixture + mixture_lr * ascent)
        seen.append(w)
    return w, mixture, np.mean(seen, axis=0)


@every_work
@every_batch
@either_sample
@pytest.mark.parametrize("proximal", [None, 0.7])
def test_fedavg_and_fedprox_are_their_papers(problem, proximal, sample, batch, work):
    method = (
        fl.FedAvg(lr=LR, **fields(work)) if proximal is None else fl.FedProx(proximal, lr=LR, **fields(work))
    )
    plain = fedprox(problem[0], problem[2], proximal or 0.0, batch, sample, work)
    assert distance(train(method, problem, batch, sample).models, plain[None]) < 1e-9


@every_work
@every_batch
@either_sample
def test_scaffold_is_its_paper(problem, sample, batch, work):
    method = fl.Scaffold(1.3, lr=LR, **fields(work))
    plain, _ = scaffold(problem[0], problem[2], 1.3, batch, sample, work)
    assert distance(train(method, problem, batch, sample).models, plain[None]) < 1e-9


@every_work
@every_batch
@either_sample
def test_afl_is_its_paper(problem, sample, batch, work):
    method = fl.AFL(0.2, lr=LR, **fields(work))
    result = train(method, problem, batch, sample)
    last, mixture, mean = afl(problem[0], problem[2], 0.2, batch, sample, work)
    assert distance(result.models, mean[None]) < 1e-9
    assert distance(result.server.model, last[None]) < 1e-9
    assert distance(result.server.mixture.flatten(), mixture) < 1e-9
    assert mixture.min() < 0.5 / len(mixture)  # it has moved


@every_work
@either_sample
def test_fedprox_without_the_term_is_fedavg(problem, sample, work):
    one = train(fl.FedProx(0.0, lr=LR, **fields(work)), problem, sample=sample)
    other = train(fl.FedAvg(lr=LR, **fields(work)), problem, sample=sample)
    # To rounding: FedAvg's many plain steps are summed where that is fastest.
    assert distance(one.models, other.models) < 1e-14


@every_work
@either_sample
def test_scaffolds_control_is_the_mean_of_the_clients(problem, sample, work):
    for rounds in range(1, 6):
        result = train(fl.Scaffold(lr=LR, **fields(work)), problem, sample=sample, rounds=rounds)
        c = result.server.control
        assert distance(c, result.private.mean(0, keepdim=True)) < 1e-12
    assert float(c.abs().max()) > 1e-3


def equal_counts(rows=12):
    arrays = random_arrays([rows] * 6, labels=LABELS)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    return arrays, federation, np.random.default_rng(2).normal(size=5 * LABELS) / 3


@every_work
@either_sample
def test_scaffolds_first_round_is_fedavg_with_equal_counts(sample, work):
    problem = equal_counts()
    one = train(fl.Scaffold(lr=LR, **fields(work)), problem, sample=sample, rounds=1)
    other = train(fl.FedAvg(lr=LR, **fields(work)), problem, sample=sample, rounds=1)
    assert distance(one.models, other.models) < 1e-12
    later = [train(m(lr=LR, **fields(work)), problem, sample=sample).models for m in (fl.Scaffold, fl.FedAvg)]
    assert distance(*later) > 1e-4


@every_work
@either_sample
def test_afl_with_a_still_mixture_is_fedavg_with_equal_counts(sample, work):
    problem = equal_counts()
    one = train(fl.AFL(0.0, lr=LR, **fields(work)), problem, sample=sample)
    other = train(fl.FedAvg(lr=LR, **fields(work)), problem, sample=sample)
    assert distance(one.server.model.expand(6, -1), other.models) < 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_mixture(seed):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=rng.integers(1, 12)) * 10.0 ** rng.integers(-3, 3)
    found = project_to_simplex(torch.from_numpy(v)[None]).flatten().numpy()
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    assert distance(found, project_mixture(v)) < 1e-9
    for other in rng.dirichlet(np.ones(len(v)), 50):
        assert ((found - v) ** 2).sum() <= ((other - v) ** 2).sum() + 1e-12


def test_the_mixture_stays_on_the_simplex_and_helps_the_worst():
    """Five clients agree and one does not: AFL gives up some of the five for the one."""
    rng = np.random.default_rng(3)
    arrays = {}
    for k, turn in zip("abcdef", [1, 1, 1, 1, 1, -0.5], strict=True):
        x = rng.normal(size=(30, 4))
        arrays[k] = (x, (turn * x[:, :LABELS] + 0.3 * rng.normal(size=(30, LABELS))).argmax(1))
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    problem = arrays, federation, np.zeros(5 * LABELS)
    for rounds in (1, 5, 150):
        result = train(fl.AFL(0.05, lr=LR), problem, sample=0.6, rounds=rounds)
        mixture = result.server.mixture.flatten()
        assert float(mixture.min()) >= 0
        assert float(mixture.sum()) == pytest.approx(1)
    assert mixture.argmax() == 5
    fair, plain = (
        [loss(models[0].numpy(), *arrays[k]) for k in arrays]
        for models in (result.models, train(fl.FedAvg(lr=LR), problem, sample=0.6, rounds=150).models)
    )
    assert max(fair) < 0.8 * max(plain)
    assert np.mean(fair) > np.mean(plain)


@every_work
def test_fedu_that_pulls_all_the_way_is_fedavg_with_equal_counts(work):
    """μ̃η = 1 on the complete graph with weights 1/N, all clients, one common start, one round."""
    problem = equal_counts()
    graph = fl.Graph.complete(problem[1].clients, weight=1 / 6)
    repeats = next(iter(work.values()))
    pulled = fl.FedU(graph, strength=1 / (LR * repeats), lr=LR, **fields(work))
    one = train(pulled, problem, rounds=1)
    other = train(fl.FedAvg(lr=LR, **fields(work)), problem, rounds=1)
    assert distance(one.models, other.models) < 1e-12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FedAvg(lr=0.0), "fedavg: lr = 0.0"),
        (lambda: fl.FedAvg(local_steps=0), "local_steps = 0"),
        (lambda: fl.FedProx(-1.0), "fedprox: proximal = -1.0"),
        (lambda: fl.Scaffold(0.0), "scaffold: server_lr = 0.0"),
        (lambda: fl.AFL(float("nan")), "afl: mixture_lr = nan"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(fl.InputError, match=message):
        make()


def test_a_mixture_that_is_lost_is_seen_and_stops_nothing():
    assert project_to_simplex(torch.tensor([[0.5, float("nan"), 0.5]])).isnan().all()
