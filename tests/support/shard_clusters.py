"""A cluster in this process, for shards without Ray: values are copied on their way, as between processes."""

import copy
from collections import Counter

from fedlap.training.shards.cluster import LostShardError
from fedlap.training.shards.shard import Shard

LOST = object()  # the value of a reference whose shard was lost


class MemoryCluster:
    """Shards in this process; references are one-element lists."""

    def __init__(self, workers):
        self.workers = workers
        self.shards = {}

    def put(self, value):
        return Reference(copy.deepcopy(value))

    def start(self, shard, plan):
        self.shards[shard] = Shard(copy.deepcopy(plan.value))
        return Reference(None)

    def call(self, shard, verb, *arguments, returns=None):
        values = [copy.deepcopy(a.value if isinstance(a, Reference) else a) for a in arguments]
        result = copy.deepcopy(self.shards[shard].run(verb, *values))
        results = [result] if returns is None else list(result)
        assert returns is None or len(results) == returns
        return [Reference(value) for value in results]

    def fetch(self, references):
        return [copy.deepcopy(reference.value) for reference in references]

    def find_lost(self, shards):
        return []

    def release(self):
        self.shards.clear()

    def close(self):
        self.shards.clear()


class Reference:
    def __init__(self, value):
        self.value = value


class LosingCluster(MemoryCluster):
    """Shards in this process that are lost at named points, with what they were about to return.

    points: a verb and "before" or "after" it, and how often it was called before; each loses one shard.
    counts: how often each point was reached.
    """

    def __init__(self, workers, points=()):
        super().__init__(workers)
        self.points, self.counts = set(points), Counter()

    def start(self, shard, plan):
        if self._reaches("build", "before"):
            return Reference(LOST)
        return super().start(shard, plan)

    def call(self, shard, verb, *arguments, returns=None):
        lost = [Reference(LOST)] * (returns or 1)
        arrived = all(not isinstance(a, Reference) or a.value is not LOST for a in arguments)
        if shard not in self.shards or not arrived:
            return lost
        if self._reaches(verb, "before"):
            del self.shards[shard]
            return lost
        results = super().call(shard, verb, *arguments, returns=returns)
        if self._reaches(verb, "after"):
            del self.shards[shard]
            return lost
        return results

    def fetch(self, references):
        if any(reference.value is LOST for reference in references):
            raise LostShardError("a test")
        return super().fetch(references)

    def find_lost(self, shards):
        return [shard for shard in range(shards) if shard not in self.shards]

    def _reaches(self, verb, when):
        """Return whether a shard is lost here, and count the calls."""
        calls = self.counts[verb, when]
        self.counts[verb, when] += 1
        if (verb, when, calls) not in self.points:
            return False
        self.points.remove((verb, when, calls))
        return True
