"""The corrected Lemma 1 (the page on theory) on random problems, and on the paper's counterexample."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.theory import LaplacianProblem, find_optimum


def build_problem(strength, seed):
    data = fl.data.synthetic("regression", clients=8, features=3, rows=12, test_rows=0, seed=seed)
    method = fl.FedU(data.graph, strength=strength, mixing="implicit")
    return LaplacianProblem.of(method, data.federation, fl.models.linear(l2=0.05), batch="all")


def list_hessians(problem):
    """Return the constant Hessian of each client's quadratic loss."""
    zero = torch.zeros(problem.size, problem.model.size, dtype=torch.float64)
    columns = []
    for unit in torch.eye(problem.model.size, dtype=torch.float64):
        columns.append(problem.loss_hessian_product(zero, unit.expand_as(zero).clone()))
    return torch.stack(columns, 2)


def bound_squared(gamma, beta, pull):
    return 2 * gamma / (1 / beta + 1 / pull)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_the_corrected_lemma_holds(strength, seed):
    problem = build_problem(strength, seed)
    hessians = list_hessians(problem)
    values = torch.linalg.eigvalsh(hessians)
    alpha, beta = float(values.min()), float(values.max())
    zero = torch.zeros(problem.size, problem.model.size, dtype=torch.float64)
    slopes = problem.loss_gradient(zero)
    common = -torch.linalg.solve(hessians.sum(0), slopes.sum(0)).expand_as(zero)
    alone = -torch.linalg.solve(hessians, slopes)
    gamma = float(problem.losses(common).sum() - problem.losses(alone).sum())
    assert gamma > 0
    optimum = find_optimum(problem)
    sigma = float(problem.loss_gradient(optimum.W).square().sum())
    limit = bound_squared(gamma, beta, problem.coupling)
    assert 0.001 * limit < sigma <= limit
    for shift in (0.0, 0.1, 3.0):
        noise = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        W = optimum.W + shift * noise
        gradient, of_objective = problem.loss_gradient(W), problem.gradient(W)
        bound = 2 * sigma + 2 * (beta / alpha) ** 2 * float(of_objective.square().sum())
        assert float(gradient.square().sum()) <= bound


def test_the_corrected_lemma_is_attained_as_the_strength_grows():
    laplacian, centre = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([0.0, 3.0])  # F_k = (w − c_k)²/2
    gamma, shares = ((centre - centre.mean()) ** 2).sum() / 2, []
    for strength in (1.0, 10.0, 1e4):
        best = np.linalg.solve(np.eye(2) + strength * laplacian, centre)
        shares.append(((best - centre) ** 2).sum() / bound_squared(gamma, 1.0, 2 * strength))
    assert 0.5 < shares[0] < shares[1] < shares[2] <= 1
    assert shares[2] == pytest.approx(1, abs=1e-4)


def test_the_corrected_lemma_bounds_the_counterexample():
    """σ₂² is 1.96, and the price of one model is 49.5, which bounds it by 94."""
    h, b = (1.0, 0.01), (0.0, 1.0)
    gamma = -(sum(b) ** 2) / (2 * sum(h)) + sum(one**2 / (2 * other) for one, other in zip(b, h, strict=True))
    assert bound_squared(gamma, 1.0, 20.0) == pytest.approx(94, abs=0.5)
