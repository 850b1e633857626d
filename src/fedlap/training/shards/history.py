"""Checkpoints of shards and the changes since then, for processes that end unexpectedly."""

from dataclasses import dataclass, field
from typing import Any

from fedlap.training.shards.cluster import Cluster


@dataclass(eq=False)
class ShardHistory:
    """A checkpoint of one shard, and references to the changes of the rounds since then.

    The values stay where they are, until a shard is restored.
    """

    size: int  # clients of the shard
    verb: str  # sets the state of the checkpoint, with …
    value: Any  # … a reference to it
    changes: list[tuple[int, Any]] = field(default_factory=list)  # size in bytes, and a reference
    state_bytes: int = 0  # of the checkpoint

    def add(self, change: Any, changed_bytes: int, clients: int) -> None:
        """Add the change of a finished round, which has new state of some clients."""
        if clients == self.size:  # Nothing older remains.
            self.state_bytes, self.changes = changed_bytes, []
        elif self.changes and not self.changes[-1][0]:
            self.changes.pop()
        self.changes.append((changed_bytes, change))

    @property
    def is_long(self) -> bool:
        """Return whether the changes take more memory than a checkpoint."""
        return len(self.changes) > 1 and sum(size for size, _ in self.changes) > self.state_bytes

    def replace(self, checkpoint: Any, state_bytes: int) -> None:
        """Start again from a checkpoint of the last finished round."""
        self.verb, self.value, self.changes, self.state_bytes = "load", checkpoint, [], state_bytes

    def restore(self, cluster: Cluster, shard: int) -> list[Any]:
        """Bring a new process to the state after the last finished round; return references to wait for."""
        calls = cluster.call(shard, self.verb, self.value)
        if self.changes:
            calls += cluster.call(shard, "change", *(change for _, change in self.changes))
        return calls
