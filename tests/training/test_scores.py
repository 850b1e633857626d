import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.errors import InputError
from fedlap.training.scores import Score, Tally, compute_score
from random_inputs import random_arrays, random_weights

L2, ETA = 0.1, 0.2


def tally(loss, hits, count):
    def real(values):
        return torch.tensor(values, dtype=torch.float64)

    return Tally(real(loss), None if hits is None else real(hits), torch.tensor(count))


def score_tally(test, train=None, ridge=None, penalty=0.0):
    clients = len(test.count)
    train = tally([1.0] * clients, None, [1] * clients) if train is None else train
    ridge = torch.zeros(clients, dtype=torch.float64) if ridge is None else ridge
    return compute_score(3, train, test, ridge, penalty, None, (10, 20), 1.5)


def test_pooled_and_mean_over_clients():
    line = score_tally(tally([4.0, 1.0, 30.0], [1, 2, 9], [4, 2, 10]))
    assert line.accuracy == pytest.approx(12 / 16)
    assert line.accuracy_mean == pytest.approx((1 / 4 + 1 + 9 / 10) / 3)
    assert line.accuracy_worst == pytest.approx(1 / 4)
    assert line.loss == pytest.approx(35 / 16)
    assert line.loss_mean == pytest.approx((1 + 1 / 2 + 3) / 3)
    assert line.loss_worst == pytest.approx(3)
    assert line.accuracy_std == pytest.approx(np.std([1 / 4, 1, 9 / 10]))
    assert line.loss_std == pytest.approx(np.std([1, 1 / 2, 3]))
    assert (line.round, line.bytes_up, line.bytes_down, line.seconds) == (3, 10, 20, 1.5)


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (25, 3), (30, 3)])
def test_the_worst_tenth_is_rounded_up(clients, worst):
    hits = np.random.default_rng(0).permutation(clients)
    line = score_tally(tally((hits * 2.0).tolist(), hits.tolist(), [100] * clients))
    assert line.accuracy_worst == pytest.approx(np.arange(worst).mean() / 100)
    assert line.loss_worst == pytest.approx(np.arange(clients)[-worst:].mean() * 2 / 100)


@given(st.integers(1, 40), st.integers(0, 7), st.integers(7, 50))
def test_equal_clients_have_no_spread(clients, hits, count):
    line = score_tally(tally([hits / 3] * clients, [hits] * clients, [count] * clients))
    assert line.accuracy_std == line.loss_std == 0
    assert line.accuracy_mean == pytest.approx(line.accuracy)


def test_the_spread_over_clients_is_that_of_a_population():
    # Half of them right always and half of them never: the deviation from ½ is ½, for everybody.
    line = score_tally(tally([0.0, 3.0] * 4, [5, 0] * 4, [5, 3] * 4))
    assert (line.accuracy_std, line.loss_std) == (0.5, 0.5)
    # One client has no other to differ from.
    alone = score_tally(tally([2.0], [1], [4]))
    assert (alone.accuracy_std, alone.loss_std) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(9, 30)), min_size=1, max_size=15), st.randoms())
def test_the_spread_knows_no_order_and_no_shift(clients, random):
    hits, count = zip(*clients, strict=True)
    line = score_tally(tally([h / 1 for h in hits], list(hits), list(count)))
    shares = np.array(hits) / np.array(count)
    assert line.accuracy_std == pytest.approx(shares.std(), abs=1e-15)
    more = score_tally(
        tally([h + 2.0 * n for h, n in clients], list(hits), list(count))
    )  # each loss is 2 higher
    assert more.loss_std == pytest.approx(line.loss_std, abs=1e-12)
    mixed = list(clients)
    random.shuffle(mixed)
    hits, count = zip(*mixed, strict=True)
    assert score_tally(tally([h / 1 for h in hits], list(hits), list(count))).loss_std == line.loss_std


def test_clients_without_test_rows_do_not_count():
    whole = score_tally(tally([4.0, 0.0, 1.0, 0.0], [1, 0, 2, 0], [4, 0, 2, 0]))
    apart = score_tally(tally([4.0, 1.0], [1, 2], [4, 2]))
    names = [name for name in whole.as_dict() if name.startswith(("accuracy", "loss"))]
    assert [getattr(whole, name) for name in names] == [getattr(apart, name) for name in names]
    # Twelve clients, ten of them tested: the worst tenth is one client.
    line = score_tally(tally([0.0] * 12, [*range(10), 0, 0], [10] * 10 + [0, 0]))
    assert line.accuracy_worst == 0
    assert line.accuracy_mean == pytest.approx(0.45)


def test_no_test_rows_at_all():
    line = score_tally(tally([0.0, 0.0], [0, 0], [0, 0]))
    tests = [value for name, value in line.as_dict().items() if name.startswith(("accuracy", "loss"))]
    assert tests == [None] * 8
    assert line.train_loss == 1


def test_regression_has_no_accuracy():
    line = score_tally(tally([4.0, 1.0], None, [4, 2]))
    assert line.accuracy is line.accuracy_mean is line.accuracy_worst is line.accuracy_std is None
    assert (line.loss, line.loss_mean, line.loss_worst) == pytest.approx((5 / 6, 3 / 4, 1))


def test_train_loss_is_pooled_and_the_objective_is_a_sum():
    train = tally([6.0, 1.0], None, [3, 4])
    line = score_tally(tally([1.0, 1.0], None, [1, 1]), train, torch.tensor([0.5, 0.25]).double(), 7.0)
    assert line.train_loss == pytest.approx(7 / 7)
    assert line.objective == pytest.approx(2 + 1 / 4 + 0.75 + 7)


def losses(w, x, y):
    """The loss of each row under a linear model, in plain NumPy."""
    labels = y.shape[1] if y.dtype.kind == "f" else 3
    out = x @ w[:-labels].reshape(labels, -1).T + w[-labels:]
    if y.dtype.kind == "f":
        return ((out - y) ** 2).sum(1) / 2
    return np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]


def objective(result, a, vertices):
    """J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW)."""
    train = result.federation.train
    total = 0.0
    for k, w in enumerate(result.models.numpy()):
        x, y = (values.numpy() for values in train.client(k))
        total += losses(w, x, y).mean() + L2 / 2 * (w**2).sum()
    return total + ETA / 2 * np.trace(vertices.T @ (np.diag(a.sum(1)) - a) @ vertices)


def train_method(method, federation):
    return fl.fit(
        method,
        federation,
        fl.models.linear(l2=L2),
        rounds=4,
        batch=4,
        seed=2,
        dtype="float64",
        evaluate_every=2,
    )


@pytest.fixture(scope="module", params=[False, True], ids=["classification", "regression"])
def problem(request):
    arrays = random_arrays([7, 23, 5, 12], real=request.param, labels=3 - request.param)
    return fl.Federation.from_arrays(arrays, 0.25, 3, scale="none"), random_weights(arrays)


@pytest.mark.parametrize("name", ["fedu", "fedu sampled", "dfedu", "local", "global"])
def test_the_objective_in_plain_numpy(problem, name):
    federation, a = problem
    graph = fl.Graph.from_matrix(a, federation.clients)
    method = {
        "fedu": fl.FedU(graph, strength=ETA),
        "fedu sampled": fl.FedU(graph, strength=ETA, neighbours="sampled"),
        "dfedu": fl.DFedU(graph, strength=ETA),
        "local": fl.Local(),
        "global": fl.Global(),
    }[name]
    result = train_method(method, federation)
    penalised = a if "fedu" in name else 0 * a
    expected = objective(result, penalised, result.models.numpy())
    assert result.scores[-1].objective == pytest.approx(expected, abs=1e-10)
    if name == "global":
        assert torch.equal(result.models, result.models[:1].expand_as(result.models))
    elif "fedu" in name:
        assert expected > objective(result, 0 * a, result.models.numpy()) + 1e-4


def test_the_objective_of_a_star_with_a_server(problem):
    federation, _ = problem
    result = train_method(
        fl.FedU(fl.Graph.star(federation.clients, 1.5, server=True), strength=ETA), federation
    )
    a = np.zeros((5, 5))
    a[4, :4] = a[:4, 4] = 1.5
    vertices = result.server.models.values.numpy()
    assert np.array_equal(vertices[:4], result.models)
    assert result.scores[-1].objective == pytest.approx(objective(result, a, vertices), abs=1e-10)


@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
def test_test_scores_in_plain_numpy(problem, engine):
    federation, _ = problem
    result = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=3, dtype="float64", engine=engine)
    line, rows, means, shares = result.scores[-1], [], [], []
    for k, name in enumerate(federation.clients):
        x, y = federation.test.client(k)
        rows.append(losses(result.models[k].numpy(), x.numpy(), y.numpy()))
        means.append(rows[-1].mean())
        if federation.labels is not None:
            shares.append((result.predict(name, x) == y).double().mean().item())
    assert (line.loss, line.loss_mean, line.loss_worst, line.loss_std) == pytest.approx(
        (np.concatenate(rows).mean(), np.mean(means), max(means), np.std(means)), abs=1e-12
    )
    if federation.labels is None:
        assert line.accuracy is None
        return
    pooled = np.average(shares, weights=federation.test.count)
    assert (line.accuracy, line.accuracy_mean, line.accuracy_worst, line.accuracy_std) == pytest.approx(
        (pooled, np.mean(shares), min(shares), np.std(shares)), abs=1e-12
    )


def test_scores_without_test_rows():
    federation = fl.Federation.from_arrays(random_arrays([6, 5]), test_share=0, scale="none")
    line = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1).scores[-1]
    assert line.accuracy is line.loss is line.loss_worst is None
    assert math.isfinite(line.objective)


LINE = score_tally(tally([4.0, 1.0], [1, 2], [4, 2]))
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.none() | finite, min_size=11, max_size=11), finite,
       st.lists(st.integers(0, 2**62), min_size=3, max_size=3))  # fmt: skip
def test_a_score_is_read_as_it_was_written(values, seconds, wholes):
    score = Score(wholes[0], *values, *wholes[1:], seconds)
    again = Score.from_dict(json.loads(json.dumps(score.as_dict())))
    assert again == score
    assert [type(value) for value in again.as_dict().values()] == [
        type(value) for value in score.as_dict().values()
    ]


def test_a_score_is_flat():
    assert all(value is None or type(value) in (int, float) for value in LINE.as_dict().values())
    named = [field.name for field in fields(Score)]
    assert list(LINE.as_dict()) == [name for name in named if not name.startswith(("rmse", "mae", "r2"))]
    assert list(replace(LINE, **dict.fromkeys(named[-12:], 1.0)).as_dict()) == named


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accuracy_std": ...}, "accuracy_std is missing"),
        ({"rmse": "0.5"}, "rmse = '0.5'; expected a number or null"),
        ({"round": ..., "seconds": ...}, "round is missing, seconds is missing"),
        ({"colour": 1.0}, "'colour' is unknown"),
        ({"seconds": None}, "seconds = None; expected a number"),
        ({"loss": "0.5"}, "loss = '0.5'; expected a number or null"),
        ({"round": 1.5}, "round = 1.5; expected an integer"),
        ({"seconds": True}, "seconds = True; expected a number"),
        ({"round": [1]}, r"round = \[1\]; expected an integer"),
    ],
)
def test_what_is_no_score_is_refused_in_one_line(change, message):
    values = {name: value for name, value in {**LINE.as_dict(), **change}.items() if value is not ...}
    with pytest.raises(InputError, match=f"^score: {message}") as caught:
        Score.from_dict(values)
    assert "\n" not in str(caught.value)


def test_a_whole_number_may_stand_for_a_real_one():
    read = Score.from_dict({**LINE.as_dict(), "seconds": 2, "loss": 1})
    assert (read.seconds, read.loss) == (2.0, 1.0)
    assert type(read.seconds) is type(read.loss) is float


def test_every_field_is_explained():
    for field in fields(Score):
        assert f"{field.name}:" in Score.__doc__ or f"{field.name}," in Score.__doc__, field.name
