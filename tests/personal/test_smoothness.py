"""Variances of true models' differences: exact in the balanced case, and independent of the strength."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import chi2

from fedlap.personal.smoothness import NODES, LikelihoodMoments, RowsOnGraph, estimate_variances
from fedlap.personal.uncertainty import QuadraticProblem, _collect_evidence, _estimate_variances

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


@pytest.mark.parametrize(("clients", "spread"), [(12, 1.0), (4, 5.0)])
def test_nodes_are_quantiles_of_the_likelihood(clients, spread):
    """In a balanced design the likelihood of t is exactly that of N − 1 squares."""
    noise = 1.5
    b, part = build_balanced(clients, noise, spread)
    squares, number = float((b - b.mean()).square().sum()), clients - 1

    def weigh(total):  # likelihood times the prior of τ = t/N + noise, which is uniform in √τ
        return total ** (-(number + 1) / 2) * np.exp(-squares / (2 * total))

    mass = quad(weigh, noise, np.inf)[0]
    found = estimate_variances([part], 1)
    total = found.t.flatten() / clients + noise
    above = [quad(weigh, float(value), np.inf)[0] / mass for value in total]
    np.testing.assert_allclose(above, (np.arange(NODES) + 0.5) / NODES, rtol=1e-6)
    np.testing.assert_allclose(found.ratio.flatten(), squares / number / total, rtol=1e-6)
    assert float(found.freedom[0]) == pytest.approx(number)


def test_equal_models_are_possible_unless_a_chi_square_test_rejects_them():
    clients, noise = 10, 2.0
    b, _ = build_balanced(clients, noise, 0.0)
    b = (b - b.mean()) / b.std() * np.sqrt(noise / (clients - 1))  # the sum of squares is the noise
    for factor, possible in ((0.99, True), (1.01, False)):
        scaled = b * np.sqrt(factor * chi2.ppf(0.95, clients - 1))
        laplacian = clients * torch.eye(clients, dtype=torch.float64) - 1
        A = torch.ones(clients, 1, 1, dtype=torch.float64)
        found = estimate_variances([RowsOnGraph.of(A, scaled, noise * A, laplacian)], 1)
        assert bool(found.is_zero_possible[0]) == possible


@pytest.mark.parametrize("t", [[0.0, 0.0], [0.7, 0.0], [2.0, 0.3]])
def test_the_posterior_is_that_of_all_models_at_once(t):
    """Against the inverse of the whole precision, in which the means are parameters without a prior."""
    clients, size, t = 6, 2, torch.tensor(t, dtype=torch.float64)
    laplacian = 2 * torch.eye(clients, dtype=torch.float64)
    for k in range(clients):
        laplacian[k, (k + 1) % clients] = laplacian[(k + 1) % clients, k] = -1
    x = torch.from_numpy(rng.normal(size=(clients, 5, size)))
    A, noise = x.mT @ x / 5, 0.3
    part = RowsOnGraph.of(A, torch.zeros(clients, size).double(), noise * A / 5, laplacian)
    value, vector = torch.linalg.eigh(laplacian)
    waves = vector[:, 1:] / value[1:].sqrt()
    loads = torch.kron(torch.cat([torch.ones(clients, 1).double(), waves], 1), torch.eye(size).double())
    scale = torch.cat([torch.ones(size).double(), t.sqrt().repeat(clients - 1)])
    loads = loads * scale
    precision = loads.mT @ torch.block_diag(*(A * 5 / noise)) @ loads
    precision += torch.diag(torch.cat([torch.zeros(size), torch.ones(size * (clients - 1))]).double())
    covariance = (loads @ torch.linalg.inv(precision) @ loads.mT).view(clients, size, clients, size)
    place = torch.arange(clients)
    torch.testing.assert_close(part.compute_posterior(t), covariance[place, :, place, :])


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
        evidence = _collect_evidence(problem, list(problem.split()), A / 6)
        found.append(_estimate_variances(evidence, size).t)
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
    assert estimate_variances([], 3).t.tolist() == [[0, 0, 0]]
