"""Weights of training rows: each client minimises Σ ω_i ℓ_i / Σ ω_i, in every engine and for every method."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap import theory
from fedlap.errors import UnsuitedError
from fedlap.models import Batch
from fedlap.personal.coefficients import compute_coefficients
from fedlap.training.worker import Worker
from fit_results import same
from laws import LINEAR, METHODS, WORK
from random_inputs import random_arrays

COUNTS = [8, 22, 6, 12, 40, 10]
WEIGHTED = [name for name in METHODS if name != "mocha"]
every_method = pytest.mark.parametrize("name", WEIGHTED)
both_tasks = pytest.mark.parametrize("real", [False, True], ids=["classes", "targets"])


def draw_weights(mean=2):
    """Return integer weights per client, some of them 0, whose mean is the same for every client."""
    rng = np.random.default_rng(1)
    weights = {}
    for place, count in enumerate(COUNTS):
        half = rng.integers(0, 2 * mean + 1, count // 2)
        weights[chr(ord("a") + place)] = rng.permutation(np.concatenate([half, 2 * mean - half]))
    return weights


def build(arrays, weight=None, scale="pooled", test_share=0.0):
    real = arrays["a"][1].dtype.kind == "f"
    labels = None if real else 3
    return fl.Federation.from_arrays(arrays, test_share, 3, labels=labels, scale=scale, weight=weight)


def train(name, federation, graph, kind="steps", **schedule):
    method = METHODS[name]
    schedule = {
        "rounds": 4,
        "batch": 4,
        "seed": 5,
        "dtype": "float64",
        "evaluate_every": 2,
        "score_training": "always",
        **schedule,
    }
    return fl.fit(method.make(graph, **WORK[kind]), federation, method.model, **schedule)


def check_close(one, other, tolerance=1e-9):
    assert (one.models - other.models).abs().max() < tolerance
    for field in ("train_loss", "objective"):
        pairs = [[getattr(score, field) for score in result.scores] for result in (one, other)]
        assert np.allclose(*pairs, rtol=tolerance, atol=0)


ARRAYS = random_arrays(COUNTS)


@pytest.fixture(scope="module")
def survey():
    return build(ARRAYS, draw_weights(), test_share=0.25)


def list_trials(first, later):
    """Return every method with the first setting, and with the later one, which is slow for most methods."""
    marks = {name: [] if name in ("fedu", "perfedavg") else [pytest.mark.slow] for name in WEIGHTED}
    trials = [pytest.param(name, first, id=f"{name}-{first}") for name in WEIGHTED]
    return trials + [pytest.param(name, later, id=f"{name}-{later}", marks=marks[name]) for name in WEIGHTED]


@pytest.mark.parametrize(("name", "kind"), list_trials("steps", "epochs"))
def test_stacked_is_one_by_one(name, kind, survey, graph):
    how = {"sample": 0.5 if METHODS[name].sampled else 1.0}
    together, apart = (
        train(name, survey, graph, kind, **how, engine=engine) for engine in ("stacked", "one_by_one")
    )
    check_close(together, apart)
    assert together.scores[-1].loss == pytest.approx(apart.scores[-1].loss, rel=1e-9)


def test_stacked_is_one_by_one_for_real_targets_and_networks(graph):
    federation = build(random_arrays(COUNTS, labels=2, real=True), draw_weights(), test_share=0.25)
    for model in (LINEAR, fl.models.mlp((5,))):
        one, other = (
            fl.fit(
                fl.FedU(graph, strength=0.3),
                federation,
                model,
                rounds=5,
                dtype="float64",
                engine=engine,
                score_training="always",
            )
            for engine in ("stacked", "one_by_one")
        )
        check_close(one, other)
        assert one.scores[-1].rmse == pytest.approx(other.scores[-1].rmse, rel=1e-9)


@pytest.mark.parametrize("name", [name for name in WEIGHTED if name != "fedfomo"])  # it counts rows
def test_an_integer_weight_is_a_repeated_row(name, graph):
    """With full gradients, constants of scaling included; all clients have the same mean weight."""
    weights = draw_weights()
    repeated = {n: (np.repeat(x, weights[n], 0), np.repeat(y, weights[n])) for n, (x, y) in ARRAYS.items()}
    one = train(name, build(ARRAYS, weights), graph, batch="all")
    other = train(name, build(repeated), graph, batch="all")
    check_close(one, other)
    unweighted = train(name, build(ARRAYS), graph, batch="all")
    assert (one.models - unweighted.models).abs().max() > 1e-4


@pytest.mark.parametrize("scale", ["pooled", "client"])
@both_tasks
def test_scaling_counts_rows_by_their_weights(scale, real):
    arrays, weights = random_arrays(COUNTS, labels=2, real=real), draw_weights()
    repeated = {n: (np.repeat(x, weights[n], 0), np.repeat(y, weights[n], 0)) for n, (x, y) in arrays.items()}
    one, other = build(arrays, weights, scale), build(repeated, None, scale)
    for constants in ("shift", "factor"):
        assert torch.allclose(getattr(one.scale, constants), getattr(other.scale, constants), rtol=1e-12)
    if real:
        assert torch.allclose(one.target_scale.deviation, other.target_scale.deviation, rtol=1e-12)


@pytest.mark.parametrize(("name", "batch"), list_trials("all", 4))
def test_the_values_of_a_row_of_weight_zero_change_nothing(name, batch, graph):
    weights = draw_weights()
    poisoned = {
        n: (np.where((weights[n] == 0)[:, None], 100.0, x), np.where(weights[n] == 0, 2 - y, y))
        for n, (x, y) in ARRAYS.items()
    }
    one, other = (train(name, build(data, weights), graph, batch=batch) for data in (ARRAYS, poisoned))
    check_close(one, other, 1e-12)


@every_method
def test_equal_weights_are_no_weights(name, graph):
    equal = {n: np.full(len(y), 0.1) for n, (_, y) in ARRAYS.items()}
    same(train(name, build(ARRAYS, equal, "none"), graph), train(name, build(ARRAYS, None, "none"), graph))


@both_tasks
def test_the_training_loss_is_weighted_and_test_scores_are_not(real, graph):
    arrays, weights = random_arrays(COUNTS, labels=1 if real else 3, real=real), draw_weights()
    federation = build(arrays, weights, "none", test_share=0.25)
    result = train("fedu", federation, graph)
    score, losses, tests = result.scores[-1], [], []
    for k in range(6):
        for rows, found in ((federation.train, losses), (federation.test, tests)):
            x, y = rows.client(k)
            out = result.objective.scores(result.models[k : k + 1], x.unsqueeze(0))
            found.append(result.objective.loss_function.values(out, y.unsqueeze(0))[0])
    means = torch.stack(
        [
            (values * federation.train.get_client_weight(k)).sum()
            / federation.train.get_client_weight(k).sum()
            for k, values in enumerate(losses)
        ]
    )
    count = federation.train.count
    assert score.train_loss == pytest.approx(float((means * count).sum() / count.sum()), rel=1e-12)
    assert score.loss == pytest.approx(float(torch.cat(tests).mean()), rel=1e-12)
    ridge = result.objective.ridge(result.models).sum()
    penalty = 0.3 / 2 * graph.smoothness(result.models)
    assert score.objective == pytest.approx(float(means.sum() + ridge + penalty), rel=1e-12)


def test_resuming_is_exact_and_other_weights_are_refused(survey, graph):
    same(
        train("scaffold", survey, graph, rounds=5, resume=train("scaffold", survey, graph, rounds=2)),
        train("scaffold", survey, graph, rounds=5),
    )
    first = train("fedu", survey, graph, rounds=2)
    other = {name: values + 1 for name, values in draw_weights().items()}
    changed = replace(survey, train=build(ARRAYS, other, test_share=0.25).train)
    with pytest.raises(fl.InputError, match="the training rows of client 'a' differ"):
        train("fedu", changed, graph, rounds=3, resume=first)


def test_folds_train_on_weights_and_validate_without_them(survey):
    fold = survey.fold(4, 1)
    assert fold.test.weight is None
    assert len(fold.train.weight) == len(fold.train.row)
    by_row = dict(zip(survey.train.row.tolist(), survey.train.weight.tolist(), strict=True))
    assert fold.train.weight.tolist() == [by_row[row] for row in fold.train.row.tolist()]


def test_a_fold_never_holds_out_all_the_weight_of_a_client():
    weights = {name: np.eye(1, len(y))[0] for name, (_, y) in ARRAYS.items()}  # one row per client
    federation = build(ARRAYS, weights)
    for number in range(4):
        fold = federation.fold(4, number)
        assert (fold.train.sum_weights() == 1).all()
    assert len(fold.test.row) < len(federation.train.row) / 4


def test_the_strength_is_chosen_with_weights(survey, graph):
    chosen = fl.fit(fl.FedU(graph, strength="auto"), survey, LINEAR, rounds=5)
    assert chosen.algorithm.strength >= 0


@pytest.mark.parametrize("fast", [False, True])
def test_a_worker_uses_its_weights(fast, survey, graph):
    result = train("local", survey, graph, engine="stacked" if fast else "one_by_one")
    for k, client in enumerate(survey.clients):
        parts = {"train": survey.train.reorder([k]), "test": survey.test.reorder([k])}
        alone = replace(survey, clients=(client,), **parts)
        method = METHODS["local"].make(graph, **WORK["steps"])
        worker = Worker(method, alone, LINEAR, survey.roster, seed=5, batch=4, dtype="float64", fast=fast)
        for round in range(1, 6):  # The last round is never merged.
            worker.local(round, None, merged=round - 1)
        assert (worker.personal_model(None) - result.models[k]).abs().max() < 1e-9


def test_the_optimum_is_that_of_repeated_rows(graph):
    weights = draw_weights()
    repeated = {n: (np.repeat(x, weights[n], 0), np.repeat(y, weights[n])) for n, (x, y) in ARRAYS.items()}
    method = fl.FedU(graph, strength=0.3)
    problems = [
        theory.LaplacianProblem.of(method, data, LINEAR) for data in (build(ARRAYS, weights), build(repeated))
    ]
    one, other = (theory.find_optimum(problem) for problem in problems)
    assert (one.W - other.W).abs().max() < 1e-9
    bounds = [theory.bound_curvature(problem) for problem in problems]
    assert bounds[0].beta == pytest.approx(bounds[1].beta, rel=1e-12)


def test_the_gradient_variance_is_that_of_all_batches(graph):
    federation = build(ARRAYS, draw_weights())
    problem = theory.LaplacianProblem.of(fl.FedU(graph, strength=0.3), federation, LINEAR, batch=2)
    W, expected = problem.initial_models(0), 0.0
    for k in range(6):
        (x, y), weight = problem.client_rows(k), problem.client_weights(k)
        assert weight.mean() == pytest.approx(1)
        w = W[k : k + 1].expand(len(x), -1)
        batch = Batch(x.unsqueeze(1), y.unsqueeze(1), weight.unsqueeze(1))
        gradients = replace(problem.model, l2=0.0).gradient(w.contiguous(), batch)
        means = torch.stack([gradients[list(rows)].mean(0) for rows in combinations(range(len(x)), 2)])
        assert torch.allclose(means.mean(0), gradients.mean(0))  # mini-batches are unbiased
        expected += float((means - gradients.mean(0)).square().sum(1).mean())
    assert problem.gradient_variance(W) == pytest.approx(expected, rel=1e-9)


def test_coefficients_of_weighted_rows_have_no_standard_errors(graph):
    federation = build(random_arrays(COUNTS, labels=1, real=True), draw_weights())
    result = train("fedu", federation, graph)
    found = compute_coefficients(federation, result.objective, result.algorithm, result.models)
    assert "not known for weighted rows" in found.remark
    assert found.errors.isnan().all()
    assert found.values.isfinite().all()


def test_mocha_refuses_weights(survey, graph):
    with pytest.raises(UnsuitedError, match="mocha: the dual is that of rows with equal weights"):
        train("mocha", survey, graph)
    train("mocha", build(ARRAYS, {name: np.full(len(y), 3.0) for name, (_, y) in ARRAYS.items()}), graph)


def test_batch_norm_refuses_weights_of_zero(survey, graph):
    layers = torch.nn.BatchNorm1d(4, track_running_stats=False), torch.nn.Linear(4, 3)
    module = fl.models.module(torch.nn.Sequential(*layers))
    with pytest.raises(UnsuitedError, match=r"module: rows of a batch affect each other.*weight 0"):
        fl.fit(fl.Local(), survey, module, rounds=1)
    positive = build(ARRAYS, {name: values + 0.5 for name, values in draw_weights().items()})
    one, other = (
        fl.fit(
            fl.Local(), positive, module, rounds=2, dtype="float64", engine=engine, score_training="always"
        )
        for engine in ("stacked", "one_by_one")
    )
    check_close(one, other)
