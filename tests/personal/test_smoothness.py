"""Variances of true models' differences: exact in the balanced case, and independent of the strength."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from fedlap.personal.smoothness import LikelihoodMoments, RowsOnGraph, estimate_variances
from fedlap.personal.uncertainty import QuadraticProblem, _estimate_variances

rng = np.random.default_rng(3)


def build_balanced(clients, noise, spread):
    """One parameter, equal noise at all clients, and a complete graph."""
    b = torch.from_numpy(rng.normal(scale=np.sqrt(noise + spread), size=(clients, 1)))
    A = torch.ones(clients, 1, 1, dtype=torch.float64)
    laplacian = clients * torch.eye(clients, dtype=torch.float64) - 1
    return b, RowsOnGraph.of(A, b, noise * A, laplacian)


def converge(parts, t):
    for _ in range(30):
        t = LikelihoodMoments.of(parts, t).update()
    return t


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_a_balanced_design_has_the_estimate_of_the_analysis_of_variance(spread):
    """L⁺ = (I − 11ᵀ/N)/N, so that t/N + noise is the sample variance, unless t would be negative."""
    clients, noise = 12, 1.5
    b, part = build_balanced(clients, noise, spread)
    variance = float(b.var())
    found = converge([part], torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(found[0].item(), clients * max(variance - noise, 0.0))


def test_the_mean_is_that_of_the_likelihood():
    """In a balanced design the likelihood of t is exactly that of N − 1 squares."""
    clients, noise = 12, 1.5
    b, part = build_balanced(clients, noise, 1.0)
    squares, number = float((b - b.mean()).square().sum()), clients - 1

    def weigh(total):  # likelihood times 1/τ, τ = t/N + noise
        return total ** (-number / 2 - 1) * np.exp(-squares / (2 * total))

    mass = quad(weigh, noise, np.inf)[0]
    mean = quad(lambda total: total * weigh(total), noise, np.inf)[0] / mass
    found = estimate_variances([part], 1)
    assert float(found[0]) == pytest.approx(clients * (mean - noise), rel=1e-6)


def test_the_strength_of_training_has_no_part_in_the_estimate():
    clients, size = 9, 2
    laplacian = 2 * torch.eye(clients, dtype=torch.float64)
    for k in range(clients):
        laplacian[k, (k + 1) % clients] = laplacian[(k + 1) % clients, k] = -1
    x = torch.from_numpy(rng.normal(size=(clients, 6, size)))
    A = x.mT @ x / 6
    b = torch.from_numpy(rng.normal(size=(clients, size)))
    found = []
    for strength in (0.01, 1.0, 50.0):
        H = strength * torch.kron(laplacian, torch.eye(size, dtype=torch.float64))
        H += torch.block_diag(*A)
        W = torch.linalg.solve(H, b.flatten()).view(clients, size)
        problem = QuadraticProblem(
            W, A, torch.zeros_like(W), laplacian, torch.zeros(clients, dtype=torch.int64), strength
        )
        found.append(_estimate_variances(problem, list(problem.split()), A / 6))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
    assert bool((found[0] > 0).all())


def test_clients_whose_rows_do_not_determine_a_model_contribute_what_they_have():
    """A client with a zero row in A changes nothing but the direction that it has."""
    b, part = build_balanced(6, 1.0, 2.0)
    A = torch.ones(7, 1, 1, dtype=torch.float64)
    A[6] = 0
    laplacian = 7 * torch.eye(7, dtype=torch.float64) - 1
    more = RowsOnGraph.of(A, torch.cat([b, b.new_zeros(1, 1)]), A, laplacian)
    # In a complete graph of N clients, t/N is the variance of models around their mean, whatever N is.
    torch.testing.assert_close(
        converge([more], torch.ones(1).double()) / 7, converge([part], torch.ones(1).double()) / 6
    )
    assert estimate_variances([], 3).tolist() == [0, 0, 0]
