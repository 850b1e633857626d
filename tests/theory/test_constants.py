"""Constants against brute force, the minimiser against closed forms, and a walk that is the run."""

import itertools

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap import theory
from fedlap.theory import LaplacianProblem
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from random_inputs import random_arrays, random_weights

COUNTS = [6, 5, 9, 7]


def make_problem(real, l2=0.2, strength=0.3, batch=3, model=None, **how):
    """Return a small federation and its problem; features are few, so that curvatures are real."""
    arrays = random_arrays(COUNTS, features=2, labels=2 if real else 3, seed=4, real=real)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=None if real else 3, scale="none")
    graph = fl.Graph.from_matrix(random_weights(federation.clients, seed=1), federation.clients)
    method = fl.FedU(graph, strength=strength, **how)
    return arrays, LaplacianProblem.of(method, federation, model or fl.models.linear(l2=l2), batch=batch)


def seen(x):
    return np.hstack([x, np.ones((len(x), 1))])


def laplacian(problem):
    a = problem.graph.weights.matrix().toarray()
    return np.diag(a.sum(1)) - a


def anywhere(problem, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(problem.size, problem.model.size)))


def value(problem, W):
    """J by automatic differentiation's own forward pass: no code of the theory's."""
    total = problem.strength / 2 * torch.trace(W.T @ torch.from_numpy(laplacian(problem)) @ W)
    for client in range(problem.size):
        x, y = problem.client_rows(client)
        scores = problem.model.scores(W[client : client + 1], x.unsqueeze(0))
        total = total + problem.model.loss_function.values(scores, y.unsqueeze(0)).mean()
    return total + problem.model.l2 / 2 * W.square().sum()


@pytest.mark.parametrize("real", [True, False])
def test_objective_gradient_and_curvature_are_those_of_automatic_differentiation(real):
    _, problem = make_problem(real)
    W, V = anywhere(problem), anywhere(problem, 1)
    assert problem.objective(W) == pytest.approx(float(value(problem, W)), rel=1e-12)
    slope = torch.autograd.functional.jacobian(lambda W: value(problem, W), W)
    bent = torch.autograd.functional.vhp(lambda W: value(problem, W), W, V)[1]
    assert (problem.gradient(W) - slope).abs().max() < 1e-12
    assert (problem.hessian_product(W, V) - bent).abs().max() < 1e-12


def test_the_curvature_of_a_quadratic_is_that_of_its_rows():
    arrays, problem = make_problem(real=True)
    values = [np.linalg.eigvalsh(seen(x).T @ seen(x) / len(x)) for x, _ in arrays.values()]
    found = theory.bound_curvature(problem)
    assert found.origin == "exact"
    assert found.alpha == pytest.approx(min(v[0] for v in values) + 0.2)
    assert found.beta == pytest.approx(max(v[-1] for v in values) + 0.2)
    local = theory.compute_curvature_at(problem, anywhere(problem))
    assert (local.alpha, local.beta) == pytest.approx((found.alpha, found.beta))
    assert theory.estimate_curvature(problem, [anywhere(problem)]).beta == pytest.approx(found.beta, rel=1e-3)


def test_fewer_rows_than_features_leave_directions_without_curvature():
    federation = fl.Federation.from_arrays(
        random_arrays([3, 4], features=6, real=True), test_share=0, scale="none"
    )
    method = fl.FedU(fl.Graph.complete(federation.clients), strength=0.1)
    found = theory.bound_curvature(LaplacianProblem.of(method, federation, fl.models.linear(l2=0.05)))
    assert found.alpha == pytest.approx(0.05)


def test_bounds_of_the_logistic_loss_hold_and_cannot_be_better():
    arrays, problem = make_problem(real=False)
    found = theory.bound_curvature(problem)
    assert found.origin == "bound"
    assert found.alpha == 0.2
    largest = max(np.linalg.eigvalsh(seen(x).T @ seen(x) / len(x))[-1] for x, _ in arrays.values())
    assert found.beta == pytest.approx(largest / 2 + 0.2)
    for seed, size in itertools.product(range(5), (0.1, 1.0, 10.0)):
        local = theory.compute_curvature_at(problem, size * anywhere(problem, seed))
        assert found.alpha - 1e-12 <= local.alpha <= local.beta <= found.beta + 1e-12
    # Where two of three classes share all probability it is met.
    W = torch.zeros(problem.size, 9, dtype=torch.float64)
    W[:, 8] = -50.0
    assert theory.compute_curvature_at(problem, W).beta == pytest.approx(found.beta, rel=1e-9)


def test_the_variance_is_that_of_all_mini_batches():
    for real in (True, False):
        arrays, problem = make_problem(real, batch=3)
        W = anywhere(problem)
        total = 0.0
        for client, (x, _) in enumerate(arrays.values()):
            rows, truth = problem.client_rows(client)
            batches = torch.tensor(list(itertools.combinations(range(len(x)), 3)))
            stack = W[client].expand(len(batches), -1).contiguous()
            weight = torch.full((len(batches), 3), 1 / 3, dtype=torch.float64)
            batch = fl.models.Batch(rows[batches], truth[batches], weight)
            gradients = problem.model.gradient(stack, batch)
            total += float((gradients - gradients.mean(0)).square().sum(1).mean())
            assert (gradients.mean(0) - problem.loss_gradient(W)[client]).abs().max() < 1e-12
        assert problem.gradient_variance(W) == pytest.approx(total, rel=1e-10)
        assert make_problem(real, batch="all")[1].gradient_variance(W) == 0


def test_the_minimiser_of_a_quadratic_is_that_of_a_linear_system():
    arrays, problem = make_problem(real=True, strength=0.7)
    clients, width = len(arrays), 3
    system = np.kron(problem.strength * laplacian(problem), np.eye(width))
    right = np.zeros((clients * width, 2))
    for k, (x, y) in enumerate(arrays.values()):
        block = slice(width * k, width * k + width)
        system[block, block] += seen(x).T @ seen(x) / len(x) + 0.2 * np.eye(width)
        right[block] = seen(x).T @ y / len(x)
    exact = np.linalg.solve(system, right).reshape(clients, width, 2).transpose(0, 2, 1)
    found = theory.find_optimum(problem)
    weights = found.W[:, :4].reshape(clients, 2, 2).numpy()
    assert np.abs(weights - exact[:, :, :2]).max() < 1e-10
    assert np.abs(found.W[:, 4:].numpy() - exact[:, :, 2]).max() < 1e-10


@pytest.mark.parametrize("real", [True, False])
def test_no_gradient_is_left_at_the_minimiser(real):
    _, problem = make_problem(real)
    found = theory.find_optimum(problem)
    assert found.residual <= 1e-10
    assert problem.gradient(found.W).norm() <= 1e-10 * problem.gradient(0 * found.W).norm()
    for seed in range(3):
        assert problem.objective(found.W + 1e-2 * anywhere(problem, seed)) > found.value


def test_without_coupling_each_client_is_alone_and_with_much_they_are_one():
    _, alone = make_problem(real=False, strength=0.0)
    W = theory.find_optimum(alone).W
    federation = alone.clients.train
    for client in range(alone.size):
        x, y = federation.client(client)
        one = fl.Federation.from_arrays({"k": (x, y)}, test_share=0, labels=3, scale="none")
        separate = LaplacianProblem.of(
            fl.FedU(fl.Graph.empty(["k"]), strength=0.0), one, fl.models.linear(l2=0.2)
        )
        assert (theory.find_optimum(separate).W[0] - W[client]).abs().max() < 1e-9
    spreads = []
    for strength in (1e2, 1e4):
        _, coupled = make_problem(real=False, strength=strength, lr=1e-6)
        W = theory.find_optimum(coupled).W
        assert coupled.graph.components == 1
        spreads.append(float((W - W.mean(0)).norm()))
    assert spreads[0] / spreads[1] == pytest.approx(100, rel=0.05)
    assert coupled.loss_gradient(W.mean(0).expand_as(W)).sum(0).norm() < 1e-3


def test_a_walk_is_the_run(federation, graph):
    method = fl.FedU(graph, strength=0.1)
    how = {"rounds": 3, "seed": 5, "dtype": "float64", "evaluate_every": 0}
    trained = fl.fit(method, federation, fl.models.linear(), **how)
    problem = LaplacianProblem.of(method, federation, fl.models.linear())
    path = {}
    trial = Job(method, federation, fl.models.linear(), 5)
    theory.replay_iterates(
        problem, trial, Schedule(3, dtype="float64"), lambda done, W: path.update({done: W.clone()})
    )
    assert list(path) == [0, 1, 2, 3]
    assert torch.equal(path[3], trained.models)


def test_a_network_has_estimates_and_theorem_2_alone():
    _, problem = make_problem(real=False, model=fl.models.mlp(3, l2=0.1))
    W = anywhere(problem)
    found = theory.analyze_run(problem, W, {})
    assert found.theorem1 is None
    assert found.optimum is None
    assert found.curvature.origin == "estimate"
    exact = theory.compute_curvature_at(problem, W)
    assert found.curvature.beta == pytest.approx(exact.beta, rel=0.02)
