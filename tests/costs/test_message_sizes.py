"""Messages and state of every method that can be planned are counted as in a run."""

from dataclasses import replace

import pytest
from benchmarks.counting import CountingCluster

from fedlap.algorithms import ALGORITHMS
from fedlap.costs.estimate import count_client_traffic, count_spread_bytes
from fedlap.costs.method_sizes import ROUNDS, count_method_sizes
from fedlap.costs.workload import Workload
from fedlap.training.fit import fit_all
from fedlap.training.shards.cluster import ClusterSettings, use_cluster
from fedlap.training.state import list_leaves
from laws import METHODS

CLIENTS = 60
UNPLANNED = {"fedu-learned", "mocha", "fedfomo"}  # whose state grows with the square of the clients
# Settings of the methods of laws.py that the bytes depend on.
SETTINGS = {
    "fedu-sampled": ("fedu", {"neighbours": "sampled"}),
    "fedu-implicit": ("fedu", {"mixing": "implicit"}),
    "fedu-blocks": ("fedu", {"strength": {"1": 1e-9, "3.bias": 1e-9}}),
    "fedu-passing-complete": None,  # the graph of a plan has a degree
    "fedu-passing-large": None,  # the form follows from the number of clients
    "dfedu-blocks": ("dfedu", {"strength": {"1": 1e-9, "3.bias": 1e-9}}),
    "dfedu-blocks-int8": ("dfedu", {"strength": {"1": 1e-9, "3.bias": 1e-9}, "compression": "int8"}),
    "dfedu-implicit": ("dfedu", {"mixing": "implicit", "exchanges": 3}),
    "dfedu-int8": ("dfedu", {"compression": "int8"}),
    "dfedu-top-k": ("dfedu", {"compression": "top-k:0.2"}),
    "fedavg-tuned": ("fedavg", {"fine_tune_steps": 2}),
    "perfedavg-hessian": ("perfedavg", {"form": "hessian"}),
}
# One method of every place where rows meet, with private state and without messages.
FIRST = {"fedu", "dfedu", "scaffold", "fedavg", "local", "dpsgd"}
NAMES = [name for name in METHODS if name not in UNPLANNED and SETTINGS.get(name, True)]


def build_workload(name):
    method = METHODS[name]
    model = ("linear", {}) if method.model.__class__.__name__ == "linear" else ("mlp", {"hidden": (5,)})
    return Workload(
        CLIENTS,
        rows=6,
        test_rows=1,
        features=4,
        graph="ring",
        degree=4,
        algorithm=SETTINGS.get(name, (name, {})),
        model=model,
        sample=0.5 if method.sampled and name not in ("global", "cfl") else 1.0,
        batch=4,
    )


def train(workload):
    (result,) = fit_all([workload.build_job()], workload.build_schedule(ROUNDS))
    return result


def test_all_methods_are_planned_or_refused():
    assert {SETTINGS.get(name, (name, {}))[0] for name in NAMES} | UNPLANNED == set(ALGORITHMS)


@pytest.mark.parametrize("name", NAMES)
def test_messages_and_state_are_those_of_a_run(name):
    workload = build_workload(name)
    sizes = count_method_sizes(workload)
    result = train(workload)
    (score,) = result.scores
    # L2GD decides by draws in which rounds clients send.
    assert ROUNDS * count_client_traffic(workload, sizes) == pytest.approx(
        score.bytes_up + score.bytes_down, rel=0.01
    )
    private = sum(leaf.nbytes for leaf in list_leaves(result.progress.private))
    server = sum(leaf.nbytes for leaf in list_leaves(result.progress.server))
    if name != "global":
        assert sizes.private * CLIENTS == private
        assert sizes.server * CLIENTS + sizes.fixed_server == pytest.approx(server, rel=0.1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow])
        for name in NAMES
        if name not in ("global", "l2gd")
    ],
)
def test_bytes_between_processes_are_those_of_a_run(name):
    """Within a factor of 1.5: neighbours in other shards, and blocks with a sampled client, are means."""
    workload = build_workload(name)
    cluster, moved = CountingCluster(2), []
    with use_cluster(ClusterSettings(2)) as session:
        session.cluster = cluster
        schedule = replace(workload.build_schedule(ROUNDS + 1), engine="ray")
        fit_all([workload.build_job()], schedule, on_round=lambda _: moved.append(cluster.moved))
    planned = count_spread_bytes(workload, count_method_sizes(workload), 2)
    ratio = planned * ROUNDS / moved[ROUNDS - 1]
    assert 1 / 1.5 < ratio < 1.5
