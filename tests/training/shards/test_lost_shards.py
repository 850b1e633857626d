"""Shards that are lost at any call change no bit, of any method. Shards in this process."""

import pytest
import torch

import fedlap as fl
from fedlap.training.shards import cluster
from fedlap.training.shards.engine import MOST_LOSSES
from fedlap.training.state import list_tensors
from laws import METHODS, WORK
from shard_clusters import LosingCluster
from sharded_runs import list_scores, train

ROUNDS = 6
# Merges at the shards, of models and of peers; at the server, with private state; one pooled client; peers
# whose state depends on their graph.
FIRST = {"fedu", "dfedu", "scaffold", "global", "gtvmin"}


@pytest.fixture
def train_losing(federation, graph, monkeypatch):
    """Train a method in three shards that are lost at points; return the result and the cluster."""

    def run(name, points=(), **settings):
        shards = LosingCluster(3, points)
        monkeypatch.setattr(cluster, "open_cluster", lambda _: shards)
        settings = {"rounds": ROUNDS, "evaluate_every": 2, "engine": "ray", **settings}
        return train(name, WORK["steps"], 0.5, federation, graph, **settings), shards

    return run


def choose_points(counts):
    """Return groups of points; each has one call of every verb, before it or after it."""
    places = {
        "before": (lambda calls: 0, lambda calls: calls // 2, lambda calls: calls - 1),
        "after": (lambda calls: calls // 3, lambda calls: 2 * calls // 3),
    }
    return [
        {(verb, when, place(calls)) for (verb, at), calls in counts.items() if at == when}
        for when in places
        for place in places[when]
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow]) for name in METHODS]
)
def test_shards_that_are_lost_at_any_call_change_no_bit(name, train_losing):
    expected, unbroken = train_losing(name)
    groups = choose_points(unbroken.counts)
    assert {"build", "score"} < {verb for verb, *_ in groups[0]}
    for points in groups:
        found, shards = train_losing(name, points)
        assert not shards.points, points
        assert torch.equal(found.models, expected.models), points
        assert list_scores(found) == list_scores(expected), points
        for state in ("server", "private"):
            both = (list_tensors(getattr(result.progress, state)) for result in (found, expected))
            assert all(torch.equal(one, other) for one, other in zip(*both, strict=True)), points


@pytest.mark.parametrize("points", [[], [("train_cohort", "before", 4)]])
def test_a_process_that_ends_at_every_start_is_one_line(points, train_losing):
    """As one does that has not enough memory for its rows."""
    builds = [("build", "before", call) for call in range(3 * len(points), 50)]
    with pytest.raises(fl.InputError, match=f"ended {MOST_LOSSES} times in round . .*use fewer workers"):
        train_losing("fedu", points + builds)


def test_a_process_that_ends_while_it_loads_a_checkpoint_is_replaced(train_losing, monkeypatch):
    first, _ = train_losing("scaffold", rounds=2)
    expected, unbroken = train_losing("scaffold", resume=first)
    assert unbroken.counts["load", "before"] >= 3
    for point in (("load", "before", 1), ("load", "after", 2), ("build", "before", 0)):
        found, shards = train_losing("scaffold", [point], resume=first)
        assert not shards.points, point
        assert torch.equal(found.models, expected.models), point
