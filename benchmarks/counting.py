"""Bytes between processes, counted by shards in one process."""

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor

from fedlap.costs.shard_calibration import ClockedCluster

COUNTED_VERBS: Final = ("train", "train_cohort", "merge", "change")


class CountingCluster(ClockedCluster):
    """Shards in this process; adds up the bytes of tensors that reach another process in rounds.

    Rows of a shard for its next step, and what a round changes, stay on the machine of its worker.
    """

    def __init__(self, workers: int) -> None:
        """Start at zero bytes."""
        super().__init__(workers)
        self.moved = 0

    def call(self, shard: int, verb: str, *arguments: Any, returns: int | None = None) -> list[Any]:
        """Call a method of a shard, and count its arguments."""
        if verb in COUNTED_VERBS:
            within = arguments[1 + shard : 2 + shard] if verb == "merge" else ()
            self.moved += count_tensors(arguments) - count_tensors(within)
        return super().call(shard, verb, *arguments, returns=returns)

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """Return the values, which reach the first process."""
        values = super().fetch(references)
        self.moved += count_tensors(values)
        return values


def count_tensors(value: Any) -> int:
    """Return the bytes of all tensors in a value."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(count_tensors, value))
    return count_tensors(list(vars(value).values())) if type(value).__module__.startswith("fedlap.") else 0
