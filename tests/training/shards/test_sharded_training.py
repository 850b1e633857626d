"""Clients in shards train as one stack does; the number of shards changes no bit. Shards in this process."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.training.shards.layout import split_blocks
from fedlap.training.shards.shard import Shard
from laws import METHODS, WORK
from sharded_runs import list_scores, train

# Merges at the shards, of models and of peers; at the server, with private state; a learned graph; peers
# whose state depends on their graph. For the other methods, this test is slow.
FEW = {"fedu", "scaffold", "ditto"}  # with blocks of several clients
FIRST = {"fedu", "dfedu-int8", "scaffold", "mocha", "fedu-learned", "gtvmin", "global"}


@pytest.mark.parametrize(
    ("name", "work", "sample"),
    [
        pytest.param(
            name, work, sample, marks=[] if name in FIRST and work == "steps" else [pytest.mark.slow]
        )
        for name in METHODS
        for work, sample in (("steps", 0.5), ("epochs", 1.0))
    ],
)
def test_shards_train_as_one_stack(name, work, sample, federation, graph, shards):
    compare_shards(shards, name, WORK[work], sample, federation, graph)


def compare_shards(shards, *arguments, **settings):
    """Compare one, two and five shards with one stack, and with each other bit for bit."""
    stacked, results = train(*arguments, **settings), []
    for workers in (1, 2, 5):
        shards(workers)
        results.append(train(*arguments, **settings, engine="ray"))
    for result in results:
        assert (result.models - stacked.models).abs().max() <= 1e-9
        for one, other in zip(list_scores(result), list_scores(stacked), strict=True):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-9)
        assert torch.equal(result.models, results[0].models)
        assert list_scores(result) == list_scores(results[0])


@pytest.fixture(scope="module")
def crowd():
    """Clients that are several per block."""
    rng = np.random.default_rng(0)
    counts = rng.integers(3, 9, 100)
    arrays = {f"c{k}": (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for k, n in enumerate(counts)}
    return fl.Federation.from_arrays(arrays, test_share=0.3, labels=3)


RING = fl.Graph.ring([f"c{k}" for k in range(100)])
ADDED = [name for name, m in METHODS.items() if m.make(fl.Graph.ring("abcd")).traits.merges == "sum"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in METHODS],
)
def test_blocks_of_several_clients_train_as_one_stack(name, crowd, shards):
    """Blocks have four clients here, some of whom are sampled, and one in the test above."""
    assert {len(block) for block in split_blocks(100)} == {4}
    # With a strength for six clients, mixing of 100 on a complete graph is stable for a single step.
    work = {"local_steps": 1} if name == "fedu-passing-complete" else WORK["steps"]
    compare_shards(shards, name, work, 0.5, crowd, RING, rounds=6, evaluate_every=3)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "fedavg" else [pytest.mark.slow]) for name in ADDED]
)
def test_a_block_sends_one_sum_of_uploads(name, crowd, shards, monkeypatch):
    """The numbers are those of one stack, and the counted bytes those that clients send."""
    uploads = []

    def spy(shard, *arguments):
        report, up, change = run_shard(shard, *arguments)
        uploads.append(0 if up is None else len(up.models))
        return report, up, change

    run_shard = Shard.train
    monkeypatch.setattr(Shard, "train", spy)
    stacked = train(name, WORK["steps"], 0.9, crowd, RING)
    results = []
    for workers in (1, 2, 5):
        shards(workers)
        uploads.clear()
        results.append(train(name, WORK["steps"], 0.9, crowd, RING, engine="ray"))
        sent = np.reshape(uploads, (20, workers)).sum(1)
        assert sent.max() <= len(split_blocks(100)) < 90
    for result in results:
        assert (result.models - stacked.models).abs().max() <= 1e-9
        assert result.scores[-1].bytes_up == stacked.scores[-1].bytes_up
        assert result.scores[-1].bytes_down == stacked.scores[-1].bytes_down
        assert torch.equal(result.models, results[0].models)


@pytest.mark.parametrize("name", ["fedu", "dfedu", "mocha", "global"])
def test_a_run_resumes_with_another_number_of_shards(name, federation, graph, shards):
    arguments = name, WORK["steps"], 0.5, federation, graph
    shards(2)
    unbroken = train(*arguments, engine="ray", rounds=6)
    first = train(*arguments, engine="ray", rounds=2)
    shards(5)
    resumed = train(*arguments, engine="ray", rounds=6, resume=first)
    assert torch.equal(resumed.models, unbroken.models)
    assert list_scores(resumed)[-1] == list_scores(unbroken)[-1]


def test_a_run_of_one_stack_resumes_in_shards(federation, graph, shards):
    arguments = "fedu", WORK["steps"], 0.5, federation, graph
    shards(3)
    resumed = train(*arguments, engine="ray", rounds=6, resume=train(*arguments, rounds=2))
    assert (resumed.models - train(*arguments, rounds=6).models).abs().max() <= 1e-12


@pytest.mark.parametrize("scale", ["pooled", "client"])
def test_features_and_targets_are_scaled_as_in_one_stack(scale, shards):
    federation, graph = fl.data.load_with_graph("radon", scale=scale)
    settings = {
        "rounds": 3,
        "sample": 0.3,
        "dtype": "float64",
        "evaluate_every": 1,
        "score_training": "always",
    }
    method, model = fl.FedU(graph, strength=0.01), fl.models.linear(l2=0.01)
    stacked = fl.fit(method, federation, model, **settings)
    shards(4)
    sharded = fl.fit(method, federation, model, engine="ray", **settings)
    assert (sharded.models - stacked.models).abs().max() <= 1e-9
    for one, other in zip(list_scores(sharded), list_scores(stacked), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_workers_need_the_engine_that_has_them(federation, graph):
    for setting in ({"workers": 2}, {"address": "auto"}):
        with pytest.raises(fl.InputError, match="set engine to 'ray'"):
            train("fedu", WORK["steps"], 0.5, federation, graph, **setting)


def test_a_missing_extra_is_one_line(federation, graph, monkeypatch):
    monkeypatch.setattr("fedlap.training.shards.cluster.find_spec", lambda name: None)
    with pytest.raises(fl.InputError, match=r"pip install 'fedlap\[ray\]'"):
        train("fedu", WORK["steps"], 0.5, federation, graph, engine="ray")
