"""Workers of Ray have GPUs if the run asks for them, and not if the cluster happens to have some."""

import pytest

import fedlap as fl
from fedlap.training.shards import cluster
from fedlap.training.shards.cluster import ClusterSettings, set_variables, use_cluster
from laws import WORK
from shard_clusters import MemoryCluster
from sharded_runs import train

set_variables(None)  # before Ray is imported
ray = pytest.importorskip("ray", reason="needs the extra fedlap[ray]")

from fedlap.training.shards import ray_cluster  # noqa: E402


@pytest.fixture
def resources(monkeypatch):
    """The resources of a cluster, which is not started."""
    found = {"CPU": 8.0, "GPU": 2.0}
    monkeypatch.setattr(ray_cluster, "start_ray", lambda settings: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: found)
    return found


class Actors:
    """Records the options of actors instead of starting them."""

    def __init__(self):
        self.options_of_all = []

    def __call__(self, kind):
        return self

    def options(self, **options):
        self.options_of_all.append(options)
        return self

    def __getattr__(self, name):
        return self

    def remote(self, *_):
        return self


@pytest.mark.parametrize(
    ("on_gpu", "workers", "share"), [(False, 8, {"num_cpus": 1}), (True, 2, {"num_gpus": 1})]
)
def test_a_worker_has_a_core_or_a_gpu(on_gpu, workers, share, resources, monkeypatch):
    actors = Actors()
    monkeypatch.setattr(ray, "remote", actors)
    shards = ray_cluster.RayCluster(ClusterSettings(on_gpu=on_gpu))
    assert shards.workers == workers
    shards.start(0, None)
    (options,) = actors.options_of_all
    assert {name: options[name] for name in options if name.startswith("num")} == share


def test_a_cluster_without_gpus_is_refused(resources):
    resources["GPU"] = 0.0
    with pytest.raises(fl.InputError, match="device = 'cuda', but the cluster has no GPU; use cpu"):
        ray_cluster.RayCluster(ClusterSettings(on_gpu=True))
    resources["GPU"] = 1.0
    with pytest.raises(
        fl.InputError, match="workers = 2, but the cluster has 1 GPU; set workers to at most 1"
    ):
        ray_cluster.RayCluster(ClusterSettings(2, on_gpu=True))


def test_the_device_of_the_run_decides(federation, graph, monkeypatch):
    opened = []

    def open_memory(settings):
        opened.append(settings.on_gpu)
        if settings.on_gpu:
            raise fl.InputError("no GPU in this test")
        return MemoryCluster(2)

    monkeypatch.setattr(cluster, "open_cluster", open_memory)
    arguments = "fedu", WORK["steps"], 0.5, federation, graph
    with use_cluster(ClusterSettings(2)):
        for _ in range(2):
            train(*arguments, engine="ray", rounds=1)
        with pytest.raises(fl.InputError, match="no GPU in this test"):
            train(*arguments, engine="ray", rounds=1, device="cuda")
    assert opened == [False, True]
