"""The gain from the graph where the graph is known."""

import json
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.randomness import draws

SEEDS = 5


def shuffle_clients(graph, seed):
    """Return the clients of a ring in a random order."""
    order = draws(seed, "data").permutation(0, 0, graph.size).tolist()
    return [graph.clients[k] for k in order]


def run_comparison(task, graph, algorithms, seeds=SEEDS):
    """Return the pooled test accuracy, or minus the test loss, of each algorithm and seed from the CLI."""
    command = [
        sys.executable, "-m", "fedlap.cli", "compare", "--data", "synthetic", "--set", f"data.task={task}",
        "--graph", str(graph), "--algorithms", algorithms, "--seeds", f"0-{seeds - 1}", "--rounds", "100",
        "--strength", "0.3", "--lr", "0.05", "--threads", "1", "--set", "evaluate_every=0", "--json",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([*command, "--out", out], capture_output=True, text=True, check=True)
    return {
        name: np.array([s["accuracy"] if task == "classification" else -s["loss"] for s in seeds])
        for name, seeds in json.loads(done.stdout)["algorithms"].items()
    }


@pytest.fixture(scope="module", params=["classification", "regression"])
def task_scores(request, tmp_path_factory):
    names = shuffle_clients(fl.data.synthetic(rows=1, test_rows=0).graph, 0)
    edges = tmp_path_factory.mktemp("graph") / "wrong.csv"
    edges.write_text("".join(f"{a},{b}\n" for a, b in zip(names, names[1:] + names[:1], strict=True)))
    scores = run_comparison(request.param, "known", "fedu,local,global")
    wrong = run_comparison(request.param, edges, "fedu")
    return request.param, {**scores, "true": scores["fedu"], "wrong": wrong["fedu"]}


# The true graph is worth this much, in every seed: points of accuracy, or share of Local's test loss.
MARGIN = {"classification": 0.05, "regression": 0.15}


@pytest.mark.slow
def test_the_true_graph_beats_local_and_global(task_scores):
    task, scores = task_scores
    for other in ("local", "global"):
        gap = scores["true"] - scores[other]
        if task == "regression":
            gap = gap / -scores[other]
        assert gap.min() > MARGIN[task], (other, gap)


@pytest.mark.slow
def test_a_wrong_graph_does_not(task_scores):
    _, scores = task_scores
    best = np.maximum(scores["local"], scores["global"])
    assert (scores["wrong"] - best).mean() < 0, scores


def test_models_are_smooth_on_the_graph_and_not_on_a_wrong_one():
    problem = fl.data.synthetic(seed=0)
    wrong = fl.Graph.ring(shuffle_clients(problem.graph, 0)).align(problem.graph.clients)
    assert 5 * problem.graph.smoothness(problem.models) < wrong.smoothness(problem.models)


@pytest.mark.slow
def test_the_optimum_of_j_is_known():
    """Least squares has a closed form: training comes near its J and never below."""
    problem = fl.data.synthetic("regression", clients=8, features=3, seed=1)
    L2, eta = 0.1, 0.3
    a = problem.graph.weights.matrix().toarray()
    L, size = np.diag(a.sum(1)) - a, 4
    hessian, right = np.kron(eta * L, np.eye(size)) + L2 * np.eye(8 * size), np.zeros(8 * size)
    constant = 0.0
    for k in range(8):
        x, y = (v.numpy() for v in problem.federation.train.client(k))
        z = np.column_stack([x, np.ones(len(x))])
        at = slice(k * size, (k + 1) * size)
        hessian[at, at] += z.T @ z / len(z)
        right[at] = z.T @ y[:, 0] / len(z)
        constant += (y**2).mean() / 2
    best = np.linalg.solve(hessian, right)
    least = constant - right @ best / 2
    result = fl.fit(
        fl.FedU(problem.graph, strength=eta, lr=0.01, local_steps=1),
        problem.federation,
        fl.models.linear(l2=L2),
        rounds=3000,
        batch="all",
        dtype="float64",
        evaluate_every=0,
    )
    gap = result.scores[-1].objective - least
    assert -1e-10 < gap < 1e-3 * least
    assert np.abs(result.models.numpy().ravel() - best).max() < 0.05


def test_pure_in_the_seed():
    one, again, other = (fl.data.load("synthetic", seed=s) for s in (0, 0, 1))
    assert torch.equal(one.train.x, again.train.x)
    assert torch.equal(one.test.y, again.test.y)
    assert not torch.equal(one.train.x[:5], other.train.x[:5])
    assert one.train.count.min() < one.train.count.max()


@pytest.mark.slow
@pytest.mark.parametrize("task", MARGIN)
def test_the_true_graph_wins_in_each_of_twenty_seeds(task):
    scores = run_comparison(task, "known", "fedu,local,global", seeds=20)
    for other in ("local", "global"):
        assert (scores["fedu"] - scores[other]).min() > 0
