"""MOCHA against its Algorithm 1 written as loops, and its settings."""

import json
import math

import numpy as np
import pytest
import torch

import fedlap as fl
import reference
from conjugate_losses import LOSSES, best
from fedlap.algorithms.mocha import EPSILON
from mocha_problems import ETA, L2, OUTPUTS, SEED, flat, problem, train_method


@pytest.fixture(scope="module")
def problems():
    return {kind: problem([7, 23, 5, 12, 41, 9, 2], kind == "real") for kind in ("classes", "real")}


def plain(data, laplacian, *, rounds, batch, share, loss, gamma, drop, least, learn_every, work):
    """Algorithm 1: clients, mini-batches, rows and labels one after another."""
    names, count = list(data), len(data)
    inverse = np.linalg.inv(ETA * laplacian + L2 * np.eye(count))
    a = {k: np.zeros_like(y) for k, (_, y) in data.items()}
    V = np.zeros((count, OUTPUTS, data[names[0]][0].shape[1]))
    for t in range(1, rounds + 1):
        W = np.einsum("kl,lop->kop", inverse, V)
        clients = reference.draw_cohort(names, SEED, t, share)
        at = [names.index(k) for k in clients]
        q = np.diag(inverse)
        sigma = gamma * np.linalg.eigvalsh((inverse / np.sqrt(np.outer(q, q)))[np.ix_(at, at)]).max()
        key = reference.stream(5, "heterogeneity", t)
        for k in clients:
            (x, y), place = data[k], names.index(k)
            n = len(x)
            chance, more = ((reference.word(key, k, 0, i) + 0.5) / 2**32 for i in (0, 1))
            part = 0 if chance < drop else least + (1 - least) * more
            new, u = a[k].copy(), np.zeros_like(V[place])
            for rows in reference.batches(k, n, SEED, t, batch, **work):
                for i in rows[: math.ceil(part * len(rows))]:
                    for o in range(OUTPUTS):
                        z = x[i] @ (W[place, o] + sigma * q[place] * u[o])
                        b = best(loss, new[i, o], z, y[i, o], sigma * q[place] * x[i] @ x[i] / n)
                        u[o] += (b - new[i, o]) * x[i] / n
                        new[i, o] = b
            a[k] += gamma * (new - a[k])
            V[place] += gamma * u
        if learn_every and t % learn_every == 0:
            rows = flat(np.einsum("kl,lop->kop", inverse, V))
            values, vectors = np.linalg.eigh(rows @ rows.T + EPSILON * np.eye(count))
            covariance = vectors * np.sqrt(values) @ vectors.T
            covariance /= np.trace(covariance)
            inverse = np.linalg.inv(ETA * np.linalg.inv(covariance) + L2 * np.eye(count))
    return flat(np.einsum("kl,lop->kop", inverse, V)), a


STEPS, EPOCHS = {"steps": 3}, {"epochs": 2}
CASES = {
    "steps": (STEPS, {}),
    "epochs": (EPOCHS, {}),
    "steps taken in part": (STEPS, {"gamma": 0.6}),
    "steps of unequal work": (STEPS, {"drop": 0.3, "least": 0.2}),
    "epochs of unequal work": (EPOCHS, {"drop": 0.3, "least": 0.2}),
    "epochs, learned": (EPOCHS, {"learn_every": 3}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "loss"), [("real", "squared"), *(("classes", loss) for loss in LOSSES)])
def test_mocha_is_algorithm_1(problems, kind, loss, case):
    data, federation, graph, laplacian = problems[kind]
    work, changes = CASES[case]
    asked = {"gamma": 1.0, "drop": 0.0, "least": 1.0, "learn_every": 0, **changes}
    method = fl.Mocha(
        graph, ETA, loss=loss, aggregation=asked["gamma"], drop=asked["drop"], least_work=asked["least"],
        work_seed=5, learn_every=asked["learn_every"], **{f"local_{k}": v for k, v in work.items()},
    )  # fmt: skip
    for batch, share in ((4, 0.45), ("all", 1.0)) if not changes else ((4, 0.45),):
        expected, a = plain(
            data, laplacian, rounds=10, batch=batch, share=share, loss=loss, work=work, **asked
        )
        result = train_method(method, federation, 10, batch=batch, sample=share)
        assert np.abs(result.models.numpy() - expected).max() < 1e-9
        assert np.abs(expected).max() > 0.1
        for k, duals in zip(a.values(), result.private.numpy(), strict=True):
            assert np.abs(duals[: len(k)] - k).max() < 1e-9
            assert not duals[len(k) :].any()


def test_the_mean_regulariser_of_the_paper_is_a_complete_graph():
    names = list("abcde")
    centre = torch.eye(5, dtype=torch.float64) - 1 / 5
    assert torch.allclose(
        fl.Graph.complete(names, 1 / 5).apply_laplacian(torch.eye(5).double()), centre @ centre
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strength": -1.0}, "strength = -1"),
        ({"shrinkage": 0.0}, "shrinkage = 0"),
        ({"aggregation": 0.0}, "aggregation = 0"),
        ({"aggregation": 1.5}, "at most 1"),
        ({"safety": 0.0}, "safety = 0"),
        ({"drop": 1.0}, "drop = 1"),
        ({"drop": -0.1}, "drop = -0.1"),
        ({"least_work": 1.1}, "at most 1"),
        ({"learn_every": -1}, "learn_every = -1"),
        ({"local_steps": 1, "local_epochs": 1}, "both set"),
    ],
)
def test_settings_out_of_range_are_refused(graph, settings, words):
    with pytest.raises(fl.InputError, match=words):
        fl.Mocha(graph, **settings)


def test_digits_on_the_command_line(call):
    code, out, _ = call(
        "run", "--data", "digits", "--algorithm", "mocha", "--local-epochs", "1", "--rounds", "20",
        "--set", "evaluate_every=10", "--json",
    )  # fmt: skip
    last = json.loads(out)["last"]
    assert code == 0
    assert last["accuracy"] > 0.95
    assert 0 < last["gap"] < 0.1 * 20 * 10 * math.log(2)
