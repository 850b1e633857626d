"""The theorems: their numbers, the sums behind these numbers, and their limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap import theory
from fedlap.theory import Constants, LaplacianProblem, Theorem1, Theorem2


def test_lemma_1_is_false():
    """N = 2, F_k = h_k w²/2 − b_k w: ‖∇F(W*)‖² is 1.96, and the lemma says at most 1.11."""
    h, b, eta = np.array([1, 0.01]), np.array([0.0, 1]), 10.0
    L = np.array([[1.0, -1], [-1, 1]])
    best = np.linalg.solve(np.diag(h) + eta * L, b)
    claimed = theory.compute_lemma1_sigma2(np.linalg.norm(b), beta=1.0, coupling=eta * 2)
    assert claimed**2 == pytest.approx(1.11, abs=0.005)
    assert ((h * best - b) ** 2).sum() == pytest.approx(1.96, abs=0.005)
    assert theory.compute_lemma1_sigma2(1.0, beta=1.0, coupling=2.0) is None


# The paper's own step sizes: α = β with ηρ = 2β, and β/α = 10.
@pytest.mark.parametrize(("beta", "p", "least"), [(1.0, 192.0, 1.384e4), (10.0, 10_560.0, 7.82e6)])
def test_constants_of_theorem_1(beta, p, least):
    theorem = Theorem1(Constants(1.0, beta, 2 * beta, 1.0, 4, sigma1=2.0, sigma2=3.0))
    c = 2 * beta
    assert theorem.p == pytest.approx(p)
    assert theorem.q == pytest.approx(128 * beta**2 * c + 12 * 3 * beta + 96 * beta**2 + 32 * p * beta**2 / c)
    assert theorem.least_rounds == pytest.approx(least, rel=1e-3)
    assert theorem.c1 == pytest.approx((64 * c + 48) * 9 + 15)
    assert theorem.c2 == pytest.approx(p * (72 + 2))
    half = Theorem1(replace(theorem.constants, share=0.5))
    assert half.least_rounds == pytest.approx(2 * theorem.least_rounds)


def test_the_bound_is_the_sum_that_it_stands_for():
    theorem = Theorem1(Constants(1.0, 1.0, 2.0, 0.5, 4, sigma1=2.0, sigma2=3.0))
    step, rounds, distance = theorem.largest_step, 300, 7.0
    theta = (1 - theorem.contraction(step)) ** -(np.arange(rounds) + 1.0)
    first = distance / (step * 0.5 * theta.sum())
    assert theorem.bound(step, rounds, distance) == pytest.approx(
        first + step**2 * 0.5 * theorem.c2 + step * theorem.c1
    )
    for accuracy in (1e-4, 1.0, 1e3):
        chosen, needed = theorem.plan(accuracy, distance)
        assert chosen <= theorem.largest_step
        assert theorem.bound(chosen, needed, distance) <= accuracy * (1 + 1e-9)
        # A round less leaves more than half of it to the first term.
        less = theorem.bound(chosen, needed - 1, distance) - theorem.floor(chosen) if needed > 1 else accuracy
        assert less > accuracy / 2 * (1 - 1e-9)


def test_constants_of_theorem_2_are_the_proofs():
    theorem = Theorem2(Constants(None, 2.0, 3.0, 0.5, 4, sigma1=2.0, sigma2=3.0))
    u = 25 / 2 + 18 + 16 * 4 + 6 * 125 / 3 + 3 * 3 * 5 + 24 * 5 * 4 / 3
    assert theorem.u == pytest.approx(u)
    assert theorem.v == pytest.approx(8 * (24 + 15 + 60 + 8 * u / 3))
    assert theorem.c3 == pytest.approx((24 + 60) * 9 + 7.5 * 5 * 4 / 4)
    assert theorem.c4 == pytest.approx(u * (36 + 2))
    step = theorem.largest_step
    assert theorem.bound(step, 10, 4.0) == pytest.approx(
        8 * (4 / (step * 0.5 * 10) + step**2 * 0.5 * theorem.c4 + step * theorem.c3)
    )


def test_without_coupling_no_step_is_admitted():
    constants = Constants(1.0, 1.0, 0.0, 1.0, 1, 0.0, 0.0)
    assert Theorem1(constants).largest_step == Theorem2(constants).largest_step == 0
    assert math.isinf(Theorem1(constants).least_rounds)


@pytest.mark.parametrize("contraction", [0.0, 1e-9, 0.01, 0.5])
def test_the_weighted_iterate_is_the_weighted_mean(contraction):
    values = np.random.default_rng(0).normal(size=(9, 2, 3))
    mean = theory.WeightedIterate(contraction)
    for W in values:
        mean.add(torch.from_numpy(W))
    theta = (1 - contraction) ** -(np.arange(9) + 1.0)
    assert np.abs(mean.mean.numpy() - np.tensordot(theta / theta.sum(), values, 1)).max() < 1e-12
    assert theory.average_iterates(contraction, list(values[:, 0, 0]))[-1] == pytest.approx(
        float(mean.mean[0, 0])
    )


def test_what_the_theorems_are_not_about_is_refused(federation, graph):
    model = fl.models.linear(l2=0.1)
    with pytest.raises(fl.InputError, match="the algorithm is Local; expected FedU or dFedU"):
        LaplacianProblem.of(fl.Local(), federation, model)
    star = fl.Graph.star(federation.clients, server=True)
    with pytest.raises(fl.InputError, match="server vertex"):
        LaplacianProblem.of(fl.FedU(star), federation, model)
    with pytest.raises(fl.InputError, match="many minima; use a linear model"):
        theory.find_optimum(LaplacianProblem.of(fl.FedU(graph), federation, fl.models.mlp(3)))

    def reasons(**how):
        problem = LaplacianProblem.of(fl.FedU(graph, **how), federation, model, batch=3, sample=0.5)
        return " ".join(theory.analyze_run(problem, problem.initial_models(0), {}).list_violations())

    assert reasons() == ""
    assert "not independent" in reasons(local_epochs=2)
    assert "unsampled" in reasons(neighbours="sampled")
    assert "implicitly" in reasons(mixing="implicit")
    assert "divide by ηρ" in reasons(strength=0.0)
