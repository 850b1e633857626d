"""MOCHA's dual: its certificate, its bounds, learned relations, and optima known in closed form."""

import numpy as np
import pytest
import torch

import fedlap as fl
from conjugate_losses import LOSSES, conjugate, value
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.mocha import EPSILON
from fedlap.models import Model
from fedlap.training.jobs import bind_algorithm
from fedlap.training.placement import PlacedClients
from fedlap.training.task import StackTask
from mocha_problems import ETA, L2, OUTPUTS, SEED, flat, problem, train_method


@pytest.fixture(scope="module")
def small():
    return {kind: problem([3, 9, 5, 6, 2], kind == "real") for kind in ("classes", "real")}


def unflat(rows):
    rows = np.asarray(rows)
    return np.concatenate(
        [rows[:, :-OUTPUTS].reshape(len(rows), OUTPUTS, -1), rows[:, -OUTPUTS:, None]], axis=2
    )


def primal_and_dual(data, laplacian, loss, rows, a, strength=ETA, shrinkage=L2 / 2):
    """P(W) and D(α), with V from α alone; α as the clients keep it."""
    W, A = unflat(rows), strength * laplacian + 2 * shrinkage * np.eye(len(rows))
    primal, dual, V = np.einsum("kl,kop,lop->", A, W, W) / 2, 0.0, np.zeros_like(W)
    for k, (x, y) in enumerate(data.values()):
        alphas = np.asarray(a[k])[: len(x)]
        primal += value(loss, x @ W[k].T, y).sum() / len(x)
        dual -= conjugate(loss, alphas, y).sum() / len(x)
        V[k] = alphas.T @ x / len(x)
    dual -= np.einsum("kl,kop,lop->", np.linalg.inv(A), V, V) / 2
    return primal, dual


@pytest.mark.parametrize(("kind", "loss"), [("real", "squared"), *(("classes", loss) for loss in LOSSES)])
def test_the_gap_is_primal_less_dual_and_closes(small, kind, loss):
    data, federation, graph, laplacian = small[kind]
    method = fl.Mocha(graph, ETA, loss=loss, local_epochs=2)
    gaps = []
    for rounds, sample in ((1, 0.5), (10, 0.5), (100, 1.0)):
        result = train_method(method, federation, rounds, sample=sample)
        primal, dual = primal_and_dual(data, laplacian, loss, result.models, result.private)
        gaps.append(result.scores[-1].gap)
        assert gaps[-1] == pytest.approx(primal - dual, abs=1e-9 * primal)
    start = sum(value(loss, 0.0, y).sum() / len(y) for _, y in data.values())  # P(0) − D(0)
    assert start > gaps[0] > gaps[1] > 0
    assert abs(gaps[2]) < 1e-9 * start


def closed_form(data, A):
    """Least squares over all clients at once: 1/n_k X_kᵀ(X_k w_k − y_k) + (WA)_k = 0, for every output."""
    size = data[next(iter(data))][0].shape[1]
    system, right = np.kron(A, np.eye(size)), np.zeros((len(data), size, OUTPUTS))
    for k, (x, y) in enumerate(data.values()):
        at = slice(k * size, (k + 1) * size)
        system[at, at] += x.T @ x / len(x)
        right[k] = x.T @ y / len(x)
    return flat(np.linalg.solve(system, right.reshape(-1, OUTPUTS)).reshape(right.shape).swapaxes(1, 2))


@pytest.mark.parametrize(("shrinkage", "sample"), [(None, 1.0), (0.2, 0.6)])
def test_squared_loss_goes_to_the_closed_form(small, shrinkage, sample):
    data, federation, graph, laplacian = small["real"]
    A = ETA * laplacian + (L2 if shrinkage is None else 2 * shrinkage) * np.eye(len(data))
    optimum = closed_form(data, A)
    method = fl.Mocha(graph, ETA, shrinkage, local_epochs=3)
    result = train_method(method, federation, 100, sample=sample)
    assert np.abs(result.models.numpy() - optimum).max() < 1e-6
    least, _ = primal_and_dual(data, laplacian, "squared", optimum, result.private, ETA, A.sum() / len(A) / 2)
    assert result.scores[-1].objective == pytest.approx(least, abs=1e-9)


def test_its_optimum_is_that_of_fedu(small):
    """λ₁ = η/2 and λ₂ = l2/2: the same J, which FedU approaches from above as its steps shorten."""
    data, federation, graph, laplacian = small["real"]
    optimum = closed_form(data, ETA * laplacian + L2 * np.eye(5))
    least, _ = primal_and_dual(data, laplacian, "squared", optimum, np.zeros((5, 9, 3)))
    ours = train_method(fl.Mocha(graph, ETA, local_epochs=3), federation, 100).scores[-1].objective
    assert ours == pytest.approx(least, abs=1e-10)
    above = []
    for lr in (0.1, 0.05):
        method = fl.FedU(graph, ETA, lr=lr, local_steps=1)
        there = train_method(method, federation, int(9 / lr), start=torch.from_numpy(optimum))
        above.append(there.scores[-1].objective - ours)
    assert 0 < above[1] < 1e-2 * ours
    assert 3.5 < above[0] / above[1] < 4.5  # the distance goes as lr, J as its square


def duals(data, federation, laplacian, loss, method, sample, rounds=8):
    """P and D after each round, from 0 on."""
    pairs = [primal_and_dual(data, laplacian, loss, np.zeros((5, 15)), np.zeros((5, 9, 3)))]
    for done in range(1, rounds + 1):
        result = train_method(method, federation, done, sample=sample)
        pairs.append(primal_and_dual(data, laplacian, loss, result.models, result.private))
    return np.array(pairs).T


@pytest.mark.parametrize("sample", [0.45, 1.0])
@pytest.mark.parametrize(
    ("kind", "loss"), [("real", "squared"), ("classes", "logistic"), ("classes", "hinge")]
)
def test_the_dual_never_falls_and_stays_below(small, kind, loss, sample):
    data, federation, graph, laplacian = small[kind]
    method = fl.Mocha(graph, ETA, loss=loss, aggregation=0.8, drop=0.2, least_work=0.5, local_epochs=2)
    primal, dual = duals(data, federation, laplacian, loss, method, sample)
    assert (np.diff(dual) >= -1e-12).all()
    assert dual[-1] > dual[0] + 0.1
    assert dual.max() <= primal.min()


def test_with_too_little_safety_the_dual_falls(small):
    data, federation, graph, laplacian = small["real"]
    method = fl.Mocha(graph, ETA, safety=0.1, local_epochs=4)
    _, dual = duals(data, federation, laplacian, "squared", method, 1.0, rounds=4)
    assert np.diff(dual).min() < -0.1


def test_the_safe_bound_is_tight_and_within_the_paper_s(small):
    """tr(UA⁻¹Uᵀ) ≤ σ′ Σ_k q_k‖u_k‖² for any changes of the sampled, with equality for some."""
    data, federation, graph, laplacian = small["classes"]
    inverse = np.linalg.inv(ETA * laplacian + L2 * np.eye(len(data)))
    method, _ = bind_algorithm(fl.Mocha(graph, ETA), federation, fl.models.linear(l2=L2))
    server = method.init_server(torch.zeros(len(data), 15, dtype=torch.float64))
    bounds = []
    for ids in ([0, 1, 2, 3, 4], [3, 1, 4], [2]):
        block, q = inverse[np.ix_(ids, ids)], np.diag(inverse)[ids]
        sigma = method.send(server, torch.tensor(ids)).step.numpy().ravel() / q
        bounds.append(sigma[0])
        assert np.ptp(sigma) < 1e-12
        assert sigma[0] <= (np.abs(inverse)[ids].sum(1) / q).max() + 1e-12  # the paper's, over everyone
        u = np.random.default_rng(0).normal(size=(500, len(ids)))
        ratio = np.einsum("ik,kl,il->i", u, block, u) / (u**2 @ q)
        top = np.linalg.eigh(block / np.sqrt(np.outer(q, q)))[1][:, -1] / np.sqrt(q)
        assert ratio.max() <= sigma[0] + 1e-12
        assert top @ block @ top / (top**2 @ q) == pytest.approx(sigma[0])
    assert bounds[0] > bounds[1] > bounds[2] == pytest.approx(1)


@pytest.mark.parametrize("loss", LOSSES)
def test_more_passes_solve_the_subproblem_better(small, loss):
    """θ = (G(Δα) − G*) / (G(0) − G*) of every client, from where a few rounds have led."""
    data, federation, graph, _ = small["classes"]
    method = fl.Mocha(graph, ETA, loss=loss)
    model = Model(fl.models.linear().build(federation.inputs, OUTPUTS), federation.loss, L2)
    clients = PlacedClients.of([federation], [SEED], model, 4, torch.device("cpu"), torch.float64)
    ids = clients.sort_by_count(torch.arange(len(data)))
    before = train_method(method, federation, 2)
    method = before.algorithm
    received = method.send(before.server, ids)
    w, step = received.model, received.step

    def subproblem(passes):
        task = StackTask(clients, clients.build_cohort(ids), 3, LocalWork(passes, True))
        a, u = method.local(before.private[ids], received, task)
        conjugates = [conjugate(loss, a[k, : len(y)].numpy(), y).sum() / len(y)
               for k, (_, y) in enumerate(data[federation.clients[i]] for i in ids)]  # fmt: skip
        return np.array(conjugates) + ((w * u).sum(1) + step[:, 0] / 2 * u.square().sum(1)).numpy()

    start = [conjugate(loss, before.private[i, : len(y)].numpy(), y).sum() / len(y)
             for i, (_, y) in ((i, data[federation.clients[i]]) for i in ids)]  # fmt: skip
    least = subproblem(60)
    theta = np.array([(subproblem(passes) - least) / (np.array(start) - least) for passes in (1, 2, 4, 8)])
    assert (theta[0] < 1).all()
    assert (np.diff(theta, axis=0) < 0).all()
    assert (theta > -1e-9).all()
    assert theta[-1].max() < 0.2 * theta[0].max()


def test_a_learned_relation_is_the_best_with_its_trace(small):
    data, federation, graph, _ = small["real"]
    count, unit = len(data), np.eye(len(data))
    method = fl.Mocha(graph, ETA, learn_every=3, local_epochs=1)
    results = {rounds: train_method(method, federation, rounds) for rounds in (3, 5, 6)}

    def relation(result):
        return (np.linalg.inv(result.server.inverse.numpy()) - L2 * unit) / ETA

    def cost(omega, W):
        """Return tr(WΩWᵀ) + ε tr Ω, which the step from W lowers."""
        return np.trace(omega @ (W @ W.T + EPSILON * unit))

    # The last changes are in V, and Ω is still that of round 3.
    W = results[5].server.inverse.numpy() @ results[6].server.sums.values.numpy()
    old, new = relation(results[3]), relation(results[6])
    for omega in (old, new):
        assert np.linalg.eigvalsh(omega).min() > 0
        assert np.trace(np.linalg.inv(omega)) == pytest.approx(1, abs=1e-9)
    assert np.abs(relation(results[5]) - old).max() < 1e-6 * np.abs(old).max()
    assert cost(new, W) < cost(old, W)
    assert cost(new, W) < cost(count * unit, W)
    rng = np.random.default_rng(0)
    for size in (0.01, 0.1, 1.0):
        turn = unit + size * rng.normal(size=(count, count))
        other = turn @ np.linalg.inv(new) @ turn.T
        assert cost(new, W) < cost(np.linalg.inv(other / np.trace(other)), W)
    # α stays feasible and the certificate holds for the new Ω, with W = VA⁻¹ computed again.
    result = results[6]
    primal, dual = primal_and_dual(data, new, "squared", result.models, result.private)
    assert result.scores[-1].gap == pytest.approx(primal - dual, rel=1e-6)
    assert result.scores[-1].objective == pytest.approx(primal, rel=1e-6)


def test_the_alternation_lowers_its_objective(small):
    """P + λ₁ε tr Ω, with W nearly solved for between two learnings of Ω."""
    _, federation, graph, _ = small["real"]
    method = fl.Mocha(graph, ETA, learn_every=10, local_epochs=3)
    costs = []
    for rounds in (19, 29, 39):
        result = train_method(method, federation, rounds)
        relation = (torch.linalg.inv(result.server.inverse) - L2 * torch.eye(5)) / ETA
        costs.append(result.scores[-1].objective + ETA / 2 * EPSILON * relation.trace().item())
        assert result.scores[-1].gap < 1e-3
    assert costs[0] > costs[1] > costs[2]


def test_shrinkage_comes_from_the_model(small):
    _, federation, graph, _ = small["classes"]
    for l2, shrinkage, expected in ((0.02, None, 0.01), (0.0, None, 1e-3), (0.02, 0.3, 0.3)):
        method, _ = bind_algorithm(fl.Mocha(graph, shrinkage=shrinkage), federation, fl.models.linear(l2=l2))
        assert method._shrinkage == expected


def test_the_start_does_not_matter(small):
    _, federation, graph, _ = small["classes"]
    one, other = (
        train_method(fl.Mocha(graph), federation, 2, start=torch.full((15,), value)) for value in (0.0, 3.0)
    )
    assert torch.equal(one.models, other.models)


def test_what_has_no_such_dual_is_refused(small):
    _, federation, graph, _ = small["classes"]
    for model in (fl.models.mlp((5,)), fl.models.module(torch.nn.Linear(4, 3))):
        with pytest.raises(fl.InputError, match="the dual exists for linear models only"):
            train_method(fl.Mocha(graph), federation, 1, model)
    with pytest.raises(fl.InputError, match="server vertex"):
        train_method(fl.Mocha(fl.Graph.star(federation.clients, server=True)), federation, 1)
    with pytest.raises(fl.InputError, match="'hinge' is for classes"):
        train_method(fl.Mocha(graph, loss="hinge"), small["real"][1], 1)
