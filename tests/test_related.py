"""Ditto, APFL, FedPer, L2GD and the network lasso: as their papers have them, and what is exactly true."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import fedlap as fl
import reference
from conftest import random_arrays, random_weights
from fedlap.experiment import Experiment
from fedlap.sweeps import prepared

LABELS, FEATURES, HIDDEN, L2, LR, SEED, ROUNDS = 3, 4, 3, 0.02, 0.05, 11, 10
HEAD = HIDDEN * LABELS + LABELS  # parameters of the last layer


@pytest.fixture(scope="module")
def arrays():
    return random_arrays([7, 23, 5, 12, 2, 16], FEATURES, LABELS)


@pytest.fixture(scope="module")
def federation(arrays):
    return fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS)


@pytest.fixture(scope="module")
def graph(federation):
    return fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)


def trained(algorithm, federation, model=None, **schedule):
    schedule = {"rounds": ROUNDS, "batch": 4, "seed": SEED, "dtype": "float64", **schedule}
    return fl.fit(algorithm, federation, model or fl.models.linear(l2=L2), **schedule)


def stack(rows, size=6, seed=0):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distance(one, other):
    return np.abs(np.asarray(one) - np.asarray(other)).max()


# Plain versions. `steps(k, t)` gives the mini-batches of client k in round t, `slope(w, batch)` a gradient.


def rounds(arrays, share):
    """The numbers of rounds, each with the clients that are sampled."""
    return ((t, reference.sampled(list(arrays), SEED, t, share)) for t in range(1, ROUNDS + 1))


def steps_of(arrays, work):
    def steps(k, t):
        x, y = arrays[k]
        for rows in reference.batches(k, len(x), SEED, t, 4, **work):
            yield x[rows], y[rows]

    return steps


def slope(w, batch):
    return reference.gradient(w, *batch, LABELS, L2)


def weighted(models, counts):
    return sum(n * w for n, w in zip(counts, models, strict=True)) / sum(counts)


def plain_ditto(arrays, start, share, work, lam):
    steps = steps_of(arrays, work)
    w, v = start.copy(), {k: start.copy() for k in arrays}
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            mine = w.copy()
            for batch in steps(k, t):
                mine = mine - LR * slope(mine, batch)
            for batch in steps(k, t):
                v[k] = v[k] - LR * (slope(v[k], batch) + lam * (v[k] - w))
            sent.append(mine)
        w = weighted(sent, [len(arrays[k][0]) for k in chosen])
    return np.stack(list(v.values())), w


def plain_apfl(arrays, start, share, work, alpha, adaptive):
    steps = steps_of(arrays, work)
    w, v, a = start.copy(), {k: start.copy() for k in arrays}, dict.fromkeys(arrays, alpha)
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            mine = w.copy()
            for number, batch in enumerate(steps(k, t)):
                mixed = a[k] * v[k] + (1 - a[k]) * mine
                by_mixed = slope(mixed, batch)
                by_mixture = (v[k] - mine) @ by_mixed
                mine, v[k] = mine - LR * slope(mine, batch), v[k] - LR * a[k] * by_mixed
                if adaptive and number == 0:
                    a[k] = min(max(a[k] - LR * by_mixture, 0.0), 1.0)
            sent.append(mine)
        w = sum(sent) / len(sent)
    return np.stack([a[k] * v[k] + (1 - a[k]) * w for k in arrays]), w


def mlp_slope(w, batch):
    """Back-propagation through one hidden layer, sample by sample."""
    cut = np.cumsum([HIDDEN * FEATURES, HIDDEN, LABELS * HIDDEN])
    w1, b1, w2, b2 = np.split(w, cut)
    w1, w2 = w1.reshape(HIDDEN, FEATURES), w2.reshape(LABELS, HIDDEN)
    total = np.zeros_like(w)
    for sample, label in zip(*batch, strict=True):
        inside = w1 @ sample + b1
        h = np.maximum(inside, 0)
        scores = w2 @ h + b2
        p = np.exp(scores - scores.max())
        p /= p.sum()
        p[label] -= 1
        below = (w2.T @ p) * (inside > 0)
        total += np.concatenate([np.outer(below, sample).ravel(), below, np.outer(p, h).ravel(), p])
    return total / len(batch[0]) + L2 * w


def plain_fedper(arrays, start, share, work):
    steps = steps_of(arrays, work)
    base, head = start[:-HEAD].copy(), {k: start[-HEAD:].copy() for k in arrays}
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            w = np.concatenate([base, head[k]])
            for batch in steps(k, t):
                w = w - LR * mlp_slope(w, batch)
            head[k] = w[-HEAD:]
            sent.append(w[:-HEAD])
        base = weighted(sent, [len(arrays[k][0]) for k in chosen])
    return np.stack([np.concatenate([base, head[k]]) for k in arrays])


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


def plain_lasso(arrays, a, start, share, work, eta, smoothing):
    steps, names = steps_of(arrays, work), list(arrays)
    repeats = work.get("steps") or work["epochs"]
    w = {k: start.copy() for k in names}
    for t, chosen in rounds(arrays, share):
        for k in chosen:
            for batch in steps(k, t):
                w[k] = w[k] - LR * slope(w[k], batch)
        pull = {
            k: sum(
                a[i, j] * (w[k] - w[o]) / max(np.linalg.norm(w[k] - w[o]), smoothing)
                for j, o in enumerate(names)
            )
            for i, k in enumerate(names)
        }
        w = {k: w[k] - LR * repeats * eta * pull[k] if k in chosen else w[k] for k in names}
    return np.stack(list(w.values()))


either_work = pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
either_share = pytest.mark.parametrize("share", [0.45, 1.0])


def fields(work):
    return {"lr": LR} | {f"local_{kind}": number for kind, number in work.items()}


def a_start(size=LABELS * FEATURES + LABELS):
    return np.random.default_rng(1).normal(size=size) / 3


@either_work
@either_share
def test_ditto_is_its_algorithm_1(arrays, federation, work, share):
    start = a_start()
    found = trained(fl.Ditto(0.7, **fields(work)), federation, sample=share, start=start)
    models, w = plain_ditto(arrays, start, share, work, 0.7)
    assert distance(found.models, models) < 1e-9
    assert distance(found.server[0], w) < 1e-9
    assert distance(models, w) > 0.01


@either_work
@either_share
@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
def test_apfl_is_its_algorithm_1(arrays, federation, work, share, adaptive):
    start = a_start()
    found = trained(fl.APFL(0.3, adaptive, **fields(work)), federation, sample=share, start=start)
    models, w = plain_apfl(arrays, start, share, work, 0.3, adaptive)
    assert distance(found.models, models) < 1e-9
    assert distance(found.server[0], w) < 1e-9
    assert (found.private[1].std() > 1e-3) == adaptive


@either_work
@either_share
def test_fedper_is_its_algorithms_1_and_2(arrays, federation, work, share):
    start = a_start(HIDDEN * FEATURES + HIDDEN + HEAD)
    model = fl.models.mlp(HIDDEN, l2=L2)
    found = trained(fl.FedPer(**fields(work)), federation, model, sample=share, start=start)
    assert distance(found.models, plain_fedper(arrays, start, share, work)) < 1e-9


@either_work
@either_share
@pytest.mark.parametrize("seed", [3, 5])
def test_l2gd_is_its_algorithm_1(arrays, federation, work, share, seed):
    start = a_start()
    method = fl.L2GD(1.5, 0.4, seed, **fields(work))
    found = trained(method, federation, sample=share, start=start)
    assert distance(found.models, plain_l2gd(arrays, start, share, work, 1.5, 0.4, seed)) < 1e-9
    assert 0 < sum(method.averages(t) for t in range(1, ROUNDS + 1)) < ROUNDS


@either_work
@either_share
def test_the_network_lasso_is_descent_on_its_problem(arrays, federation, graph, work, share):
    start, a = a_start(), graph.weights.matrix().toarray()
    found = trained(fl.NetworkLasso(graph, 0.3, 0.3, **fields(work)), federation, sample=share, start=start)
    assert distance(found.models, plain_lasso(arrays, a, start, share, work, 0.3, 0.3)) < 1e-9


# What is exactly true.


@either_work
@either_share
def test_ditto_that_holds_nobody_back_is_local_beside_fedavg(federation, work, share):
    found, alone, mean = (
        trained(method, federation, sample=share)
        for method in (fl.Ditto(0.0, **fields(work)), fl.Local(**fields(work)), fl.FedAvg(**fields(work)))
    )
    # To rounding: many plain steps are summed where that is fastest, Ditto's are not.
    assert distance(found.models, alone.models) < 1e-14
    assert distance(found.server, mean.server) < 1e-14


def test_ditto_s_penalty_is_how_far_personal_models_are_from_w(federation):
    found = trained(fl.Ditto(0.7, lr=LR), federation)
    penalty = 0.35 * (found.models - found.server).square().sum().item()
    assert penalty > 0.01
    assert found.scores[-1].objective == pytest.approx(losses(found.models, federation) + penalty, rel=1e-6)


def losses(models, federation):
    """Σ_k F_k(w_k), client by client."""
    total = 0.0
    for place, w in enumerate(models):
        at = federation.train.places(place)
        x, y = federation.train.x[at].double(), federation.train.y[at]
        scores = x @ w[:-LABELS].view(LABELS, -1).T + w[-LABELS:]
        total += float(nn.functional.cross_entropy(scores, y) + L2 / 2 * w.square().sum())
    return total


@either_work
def test_apfl_with_its_own_model_alone_is_local(federation, work):
    own = trained(fl.APFL(1.0, **fields(work)), federation, sample=0.5)
    alone = trained(fl.Local(**fields(work)), federation, sample=0.5)
    assert distance(own.models, alone.models) < 1e-12


@either_work
def test_apfl_without_models_of_its_own_is_fedavg_with_equal_counts(work):
    equal = fl.Federation.from_arrays(random_arrays([9] * 6, FEATURES, LABELS), test_share=0, labels=LABELS)
    found = trained(fl.APFL(0.0, **fields(work)), equal, sample=0.5)
    mean = trained(fl.FedAvg(**fields(work)), equal, sample=0.5)
    assert distance(found.models, mean.models) < 1e-12


mlp = fl.models.mlp(HIDDEN, l2=L2)


@either_work
@either_share
def test_fedper_shares_the_base_and_nothing_else(federation, work, share):
    found = trained(fl.FedPer(**fields(work)), federation, mlp, sample=share, dtype="float32")
    assert torch.equal(found.models[:, :-HEAD], found.models[:1, :-HEAD].expand(6, -1))
    heads = found.models[:, -HEAD:]
    assert torch.pdist(heads).min() > 1e-3
    base, sampled = HIDDEN * FEATURES + HIDDEN, 3 if share < 1 else 6
    last = found.scores[-1]
    assert last.bytes_down == ROUNDS * sampled * 4 * base
    assert last.bytes_up == ROUNDS * sampled * 4 * (base + 1)  # the number of rows goes with it


@either_share
def test_fedper_without_personal_layers_is_fedavg(federation, share):
    found = trained(fl.FedPer(0, LR), federation, mlp, sample=share)
    assert torch.equal(found.models, trained(fl.FedAvg(LR), federation, mlp, sample=share).models)


@pytest.mark.parametrize(("model", "layers"), [(mlp, 2), (fl.models.linear(l2=L2), 1)], ids=["mlp", "linear"])
def test_fedper_with_personal_layers_alone_is_local_and_sends_nothing(federation, model, layers):
    found = trained(fl.FedPer(layers, LR), federation, model, sample=0.5)
    assert torch.equal(found.models, trained(fl.Local(LR), federation, model, sample=0.5).models)
    assert found.scores[-1].bytes_up == found.scores[-1].bytes_down == 0
    with pytest.raises(fl.InputError, match=f"personal_layers = {layers + 1}.*{layers} in all"):
        trained(fl.FedPer(layers + 1), federation, model)


@either_work
@either_share
def test_fedper_on_layers_does_not_depend_on_engine_or_order(federation, work, share):
    method = fl.FedPer(**fields(work))
    one, apart, again = (
        trained(method, federation, mlp, sample=share, engine=engine)
        for engine in ("stacked", "one_by_one", "stacked")
    )
    assert distance(one.models, apart.models) < 1e-9
    assert torch.equal(one.models, again.models)
    order = ("d", "a", "f", "c", "b", "e")
    places = [federation.clients.index(client) for client in order]
    turned = trained(method, federation.reordered(order), mlp, sample=share)
    assert distance(turned.models, one.models[places]) < 1e-9


class Odd(nn.Module):
    """A frozen layer, a norm, and a bare parameter, which comes first in the flat row."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.first = nn.Linear(4, 4).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(4, 5), nn.GroupNorm(1, 5))
        self.last = nn.Linear(5, LABELS, bias=False)

    def forward(self, x):
        return self.last(self.block(self.first(x))) * self.scale


@pytest.mark.parametrize(
    ("model", "layers", "head"),
    [
        (fl.models.mlp((6, 5)), 1, 5 * 3 + 3),
        (fl.models.mlp((6, 5)), 2, 5 * 3 + 3 + 6 * 5 + 5),
        (fl.models.module(Odd()), 1, 5 * 3),
        (fl.models.module(Odd()), 2, 5 * 3 + 2 * 5),
        (fl.models.module(Odd()), 3, 5 * 3 + 2 * 5 + 4 * 5 + 5),
    ],
)
def test_fedper_counts_layers_from_the_end(federation, model, layers, head):
    found = trained(fl.FedPer(layers), federation, model, rounds=2, dtype="float32")
    assert found.private.shape == (6, head)
    assert found.server.shape == (1, found.objective.size - head)


def test_fedper_keeps_the_last_layer_of_the_convolutional_network():
    x, y = np.random.default_rng(0).normal(size=(6, 4, 4)), np.arange(6) % 3
    images = fl.Federation.from_arrays({"a": (x, y), "b": (-x, y)}, test_share=0)
    found = trained(fl.FedPer(local_steps=1), images, fl.models.cnn(), rounds=1, dtype="float32")
    assert found.private.shape == (2, 512 * 3 + 3)


def test_l2gd_s_coins_are_the_same_in_every_training_and_fall_as_often_as_they_should():
    method = fl.L2GD(0.1, 0.3, 5)
    coins = [method.averages(t) for t in range(1, 501)]
    assert coins == [coin(5, t, 0.3) for t in range(1, 501)]
    assert np.mean(coins) == pytest.approx(0.3, abs=0.06)
    assert coins != [fl.L2GD(0.1, 0.3, 6).averages(t) for t in range(1, 501)]


def test_l2gd_s_averaging_keeps_the_mean_and_draws_every_model_to_it(federation):
    method = fl.L2GD(1.5, 0.4, 3, lr=LR)
    after = [trained(method, federation, rounds=t).models for t in range(1, ROUNDS + 1)]
    seen = 0
    for t, (before, now) in enumerate(pairwise(after), 2):
        if method.averages(t):
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
    assert method.penalty(*method.begin(W)).item() == pytest.approx(whole.penalty(W, None).item())


@either_work
@either_share
def test_l2gd_whose_coin_never_falls_is_local(federation, work, share):
    found = trained(fl.L2GD(0.0, 1e-12, **fields(work)), federation, sample=share)
    assert torch.equal(found.models, trained(fl.Local(**fields(work)), federation, sample=share).models)


def test_l2gd_without_strength_does_nothing_when_it_averages(federation):
    method = fl.L2GD(0.0, 0.4, 5, lr=LR)
    t = next(t for t in range(2, 20) if method.averages(t))
    before, now = (trained(method, federation, rounds=rounds) for rounds in (t - 1, t))
    assert torch.equal(before.models, now.models)


def test_l2gd_sends_models_only_around_averaging(federation):
    method, size = fl.L2GD(0.5, 0.3, lr=LR), 4 * (LABELS * FEATURES + LABELS)
    found = trained(method, federation, rounds=20, dtype="float32", sample=0.5)
    up, down = np.diff([(0, 0), *((s.bytes_up, s.bytes_down) for s in found.scores)], axis=0).T
    coins = [method.averages(t) for t in range(1, 22)]
    assert up.tolist() == [3 * size * (not now and then) for now, then in pairwise(coins)]
    assert down.tolist() == [3 * (size * now + 2) for now in coins[:20]]  # two coins are two bytes
    assert len(set(up)) == len(set(down)) == 2


def test_the_lasso_s_mixing_is_a_step_along_its_penalty_s_gradient(graph):
    method = fl.NetworkLasso(graph, 0.3, 3.0, lr=LR, local_steps=4)
    W, ids = stack(6), torch.arange(6)
    apart = torch.pdist(W)
    assert apart.min() < 3.0 < apart.max()  # both sides of the smoothing
    given = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(method.penalty(given, None), given)
    assert distance(method.merge(W, ids, W).values, W - LR * 4 * gradient) < 1e-12


@either_work
@either_share
def test_the_lasso_without_strength_or_edges_is_local(federation, graph, work, share):
    alone = trained(fl.Local(**fields(work)), federation, sample=share).models
    empty = fl.Graph.empty(federation.clients)
    for method in (
        fl.NetworkLasso(graph, 0.0, **fields(work)),
        fl.NetworkLasso(empty, 5.0, **fields(work)),
    ):
        assert torch.equal(trained(method, federation, sample=share).models, alone)


@either_share
@pytest.mark.parametrize("server", [False, True], ids=["graph", "star"])
def test_a_very_smooth_lasso_is_fedu_with_its_strength_divided(federation, graph, share, server):
    graph = fl.Graph.star(federation.clients, 0.8, server=True) if server else graph
    lasso = trained(fl.NetworkLasso(graph, 300.0, 1000.0, lr=LR), federation, sample=share)
    fedu = trained(fl.FedU(graph, strength=0.3, lr=LR), federation, sample=share)
    assert distance(lasso.models, fedu.models) < 1e-9
    assert lasso.scores[-1].objective == pytest.approx(fedu.scores[-1].objective, rel=1e-9)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5], [4, 1]], ids=["everyone", "some"])
@pytest.mark.parametrize("far", [1.0, 1e6])
def test_neighbours_in_the_lasso_pull_with_bounded_force(graph, ids, far):
    method = fl.NetworkLasso(graph, 0.3, lr=LR, allow_unstable=True)
    W, ids = far * stack(6), torch.tensor(ids)
    moved = (method.merge(W, ids, W[ids]).values - W[ids]).norm(dim=1)
    most = LR * 5 * 0.3 * torch.from_numpy(graph.weights.matrix().sum(axis=1))[ids]
    assert (moved <= most * (1 + 1e-9)).all()
    assert (moved > 0.05 * most).all()


def test_the_lasso_s_mixing_never_raises_the_penalty_up_to_its_limit(graph):
    limit = 2 * 0.5 / (LR * 5 * graph.rho)
    W, ids = stack(6) / 5, torch.arange(6)
    for share, falls in ((0.999, True), (3.0, False)):
        method = fl.NetworkLasso(graph, share * limit, 0.5, lr=LR, allow_unstable=not falls)
        now, values = W.clone(), []
        for _ in range(60):
            values.append(method.penalty(now, None).item())
            now = method.merge(now, ids, now).values
        assert (np.diff(values).max() <= 0) == falls
    with pytest.raises(fl.InputError, match=r"= 2\.002 > 2.*at most"):
        fl.NetworkLasso(graph, 1.001 * limit, 0.5, lr=LR)


def test_the_lasso_on_a_large_sparse_graph_looks_at_neighbours_alone():
    ring = fl.Graph.ring([str(k) for k in range(2100)])
    W, ids, ups = stack(2100), torch.tensor([0, 5, 2099, 6]), stack(4, seed=1)
    lasso = fl.NetworkLasso(ring, 300.0, 1000.0, lr=LR).merge(W, ids, ups)
    assert distance(lasso.values, fl.FedU(ring, strength=0.3, lr=LR).merge(W, ids, ups).values) < 1e-12


def test_the_lasso_s_default_strength_is_stable_and_is_written_down():
    small, large = (fl.Graph.complete([str(k) for k in range(n)]) for n in (4, 400))
    assert fl.NetworkLasso(small).coupling.eta == 0.01
    assert fl.NetworkLasso(large).coupling.product == pytest.approx(1)
    asked = {"algorithm": {"name": "lasso"}, "graph": {"name": "complete"}, "data": {"name": "digits"}}
    settled = next(prepared([Experiment.of({**asked, "model": {"name": "linear"}})])).experiment
    assert settled.algorithm["strength"] == 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.Ditto(-0.1), "ditto: proximal = -0.1"),
        (lambda: fl.Ditto(float("nan")), "ditto: proximal = nan"),
        (lambda: fl.Ditto(lr=0), "ditto: lr = 0"),
        (lambda: fl.APFL(1.1), "apfl: mixture = 1.1"),
        (lambda: fl.APFL(-0.1), "apfl: mixture = -0.1"),
        (lambda: fl.APFL(lr=-1), "apfl: lr = -1"),
        (lambda: fl.FedPer(-1), "fedper: personal_layers = -1"),
        (lambda: fl.FedPer(lr=0), "fedper: lr = 0"),
        (lambda: fl.FedPer(local_steps=0), "local_steps = 0"),
        (lambda: fl.L2GD(-0.1), "l2gd: strength = -0.1"),
        (lambda: fl.L2GD(probability=0), "l2gd: probability = 0"),
        (lambda: fl.L2GD(probability=1.0), "l2gd: probability = 1"),
        (lambda: fl.L2GD(10.0, 0.1), r"= 13\.5 > 2.*at most 1\.481"),
        (lambda: fl.L2GD(lr=0), "l2gd: lr = 0"),
        (lambda: fl.NetworkLasso(fl.Graph.complete("ab"), -1.0), "lasso: strength = -1"),
        (lambda: fl.NetworkLasso(fl.Graph.complete("ab"), smoothing=0.0), "lasso: smoothing = 0"),
        (lambda: fl.NetworkLasso(fl.Graph.complete("ab"), lr=0), "lasso: lr = 0"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(fl.InputError, match=message):
        make()
