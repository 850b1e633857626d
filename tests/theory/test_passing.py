"""The expected step of fedu-passing: closed forms, the method itself, rates on quadratics, and the star."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedlap as fl
from fedlap.graph.extension import build_extension
from fedlap.report.theory_text import describe_passing
from fedlap.theory import LaplacianProblem, analysis, analyze_run, compute_expected_step, summarize_analysis
from fedlap.theory import passing as passing_module
from fedlap.training.state import scatter_rows
from random_inputs import random_arrays, random_weights

NAMES = [f"k{place}" for place in range(6)]
GRAPHS = {
    "complete": fl.Graph.complete(NAMES),
    "ring": fl.Graph.ring(NAMES),
    "star": fl.Graph.star(NAMES),
    "random weights": fl.Graph.from_matrix(random_weights(NAMES), NAMES),
}
over_graphs = pytest.mark.parametrize("name", GRAPHS)


def laplacian(graph):
    a = torch.from_numpy(graph.weights.matrix().toarray())
    return torch.diag(a.sum(1)) - a


def expect(graph, sampled):
    return compute_expected_step(build_extension(graph), graph.size, sampled)


@pytest.mark.parametrize(("clients", "sampled"), [(6, 1), (6, 2), (30, 3), (30, 30)])
def test_the_complete_graph_has_two_speeds(clients, sampled):
    step = expect(fl.Graph.complete([f"k{place}" for place in range(clients)]), sampled)
    share, gamma = sampled / clients, sampled / (sampled + 1)
    common = share + gamma * (1 - share)
    difference = share - gamma * (clients - sampled) / (clients * (clients - 1))
    found = torch.linalg.eigvalsh(step.mean)
    assert step.common == pytest.approx(common, abs=1e-12)
    assert found[-1].item() == pytest.approx(common, abs=1e-12)
    assert (found[:-1] - difference).abs().max() < 1e-12
    assert difference > 0


@over_graphs
def test_one_cohort_stands_for_all_on_the_complete_graph_only(name):
    """The average over all cohorts, taken plainly."""
    graph, extension = GRAPHS[name], build_extension(GRAPHS[name])
    plain = torch.zeros(6, 6, dtype=torch.float64)
    for cohort in itertools.combinations(range(6), 2):
        plain[:, cohort] += extension.extend(torch.tensor(cohort), torch.eye(2, dtype=torch.float64)) / 15
    assert (expect(graph, 2).mean - plain).abs().max() < 1e-12


@over_graphs
def test_one_sampled_client_gives_a_symmetric_positive_step(name):
    """M = R/N ⪰ I/N²."""
    step = expect(GRAPHS[name], 1)
    assert (step.mean - step.mean.mT).abs().max() < 1e-12
    assert step.least >= 1 / 36 - 1e-12


@pytest.mark.parametrize("sampled", [2, 3, 4, 5])
@over_graphs
def test_eigenvalues_are_real_and_positive(name, sampled):
    """M is symmetric in the geometry of R⁻¹, with eigenvalues from 1/N² to 1."""
    step = expect(GRAPHS[name], sampled)
    values = torch.linalg.eigvals(step.mean)
    assert values.imag.abs().max() < 1e-9
    assert values.real.min() >= 1 / 36 - 1e-12
    assert values.real.max() <= 1 + 1e-12
    assert step.least > 0


@pytest.mark.parametrize("seed", range(12))
def test_descent_on_random_graphs_with_weights_over_many_orders(seed):
    """m > 0 in every case tried, which is not proved for 1 < S < N."""
    rng = np.random.default_rng(seed)
    a = np.exp(rng.choice([1, 3, 6]) * rng.normal(size=(6, 6))) * (rng.random((6, 6)) < 0.7)
    graph = fl.Graph.from_matrix(np.triu(a, 1) + np.triu(a, 1).T)
    for sampled in (1, 2, 3, 4, 5):
        assert expect(graph, sampled).least > 0.97 * (sampled / 6) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "sampled"), [(4, 2), (5, 2), (6, 3), (8, 3)])
def test_a_search_for_weights_without_descent_fails(clients, sampled):
    places = np.triu_indices(clients, 1)

    def least(exponents):
        a = np.zeros((clients, clients))
        a[places] = np.exp(exponents)
        return expect(fl.Graph.from_matrix(a + a.T), sampled).least

    begin = np.random.default_rng(0).normal(size=len(places[0])) * 3
    found = minimize(
        least, begin, method="Powell", bounds=[(-12, 12)] * len(begin), options={"maxfev": 1_000}
    )
    assert 0.99 * (sampled / clients) ** 2 < found.fun < least(begin)


class Quadratics:
    """F_k(w) = h_k (w − c_k)²/2 over a graph, with rounds of one full gradient step."""

    def __init__(self, graph, eta, seed=0, curvature=(0.5, 2.0)):
        rng = np.random.default_rng(seed)
        self.graph, self.eta, self.L = graph, eta, laplacian(graph)
        self.h = torch.from_numpy(rng.uniform(*curvature, (graph.size, 1)))
        self.target = torch.from_numpy(rng.normal(size=(graph.size, 1)))
        self.hessian = torch.diag(self.h[:, 0]) + eta * self.L
        self.best = torch.linalg.solve(self.hessian, self.h * self.target)
        self.start = torch.from_numpy(rng.normal(size=(graph.size, 1)))

    def gap(self, W):
        return float(((W - self.best) * (self.hessian @ (W - self.best))).sum() / 2)

    def gradient(self, W):
        return self.hessian @ (W - self.best)

    def play(self, extension, W, ids, step):
        """Return the models after a round with the pull from old models."""
        return W + extension.extend(ids, -step * self.gradient(W)[ids])


def list_cohorts(clients, sampled):
    return [torch.tensor(ids) for ids in itertools.combinations(range(clients), sampled)]


@over_graphs
def test_rounds_of_the_method_follow_it_to_first_order(name):
    """The mean over all cohorts of (W⁺ − W)/μ̃ is −M∇J + O(μ̃), with FedU's order of work and pull."""
    problem = Quadratics(GRAPHS[name], eta=0.3)
    W, M = problem.start, expect(problem.graph, 2).mean
    errors = []
    for lr in (1e-2, 1e-3):
        method = fl.FedUPassing(problem.graph, strength=0.3, lr=lr, local_steps=1)
        mean = torch.zeros_like(W)
        for ids in list_cohorts(6, 2):
            up = (W - lr * problem.h * (W - problem.target))[ids]
            server = method.init_server(W)
            new = scatter_rows(server, method.merge(server, ids, up))
            mean += method.personal_models(new, None, 6) / 15
        errors.append(float(((mean - W) / lr + M @ problem.gradient(W)).norm()))
    assert errors[0] < 0.1
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.1)


@over_graphs
def test_the_rate_of_the_mean_models_is_that_of_m(name):
    """Over drawn cohorts, the mean error after T rounds is (I − μ̃M∇²J)ᵀ of the first, up to its noise."""
    problem, step, rounds, runs = Quadratics(GRAPHS[name], eta=0.3), 0.2, 30, 400
    extension, rng = build_extension(problem.graph), np.random.default_rng(1)
    cohorts = list_cohorts(6, 2)
    maps = [  # a round is affine: W − W* is multiplied by I − μ̃ Π_S ∇²J
        torch.eye(6, dtype=torch.float64)
        - step * extension.extend(ids, torch.eye(2, dtype=torch.float64)) @ problem.hessian[ids]
        for ids in cohorts
    ]
    errors = torch.stack([problem.start - problem.best] * runs)
    for _ in range(rounds):
        drawn = torch.stack([maps[k] for k in rng.integers(len(maps), size=runs)])
        errors = drawn @ errors
    A = torch.eye(6, dtype=torch.float64) - step * expect(problem.graph, 2).mean @ problem.hessian
    predicted = torch.linalg.matrix_power(A, rounds) @ (problem.start - problem.best)
    noise = errors.std(0) / runs**0.5
    assert ((errors.mean(0) - predicted).abs() < 5 * noise).all()
    assert float(noise.max()) < 0.2 * float(predicted.abs().max())
    W = problem.play(extension, problem.start, cohorts[3], step)
    assert (W - problem.best - maps[3] @ (problem.start - problem.best)).abs().max() < 1e-12


@over_graphs
def test_the_theorem_bounds_the_expected_decrease(name):
    problem = Quadratics(GRAPHS[name], eta=0.3)
    values = torch.linalg.eigvalsh(problem.hessian)
    alpha, beta_j = float(values[0]), float(values[-1])
    found, extension = expect(problem.graph, 2), build_extension(problem.graph)
    largest = found.find_largest_step(beta_j)
    cohorts = list_cohorts(6, 2)
    for step in (largest / 10, largest / 2, 0.99 * largest):
        for seed in range(5):
            W = torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 1)))
            after = np.mean([problem.gap(problem.play(extension, W, ids, step)) for ids in cohorts])
            promised = found.compute_decrease(step, alpha, beta_j)
            assert 0 < promised < 1
            assert after <= (1 - promised) * problem.gap(W) + 1e-12


def extend_unscaled(graph, ids, values):
    """−K_UU⁻¹ L_US x_S: the harmonic extension with a leak, without the scaling to unit variances."""
    a = torch.from_numpy(graph.weights.matrix().toarray())
    d = a.sum(1)
    P = torch.linalg.inv(torch.diag(d * (1 + 1 / (len(d) - 1))) - a)
    return P[:, ids] @ torch.linalg.solve(P[ids][:, ids], values)


def test_without_unit_variances_a_star_has_gradients_that_make_j_rise():
    """The counterexample: on a star of 30, 3 sampled, a centre that passes its whole step to all leaves."""
    graph = fl.Graph.star([f"k{place}" for place in range(30)])
    cohorts = list_cohorts(30, 3)
    unscaled = torch.zeros(30, 30, dtype=torch.float64)
    for ids in cohorts:
        unscaled[:, ids] += extend_unscaled(graph, ids, torch.eye(3, dtype=torch.float64)) / len(cohorts)
    values, vectors = torch.linalg.eigh((unscaled + unscaled.mT) / 2)
    assert values[0] < -0.01
    gradient = vectors[:, :1]
    problem = Quadratics(graph, eta=0.3)
    W = problem.best + torch.linalg.solve(problem.hessian, gradient)
    assert (problem.gradient(W) - gradient).abs().max() < 1e-9
    found, step = expect(graph, 3), 1e-3
    rises = problem.gap(W - step * unscaled @ gradient) - problem.gap(W)
    falls = problem.gap(W - step * found.mean @ gradient) - problem.gap(W)
    assert rises > 0.01 * step
    assert falls < -0.5 * step * found.least
    assert found.least > 0.005


def test_many_cohorts_are_drawn(monkeypatch):
    graph = GRAPHS["random weights"]
    exact = expect(graph, 3)
    monkeypatch.setattr(passing_module, "MOST_COHORTS", 19)
    monkeypatch.setattr(passing_module, "LEAST_DRAWS", 1_000)
    drawn = expect(graph, 3)
    assert (exact.draws, drawn.draws) == (None, 1_000)
    assert (exact.mean - drawn.mean).abs().max() < 0.05
    assert drawn.least == pytest.approx(exact.least, abs=0.02)


def analyze(method, lr):
    arrays = random_arrays([7, 23, 5, 12, 41, 9], labels=3)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=3, scale="none")
    algorithm = method(fl.Graph.star(federation.clients), strength=0.05, lr=lr, local_steps=1)
    problem = LaplacianProblem.of(algorithm, federation, fl.models.linear(l2=0.1), batch="all", sample=0.34)
    return analyze_run(problem, problem.initial_models(0), {})


def test_the_expected_step_of_a_run_is_described():
    found = analyze(fl.FedUPassing, lr=0.01)
    lines, facts = describe_passing(found), summarize_analysis(found)["passing"]
    assert "over all cohorts; FedU has M = S/N = 0.3333" in lines[0]
    assert "decreases in every round for steps below" in lines[2]
    assert facts["least"] > 0
    assert facts["common"] > 0.5
    assert found.list_violations() == ["it moves clients that are not sampled"]
    assert summarize_analysis(analyze(fl.FedU, lr=0.01))["passing"] is None
    assert describe_passing(analyze(fl.FedU, lr=0.01)) == []


@pytest.mark.parametrize(
    ("share", "words"), [(0.25, "4 times smaller, and small enough"), (3, "3 times too large")]
)
def test_the_step_of_a_run_is_compared_with_the_largest_one(share, words):
    largest = summarize_analysis(analyze(fl.FedUPassing, lr=0.01))["passing"]["largest_step"]
    found = analyze(fl.FedUPassing, lr=share * largest)
    assert describe_passing(found)[2].endswith(f"; this run's step is {words}")
    assert summarize_analysis(found)["passing"]["times_too_large"] == pytest.approx(share)


def test_a_line_says_why_large_runs_have_no_expected_step(monkeypatch):
    monkeypatch.setattr(analysis, "DENSE_UP_TO", 5)
    found = analyze(fl.FedUPassing, lr=0.01)
    assert summarize_analysis(found)["passing"] is None
    assert describe_passing(found) == [
        "Passing: the expected step is not computed for 6 clients, as M would have 6² entries; it is for up "
        "to 2,000."
    ]
