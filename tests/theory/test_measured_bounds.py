"""The theory met by measurement, on losses whose constants are known exactly.

Each client's rows are all corners of a cube, some times over, so that the covariance with the bias is the
identity: α = β = 1 and J(W) − J* is a quadratic that needs no evaluation. Repeats are copies of the clients
which no edge joins: one run, whose mini-batches go by clients' names, is as many independent ones.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import fedlap as fl
from fedlap import theory
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

CORNERS = np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
PATH = np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1)


class Isotropic:
    """Copies of a few clients with α = β = 1 on a graph, and J's minimiser in closed form."""

    def __init__(self, adjacency, coupling, copies=1, noise=1.0, times=2):
        rng = np.random.default_rng(5)
        clients, x = len(adjacency), np.tile(CORNERS, (times, 1))
        truth = rng.normal(size=(clients, 3))
        y = truth[:, :2] @ x.T + truth[:, 2:] + noise * rng.normal(size=(clients, len(x)))
        arrays = {f"{copy}-{k}": (x, y[k][:, None]) for copy in range(copies) for k in range(clients)}
        self.federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
        self.graph = fl.Graph.from_matrix(np.kron(np.eye(copies), adjacency), self.federation.clients)
        self.L = np.diag(adjacency.sum(1)) - adjacency
        self.strength = float(coupling / np.linalg.eigvalsh(self.L)[-1])
        alone = np.stack([np.append(targets @ x, targets.sum()) / len(x) for targets in y])
        self.hessian = torch.from_numpy(np.eye(clients) + self.strength * self.L)
        self.best = torch.linalg.solve(self.hessian, torch.from_numpy(alone))
        self.copies = copies

    def start(self, value=None):
        """All copies at the optimum, or all parameters at a value."""
        W = self.best if value is None else torch.full_like(self.best, value)
        return W.repeat(self.copies, 1)

    def gaps(self, W):
        """J(W) − J* of each copy."""
        apart = W.view(self.copies, *self.best.shape) - self.best
        return ((self.hessian @ apart) * apart).sum((1, 2)) / 2

    def method(self, step, steps, **how):
        return fl.FedU(self.graph, strength=self.strength, lr=step / steps, local_steps=steps, **how)


def train_and_visit(cube, method, rounds, visit, batch="all", start=None, seeds=(0,), sample=1.0):
    """Train, and call `visit` with every run's models after each round."""
    schedule = Schedule(rounds, batch, sample, dtype="float64", evaluate_every=0)
    start = cube.start() if start is None else start
    trials = [Job(method, cube.federation, fl.models.linear(), seed, start) for seed in seeds]

    def on_round(moment):
        servers = [progress.server for progress in moment.collect_progress()]
        visit(moment.round, torch.stack([server.models.values for server in servers]))

    fit_all(trials, schedule, on_round=on_round)


def analyse_copy(cube, method, share, start):
    """Return the problem of one copy and its constants, σ₁ the largest of start and optimum."""
    clients = cube.federation.clients[: len(cube.best)]
    arrays = {name: cube.federation.train.client(place) for place, name in enumerate(clients)}
    one = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
    graph = fl.Graph.from_matrix(np.diag(np.diag(cube.L)) - cube.L, clients)
    problem = theory.LaplacianProblem.of(
        replace(method, graph=graph), one, fl.models.linear(), batch=2, sample=share
    )
    analysis = theory.analyze_run(problem, start, {})
    assert analysis.curvature.alpha == pytest.approx(1)
    assert analysis.curvature.beta == pytest.approx(1)
    assert (analysis.optimum.W - cube.best).abs().max() < 1e-10
    return problem, analysis


def measure_gaps(cube, method, rounds, value, share=1.0, seeds=(0,)):
    """Return the mean over repeats of J(W̃) − J*, and its bound, after 1, 2, 4, … rounds.

    The noise of mini-batches depends on where one is, so σ₁ is the largest that was seen on the way.
    """
    start = cube.start(value)
    problem, analysis = analyse_copy(cube, method, share, start[: len(cube.best)])
    mean = theory.WeightedIterate(analysis.theorem1.contraction(problem.step))
    mean.add(start.repeat(len(seeds), 1))
    gaps, variances = {}, [analysis.constants.sigma1**2]

    def visit(done, W):
        if done.bit_count() == 1 or done == rounds:
            repeats = mean.mean.view(len(seeds), -1, 3)
            gaps[done] = float(torch.cat([cube.gaps(stack) for stack in repeats]).mean())
            models = W.reshape(-1, *cube.best.shape)[:50]
            variances.append(np.mean([problem.gradient_variance(stack) for stack in models]))
        mean.add(W.flatten(0, 1))

    train_and_visit(cube, method, rounds, visit, batch=2, start=start, seeds=seeds, sample=share)
    theorem = theory.Theorem1(replace(analysis.theorem1.constants, sigma1=math.sqrt(max(variances))))
    assert problem.step <= theorem.largest_step * (1 + 1e-12)
    return [(done, gap, theorem.bound(problem.step, done, analysis.distance)) for done, gap in gaps.items()]


@pytest.mark.parametrize("value", [None, 2.0], ids=["from the optimum", "from afar"])
@pytest.mark.parametrize("rounds", [32, pytest.param(16_384, marks=pytest.mark.slow)])
def test_the_weighted_iterate_stays_below_the_bound(value, rounds):
    """From the optimum the bound is its floor alone, however few the rounds."""
    cube = Isotropic(PATH, coupling=3.5, copies=60)
    step = theory.Theorem1(theory.Constants(1.0, 1.0, 3.5, 1.0, 2, 0.0, 0.0)).largest_step
    found = measure_gaps(cube, cube.method(step, 2), rounds, value)
    assert found[-1][0] == rounds
    for done, gap, bound in found:
        assert 0 <= gap <= bound, (done, gap, bound)
    assert found[-1][1] > 0


@pytest.mark.parametrize("rounds", [32, pytest.param(400, marks=pytest.mark.slow)])
def test_the_same_holds_with_half_of_the_clients_a_round(rounds):
    cube = Isotropic(PATH, coupling=3.5)
    step = theory.Theorem1(theory.Constants(1.0, 1.0, 3.5, 0.5, 2, 0.0, 0.0)).largest_step
    found = measure_gaps(cube, cube.method(step, 2), rounds, None, share=0.5, seeds=range(50))
    for done, gap, bound in found:
        assert 0 <= gap <= bound, (done, gap, bound)
    assert found[-1][1] > 0


@pytest.mark.parametrize("shares", [(0.25, 0.5), pytest.param((0.05, 0.1), marks=pytest.mark.slow)])
def test_the_rate_is_proportional_to_the_share_of_clients(shares):
    """μ̃β_J = 0.05, full gradients: E[J] − J* falls as e^(−2μ̃ατ) a round; many clients make a mean."""
    ring = np.roll(np.eye(60), 1, 0) + np.roll(np.eye(60), -1, 0)
    cube = Isotropic(ring, coupling=1.5)
    step, rates = 0.05 / 2.5, {}
    for share in (*shares, 1.0):
        gaps = []

        def visit(done, W, gaps=gaps):
            gaps.append(float(cube.gaps(W[0])))

        rounds = round(1 / (step * share))
        train_and_visit(cube, cube.method(step, 2), rounds, visit, start=cube.start(30.0), sample=share)
        rates[share] = -np.polyfit(np.arange(len(gaps)), np.log(gaps), 1)[0]
    for share, rate in rates.items():
        assert rate / rates[1.0] == pytest.approx(share, rel=0.1), rates
        assert rate == pytest.approx(2 * step * share, rel=0.1), rates


def floors(cube, steps, lengths, rounds, **how):
    """The mean of J − J* over repeats and the later half of the rounds, from the optimum."""
    found = []
    for step in lengths:
        late, many = [], round(rounds / step)

        def visit(done, W, late=late, many=many):
            if done > many // 2:
                late.append(float(torch.stack([cube.gaps(stack) for stack in W]).mean()))

        train_and_visit(cube, cube.method(step, steps), many, visit, **how)
        found.append(np.mean(late))
    return found


def slope(lengths, found):
    return np.polyfit(np.log(lengths), np.log(found), 1)[0]


@pytest.mark.slow
def test_the_floor_is_linear_in_the_step_with_mini_batches():
    lengths = [0.01, 0.02, 0.04]
    found = floors(Isotropic(PATH, coupling=0.5, copies=60, noise=2.0), 2, lengths, 5, batch=2)
    assert slope(lengths, found) == pytest.approx(1, abs=0.1), found


@pytest.mark.slow
@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_the_floor_is_quadratic_in_the_step_with_full_gradients(sample):
    lengths = [0.02, 0.04, 0.08]
    found = floors(Isotropic(PATH, coupling=0.5), 4, lengths, 8, sample=sample)
    assert slope(lengths, found) == pytest.approx(2, abs=0.1), found


def spread(W):
    return float((W - W.mean(0)).norm())


def path_of(method, federation, start, rounds, sample=1.0):
    """All clients' models after each round, with full gradients."""
    path = []
    fit_all(
        [Job(method, federation, fl.models.linear(), 0, start)],
        Schedule(rounds, "all", sample, dtype="float64", evaluate_every=0),
        on_round=lambda moment: path.append(moment.collect_progress()[0].server.models.values.clone()),
    )
    return path


@pytest.mark.parametrize(("product", "grows"), [(1.98, False), (2.02, True)])
@pytest.mark.parametrize("name", ["path", "complete"])
def test_with_no_loss_disagreement_grows_iff_the_coupling_is_above_two(name, product, grows):
    """Features, targets and biases of zero: local steps change nothing, and all that is left is mixing."""
    names = [str(k) for k in range(6)]
    federation = fl.Federation.from_arrays(
        {client: (np.zeros((3, 4)), np.zeros((3, 1))) for client in names},
        test_share=0,
        scale="none",
    )
    graph = fl.graph.GRAPHS[name](names)
    method = fl.FedU(graph, strength=product / (0.1 * graph.rho), lr=0.05, local_steps=2, allow_unstable=True)
    start = torch.zeros(6, 5, dtype=torch.float64)
    start[:, :4] = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4)))
    path = path_of(method, federation, start, 200)
    ends = [spread(path[at]) for at in (100, 199)]
    assert (ends[1] > ends[0]) == grows, ends
    assert abs(math.log(ends[1] / ends[0])) > 1


@pytest.mark.slow
def test_with_a_quadratic_loss_it_grows_where_the_spectral_radius_passes_one():
    """(I − μ̃ηL)(I − μH)^R, on both sides within 1 % of the strength."""
    rng, names, lr, steps = np.random.default_rng(3), [str(k) for k in range(4)], 0.2, 3
    arrays = {client: (rng.normal(size=(12, 2)), rng.normal(size=(12, 1))) for client in names}
    federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
    graph = fl.Graph.path(names)
    L = np.kron(np.diag(PATH.sum(1)) - PATH, np.eye(3))
    seen = [np.hstack([x, np.ones((12, 1))]) for x, _ in arrays.values()]
    local = np.zeros((12, 12))
    for k, x in enumerate(seen):
        step_matrix = np.eye(3) - lr * x.T @ x / 12
        local[3 * k : 3 * k + 3, 3 * k : 3 * k + 3] = np.linalg.matrix_power(step_matrix, steps)

    def beyond(strength):
        return np.abs(np.linalg.eigvals((np.eye(12) - lr * steps * strength * L) @ local)).max() - 1

    alone = 2 / (lr * steps * graph.rho)
    edge = brentq(beyond, alone, 50 * alone)
    start = torch.from_numpy(rng.normal(size=(4, 3)))
    assert edge > 1.1 * alone  # somewhat later than the mixing alone would

    def moves(strength):
        """Return how far the last round moves the models, early and late."""
        method = fl.FedU(graph, strength=strength, lr=lr, local_steps=steps, allow_unstable=True)
        path = path_of(method, federation, start, 500)
        return [float((path[at] - path[at - 1]).norm()) for at in (200, 499)]

    early, late = moves(0.99 * edge)
    assert late < 0.1 * early
    early, late = moves(1.01 * edge)
    assert late > 10 * early


@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_implicit_mixing_never_increases_disagreement(sample):
    """However strong, measured as tr(WᵀLW) and, where all take part, as the distance from the mean."""
    names = [str(k) for k in range(6)]
    federation = fl.Federation.from_arrays(
        {client: (np.zeros((3, 4)), np.zeros((3, 1))) for client in names},
        test_share=0,
        scale="none",
    )
    graph = fl.Graph.path(names)
    start = torch.zeros(6, 5, dtype=torch.float64)
    start[:, :4] = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4)))
    for strength in (0.1, 10.0, 1e6 if sample == 1 else 300.0):
        method = fl.FedU(graph, strength=strength, lr=0.05, local_steps=2, mixing="implicit")
        path = [start, *path_of(method, federation, start, 8, sample)]
        for measure in (graph.smoothness, spread) if sample == 1 else (graph.smoothness,):
            found = [float(measure(W)) for W in path]
            falls = [after <= before * (1 + 1e-9) + 1e-12 for before, after in itertools.pairwise(found)]
            assert all(falls), found
            assert found[-1] < found[0]
