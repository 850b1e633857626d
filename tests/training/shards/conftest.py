import pytest

from fedlap.training.shards import cluster
from shard_clusters import MemoryCluster


@pytest.fixture
def shards(monkeypatch):
    """Set the number of shards of the next runs, which are in this process."""

    def set_workers(workers):
        monkeypatch.setattr(cluster, "open_cluster", lambda settings: MemoryCluster(workers))

    return set_workers
