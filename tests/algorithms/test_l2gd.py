"""L2GD: as its paper has it, its coin, and what is exactly true."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import fedlap as fl
import reference
from related_methods import (
    FEATURES,
    LABELS,
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


def coin(seed, t, p):
    """The uniform number of round t, from its definition, below p."""
    key = reference.stream(seed, "coin", t)
    high, low, _, _ = reference.philox((0, 0, 0, 0), key)
    return ((high << 20 | low >> 12) + 0.5) / 2**52 < p


def plain_l2gd(arrays, start, share, work, lam, p, seed):
    """Algorithm 1; where clients are sampled, the mean is over those who worked last."""
    steps = steps_of(arrays, work)
    alpha = LR * len(arrays) * (1 - p)  # the paper's step, from the length of the local step
    repeats = work.get("steps") or work["epochs"]
    x, heard = {k: start.copy() for k in arrays}, [start]
    for t, chosen in rounds(arrays, share):
        if coin(seed, t, p):
            mean = np.mean(list(x.values()), 0) if share == 1 else np.mean(heard, 0)
            for k in chosen:
                x[k] = x[k] - repeats * alpha * lam / (len(arrays) * p) * (x[k] - mean)
        else:
            for k in chosen:
                for batch in steps(k, t):
                    x[k] = x[k] - alpha / (len(arrays) * (1 - p)) * slope(x[k], batch)
            heard = [x[k] for k in chosen]
    return np.stack(list(x.values()))


@either_work
@either_share
@pytest.mark.parametrize("seed", [3, 5])
def test_l2gd_is_its_algorithm_1(arrays, federation, work, share, seed):
    start = a_start()
    method = fl.L2GD(1.5, 0.4, seed, **fields(work))
    found = train_method(method, federation, sample=share, start=start)
    assert distance(found.models, plain_l2gd(arrays, start, share, work, 1.5, 0.4, seed)) < 1e-9
    assert 0 < sum(method.is_averaging_round(t) for t in range(1, ROUNDS + 1)) < ROUNDS


# What is exactly true.


def test_l2gd_s_coins_are_the_same_in_every_training_and_fall_as_often_as_they_should():
    method = fl.L2GD(0.1, 0.3, 5)
    coins = [method.is_averaging_round(t) for t in range(1, 501)]
    assert coins == [coin(5, t, 0.3) for t in range(1, 501)]
    assert np.mean(coins) == pytest.approx(0.3, abs=0.06)
    assert coins != [fl.L2GD(0.1, 0.3, 6).is_averaging_round(t) for t in range(1, 501)]


def test_l2gd_s_averaging_keeps_the_mean_and_draws_every_model_to_it(federation):
    method = fl.L2GD(1.5, 0.4, 3, lr=LR)
    after = [train_method(method, federation, rounds=t).models for t in range(1, ROUNDS + 1)]
    seen = 0
    for t, (before, now) in enumerate(pairwise(after), 2):
        if method.is_averaging_round(t):
            seen += 1
            assert distance(before.mean(0), now.mean(0)) < 1e-12
            middle = before.mean(0)
            assert distance(now - middle, (1 - method.step) * (before - middle)) < 1e-12
    assert seen > 2


def test_l2gd_takes_the_steps_that_its_problem_asks_for():
    """On average over the coin, a round is a step of length (1 − p)μR along the gradient of J."""
    method = fl.L2GD(1.5, 0.4, lr=LR, local_steps=3)
    assert 0.4 * method.step == pytest.approx(0.6 * LR * 3 * 1.5)


def test_l2gd_s_problem_is_that_of_fedu_on_the_complete_graph(federation):
    W = stack(6)
    whole = fl.FedU(fl.Graph.complete(federation.clients), strength=0.9 / 6, lr=0.01)
    method = fl.L2GD(0.9)
    penalty = method.penalty(method.init_server(W), method.init_clients(W, federation.roster.counts)).item()
    assert penalty == pytest.approx(whole.penalty(whole.init_server(W), None).item())


@either_work
@either_share
def test_l2gd_whose_coin_never_falls_is_local(federation, work, share):
    found = train_method(fl.L2GD(0.0, 1e-12, **fields(work)), federation, sample=share)
    assert torch.equal(found.models, train_method(fl.Local(**fields(work)), federation, sample=share).models)


def test_l2gd_without_strength_does_nothing_when_it_averages(federation):
    method = fl.L2GD(0.0, 0.4, 5, lr=LR)
    t = next(t for t in range(2, 20) if method.is_averaging_round(t))
    before, now = (train_method(method, federation, rounds=rounds) for rounds in (t - 1, t))
    assert torch.equal(before.models, now.models)


def test_l2gd_sends_models_only_around_averaging(federation):
    method, size = fl.L2GD(0.5, 0.3, lr=LR), 4 * (LABELS * FEATURES + LABELS)
    found = train_method(method, federation, rounds=20, dtype="float32", sample=0.5)
    up, down = np.diff([(0, 0), *((s.bytes_up, s.bytes_down) for s in found.scores)], axis=0).T
    coins = [method.is_averaging_round(t) for t in range(1, 22)]
    assert up.tolist() == [3 * size * (not now and then) for now, then in pairwise(coins)]
    assert down.tolist() == [3 * (size * now + 2) for now in coins[:20]]  # two coins are two bytes
    assert len(set(up)) == len(set(down)) == 2
