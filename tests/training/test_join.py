"""A client that comes after training: exact answers, laws, and what its edges are worth."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms.network_lasso import NetworkLasso

EDGES = {"b": 2.0, "d": 0.5, "e": 1.5}


@pytest.fixture(scope="module")
def newcomer():
    rng = np.random.default_rng(9)
    return rng.normal(size=(30, 4)), rng.integers(0, 3, 30)


def train_neighbours(federation, graph, strength=0.3, scale="none", method=fl.FedU, **how):
    algorithm = method(graph, strength=strength, lr=0.1, local_steps=3)
    how = {"rounds": 5, "dtype": "float64", "seed": 2, **how}
    return fl.fit(algorithm, federation.standardize(scale), fl.models.linear(l2=0.01), **how)


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def slope(w, x, y, l2=0.01):
    """The gradient of the mean cross-entropy of a linear model with an L2 term, in plain NumPy."""
    weight, bias = w[:12].reshape(3, 4), w[12:]
    p = (softmax(x @ weight.T + bias) - np.eye(3)[y]) / len(x)
    return np.concatenate([(p.T @ x).flatten(), p.sum(0)]) + l2 * w


def loss(personal, x, y):
    scores = personal.scores(x)
    return float(torch.nn.functional.cross_entropy(scores, torch.as_tensor(y)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_rounds_it_is_the_weighted_mean(federation, graph, newcomer, dtype):
    result = train_neighbours(federation, graph, dtype=dtype)
    joined = result.join(*newcomer, EDGES, rounds=0, name="z")
    models = dict(zip(result.federation.clients, result.models.double().numpy(), strict=True))
    mean = sum(a * models[name] for name, a in EDGES.items()) / sum(EDGES.values())
    assert joined.client == "z"
    assert joined.parameters.dtype == result.models.dtype
    np.testing.assert_allclose(joined.parameters, mean, rtol=1e-7 if dtype == "float32" else 1e-14, atol=0)
    assert torch.equal(result.join(*newcomer, {"b": 0.7}, rounds=0).parameters, result.models[1])


@pytest.mark.parametrize("method", [fl.FedU, fl.DFedU, NetworkLasso, fl.Local])
def test_steps_and_pull_in_plain_numpy(federation, graph, newcomer, method):
    if method is fl.Local:
        result = fl.fit(
            fl.Local(lr=0.1, local_steps=3), federation, fl.models.linear(l2=0.01), rounds=5, dtype="float64"
        )
    else:
        result = train_neighbours(federation, graph, 0.05, method=method)
    near = {name: result.models[federation.clients.index(name)].numpy() for name in EDGES}
    w = sum(a * near[name] for name, a in EDGES.items()) / sum(EDGES.values())
    for _ in range(4):
        for _ in range(3):
            w = w - 0.1 * slope(w, *newcomer)
        pull = np.zeros_like(w)
        for name, a in EDGES.items():
            far = max(np.linalg.norm(w - near[name]), 0.1) if method is NetworkLasso else 1.0
            pull += a * (w - near[name]) / far
        w = w - (0 if method is fl.Local else 0.1 * 3 * 0.05) * pull
    joined = result.join(*newcomer, EDGES, rounds=4, batch="all")
    np.testing.assert_allclose(joined.parameters, w, rtol=0, atol=1e-12)


def test_the_neighbours_stay_as_they_are(federation, graph, newcomer):
    result = train_neighbours(federation, graph)
    before = result.models.clone()
    joined = result.join(*newcomer, {"b": 1.0}, rounds=3)
    assert torch.equal(result.models, before)
    assert not torch.equal(joined.parameters, before[1])


def test_it_repeats_and_no_order_matters(federation, graph, newcomer):
    result = train_neighbours(federation, graph)
    one = result.join(*newcomer, EDGES, seed=4, batch=5)
    for again in (EDGES, dict(reversed(EDGES.items()))):
        assert torch.equal(result.join(*newcomer, again, seed=4, batch=5).parameters, one.parameters)
    others = [{"seed": 5}, {"name": "other"}, {"rounds": 4}, {"batch": 6}, {"lr": 0.09}]
    for other in others:
        joined = result.join(*newcomer, EDGES, **{"seed": 4, "batch": 5, **other})
        assert not torch.equal(joined.parameters, one.parameters)


def test_it_draws_as_a_client_of_the_same_name_does(federation, newcomer):
    """Local steps of a newcomer are those that Local makes of the same rows from the same start."""
    method = fl.Local(lr=0.1, local_epochs=2)
    result = fl.fit(method, federation, fl.models.mlp(5), rounds=2, dtype="float64")
    alone = fl.Federation.from_arrays({"z": newcomer}, test_share=0, labels=3, scale="none")
    start = result.join(*newcomer, EDGES, rounds=0).parameters
    other = fl.fit(method, alone, fl.models.mlp(5), rounds=3, batch=7, seed=6, start=start, dtype="float64")
    joined = result.join(*newcomer, EDGES, rounds=3, batch=7, seed=6, name="z")
    assert torch.equal(joined.parameters, other.models[0])


@pytest.mark.parametrize("scale", ["none", "pooled", "client"])
def test_its_features_are_scaled_as_the_run_says(federation, graph, newcomer, scale):
    x, y = newcomer
    result = train_neighbours(federation, graph, scale=scale)
    joined = result.join(x, y, EDGES, batch="all")
    assert joined.scale.kind == scale
    if scale == "client":
        np.testing.assert_allclose(joined.scale.shift[0], x.mean(0), atol=1e-12)
        np.testing.assert_allclose(joined.scale.factor[0], 1 / x.std(0), atol=1e-12)
    else:
        assert torch.equal(joined.scale.shift, result.federation.scale.shift)
    seen = (torch.from_numpy(x) - joined.scale.shift) * joined.scale.factor
    torch.testing.assert_close(joined.module()(seen), joined.scores(x), rtol=0, atol=1e-12)


def test_more_rounds_fit_its_rows_better(federation, graph, newcomer):
    result = train_neighbours(federation, graph, 0.01)
    losses = [loss(result.join(*newcomer, EDGES, rounds=r, batch="all"), *newcomer) for r in (0, 1, 5, 20)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.01


def test_names_of_labels_and_regressions(newcomer):
    x, y = newcomer
    named = fl.Federation.from_arrays(
        {"a": (x, y), "b": (x, 2 - y)}, labels=("low", "mid", "high"), scale="none"
    )
    result = fl.fit(fl.FedU(fl.Graph.complete(named.clients)), named, fl.models.linear(), rounds=2)
    by_number = result.join(x, y, {"a": 1})
    by_name = result.join(x, np.array(["low", "mid", "high"])[y], {"a": 1})
    assert torch.equal(by_number.parameters, by_name.parameters)
    with pytest.raises(fl.InputError, match="unknown label 'hihg'; did you mean 'high'"):
        result.join(x[:1], ["hihg"], {"a": 1})
    real = fl.Federation.from_arrays({"a": (x, x @ np.ones((4, 2)))}, scale="none")
    result = fl.fit(fl.Local(), real, fl.models.linear(), rounds=2)
    assert result.join(x, x[:, :2], {"a": 1}).predict(x).shape == (30, 2)
    with pytest.raises(fl.InputError, match="y has 1 targets per row; expected 2"):
        result.join(x, y, {"a": 1})


def test_pictures_and_modules_join_too():
    digits = fl.data.load("digits")
    result = fl.fit(fl.FedU(fl.Graph.complete(digits.clients)), digits, fl.models.linear(), rounds=3)
    x, y = digits.train.client(4)
    joined = result.join(x, y, {"1": 1.0, "4": 2.0})
    assert torch.equal(
        result.join(x.double().numpy(), y.numpy(), {"4": 2.0, "1": 1.0}).parameters, joined.parameters
    )
    with pytest.raises(fl.InputError, match="pictures of bytes; pass whole numbers from 0 to 255"):
        result.join(x / 2, y, {"1": 1.0})
    net = fl.models.module(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    result = fl.fit(fl.Local(), digits, net, rounds=1)
    assert result.join(x, y, {"1": 1.0}).predict(x).shape == y.shape


X = np.zeros((2, 4))


@pytest.mark.parametrize(
    ("arguments", "how", "message"),
    [
        ((X, [0, 1], {}), {}, "name at least one"),
        ((X, [0, 1], {"aa": 1.0}), {}, "unknown client among the neighbours 'aa'"),
        ((X, [0, 1], {"a": -1.0}), {}, "neighbour 'a' = -1.0; expected a finite number above zero"),
        ((X, [0, 1], {"a": float("nan")}), {}, "weight of neighbour 'a' = nan"),
        ((X, [0, 1], {"a": float("inf")}), {}, "weight of neighbour 'a' = inf"),
        ((X, [0, 1], {"a": "1"}), {}, "weight of neighbour 'a' = '1'"),
        ((X, [0, 1], {"a": 100.0}), {}, "weights sum to 100, .* > 2 and the pull"),
        ((X[:, :3], [0, 1], {"a": 1.0}), {}, r"x has shape \(2, 3\); pass at least one row .* shape \(4,\)"),
        ((X[:0], [], {"a": 1.0}), {}, "at least one row"),
        ((X, [0], {"a": 1.0}), {}, "expected real numbers, one entry per row in both"),
        ((X, [0, 3], {"a": 1.0}), {}, "row 1: a label is out of range; expected 0 to 2"),
        ((X, [0, -1], {"a": 1.0}), {}, "row 1: a label is out of range"),
        ((X, [0.5, 1.0], {"a": 1.0}), {}, "y holds real numbers"),
        ((X + np.nan, [0, 1], {"a": 1.0}), {}, "a feature is NaN"),
        ((X, [0, 1], {"a": 1.0}), {"name": "c"}, "client 'c' already exists"),
        ((X, [0, 1], {"a": 1.0}), {"rounds": -1}, "rounds = -1"),
        ((X, [0, 1], {"a": 1.0}), {"batch": 0}, "batch = 0"),
        ((X, [0, 1], {"a": 1.0}), {"lr": 0.0}, "lr = 0.0"),
        ((X + 1e200, [0, 1], {"a": 1.0}), {}, "diverged with lr = .*; lower lr"),
    ],
)  # fmt: skip
def test_mistakes(joinable, arguments, how, message):
    with pytest.raises(fl.InputError, match=message):
        joinable.join(*arguments, **how)


@pytest.fixture(scope="module")
def joinable(federation, graph):
    return train_neighbours(federation, graph, rounds=1)


def test_mocha_needs_a_length(federation, graph, newcomer):
    result = fl.fit(fl.Mocha(graph), federation, fl.models.linear(), rounds=2)
    with pytest.raises(fl.InputError, match="Mocha has no learning rate"):
        result.join(*newcomer, EDGES)
    assert result.join(*newcomer, EDGES, lr=0.05).parameters.isfinite().all()


def without_one(seed, place=3, clients=20):
    """All clients but one around a ring on which models are smooth, and that one's neighbours and rows."""
    problem = fl.data.synthetic(clients=clients, rows=20, test_rows=200, seed=seed)
    names = [name for name in problem.federation.clients if name != str(place)]
    parts = problem.federation.train, problem.federation.test
    train, test = ({name: part.client(int(name)) for name in names} for part in parts)
    rest = fl.Federation.from_arrays(train, test=test, labels=3, scale="none")
    ring = [(str(k), str((k + 1) % clients), 1.0) for k in range(clients)]
    graph = fl.Graph.from_edges([edge for edge in ring if str(place) not in edge], names)
    near = {str((place + side) % clients): 1.0 for side in (-1, 1)}
    return rest, graph, near, parts[0].client(place), parts[1].client(place)


def test_true_edges_are_worth_more_than_a_start_from_scratch():
    """The same steps on the same rows, from the neighbours' models or from the model's own start."""
    gains, strangers = [], []
    for seed in range(6):
        rest, graph, near, rows, (x, y) = without_one(seed)
        method = fl.FedU(graph, strength=0.3, lr=0.1)
        result = fl.fit(method, rest, fl.models.linear(), rounds=30, seed=seed, evaluate_every=0)
        far = {str((int(name) + 10) % 20): 1.0 for name in near}

        def share(predict, x=x, y=y):
            return float((predict(x) == y).double().mean())

        alone = fl.Federation.from_arrays({"new": rows}, test_share=0, labels=3, scale="none")
        scratch = fl.fit(fl.Local(lr=0.1), alone, fl.models.linear(), rounds=5, seed=seed)
        joined = share(result.join(*rows, near, seed=seed).predict)
        gains.append(joined - share(scratch.personal("new").predict))
        strangers.append(joined - share(result.join(*rows, far, seed=seed).predict))
    assert min(gains) > 0
    assert np.mean(gains) > 0.1
    assert np.mean(strangers) > 0.1
