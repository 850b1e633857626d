"""Ray: the same bits as shards in one process, for any number of workers, and if processes end."""

import pytest
import torch

from fedlap.training.shards.cluster import ClusterSettings, use_cluster
from fedlap.training.state import list_tensors
from fragile_shards import FragileShard
from laws import METHODS, WORK
from ray_marks import RAY_MARKS
from sharded_runs import list_scores, train

pytestmark = RAY_MARKS

WORKERS = 5
# One method of every kind of merge and of private state; the others are slow, and dfedu is in the next test.
FIRST = ("fedu", "fedu-learned", "global", "scaffold", "mocha", "gtvmin")
ROUNDS = 10  # for every method; test_sharded_training.py trains 20 rounds of each in this process


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The folder of points at which processes end."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def ray_cluster(faults):
    """A session with processes that all tests of this file use."""
    from fedlap.training.shards import cluster, ray_cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLAP_FAULTS", str(faults))
        patch.setattr(
            cluster, "open_cluster", lambda settings: ray_cluster.RayCluster(settings, FragileShard)
        )
        with use_cluster(ClusterSettings(WORKERS)) as session:
            yield session.open()


@pytest.fixture
def workers(ray_cluster, monkeypatch):
    """Set how many of the processes the next runs use."""
    return lambda number: monkeypatch.setattr(ray_cluster, "workers", number)


@pytest.fixture
def train_in_process(shards, monkeypatch):
    """Train in one shard in this process, without the session of Ray."""
    from fedlap.training.shards import cluster

    def run(*arguments, **settings):
        with monkeypatch.context() as patch:
            from shard_clusters import MemoryCluster

            patch.setattr(cluster, "open_cluster", lambda _: MemoryCluster(1))
            with use_cluster(ClusterSettings(1)):
                return train(*arguments, engine="ray", **settings)

    return run


def assert_equal_bits(one, other):
    assert torch.equal(one.models, other.models)
    assert list_scores(one) == list_scores(other)
    for state, same in zip(
        (one.progress.server, one.progress.private),
        (other.progress.server, other.progress.private),
        strict=True,
    ):
        assert type(state) is type(same)
        assert all(torch.equal(a, b) for a, b in zip(list_tensors(state), list_tensors(same), strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow]) for name in METHODS]
)
def test_every_method_has_the_bits_of_shards_in_one_process(
    name, federation, graph, ray_cluster, train_in_process
):
    arguments = name, WORK["steps"], 0.5, federation, graph
    result = train(*arguments, engine="ray", rounds=ROUNDS)
    assert_equal_bits(result, train_in_process(*arguments, rounds=ROUNDS))
    assert (result.models - train(*arguments, rounds=ROUNDS).models).abs().max() <= 1e-9


@pytest.mark.parametrize(
    "name",
    [
        *("fedu", "dfedu", "scaffold"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ditto", "fedper", "pfedme", "mocha")),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_fewer_workers_change_no_bit(name, number, federation, graph, ray_cluster, workers, train_in_process):
    arguments = name, WORK["epochs"], 1.0, federation, graph
    workers(number)
    found = train(*arguments, engine="ray", rounds=ROUNDS)
    assert_equal_bits(found, train_in_process(*arguments, rounds=ROUNDS))


# Every call of a round, before its work and after it, and the calls between rounds.
POINTS = {
    "fedu": [
        "train_cohort-before-3", "train_cohort-after-5", "merge-before-8", "merge-after-11",
        "send_rows-after-10", "penalise-before-20", "score-before-10",
    ],
    "dfedu": ["train_cohort-after-1", "merge-after-20"],
    "scaffold": ["train-before-1", "train-after-7", "score-after-20"],
    "dfedu-implicit": ["train-after-4", "export-before-6"],
}  # fmt: skip


@pytest.mark.parametrize("name", POINTS)
def test_processes_that_end_at_named_points_change_no_bit(
    name, federation, graph, ray_cluster, workers, faults, train_in_process
):
    for point in POINTS[name]:
        (faults / point).touch()
    workers(2)
    arguments = name, WORK["steps"], 0.5, federation, graph
    result = train(*arguments, engine="ray")
    assert list(faults.iterdir()) == []
    assert_equal_bits(result, train_in_process(*arguments))
