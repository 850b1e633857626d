"""Shards as actors of Ray."""

import sys
from collections.abc import Sequence
from typing import Any, Final

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util import deregister_serializer, register_serializer
from torch import Tensor

from fedlap.errors import InputError
from fedlap.training.shards.cluster import ClusterSettings
from fedlap.training.shards.ray_session import count_workers, explain_errors, start_ray, stop_ray
from fedlap.training.shards.shard import Shard, ShardPlan

THREADS_PER_ACTOR: Final = 1
CHECK_SECONDS: Final = (
    20.0  # between two checks whether the cluster has lost machines, while values are awaited
)


class ShardActor:
    """The process of a shard."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Set up the process; `paths` are those that the first process imports modules from."""
        sys.path.extend(path for path in paths if path not in sys.path)
        torch.set_num_threads(THREADS_PER_ACTOR)
        _register_tensors()
        self._shard: Shard | None = None

    def build(self, kind: type[Shard], plan: ShardPlan) -> None:
        """Build the shard, which reads its rows."""
        self._shard = kind(plan)

    def run(self, verb: str, is_single: bool, *arguments: Any) -> Any:
        """Call a method of the shard; of a tuple with a single entry, return this entry."""
        assert self._shard is not None
        result = self._shard.run(verb, *arguments)
        return result[0] if is_single else result

    def release(self) -> None:
        """Release the memory of the shard."""
        self._shard = None

    def answer(self) -> None:
        """Return at once, which shows that the process has not ended."""


class RayCluster:
    """One actor per shard: on one GPU if the settings say so, else on one core with one thread.

    If this process uses Ray already, that Ray is used, and left running. kind: the class of the shards.
    """

    def __init__(self, settings: ClusterSettings, kind: type[Shard] = Shard) -> None:
        """Start Ray or join a cluster; raise InputError if that fails, or if the cluster is too small."""
        self._kind, self._actors = kind, dict[int, Any]()
        self._owns_ray = start_ray(settings)
        _register_tensors()
        self._resource = "GPU" if settings.on_gpu else "CPU"
        try:
            self.workers = count_workers(settings, self._resource)
        except BaseException:
            self.close()
            raise

    def put(self, value: Any) -> Any:
        """Store a value in the memory of this node, and return a reference."""
        with explain_errors():
            return ray.put(value)

    def start(self, shard: int, plan: Any) -> Any:
        """Build a shard in its process, which is started if there is none; return a reference to wait for."""
        if shard not in self._actors:
            share: dict[str, Any] = {"num_gpus": 1} if self._resource == "GPU" else {"num_cpus": 1}
            make = ray.remote(ShardActor).options(max_restarts=0, max_task_retries=0, **share)
            self._actors[shard] = make.remote(sys.path)
        return self._actors[shard].build.remote(self._kind, plan)

    def call(self, shard: int, verb: str, *arguments: Any, returns: int | None = None) -> list[Any]:
        """Call a method of a shard without waiting, and return references."""
        run = self._actors[shard].run.options(num_returns=returns or 1)
        with explain_errors():
            result = run.remote(verb, returns == 1, *arguments)
        return result if isinstance(result, list) else [result]

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """Wait for values; raise LostShardError if a process has ended before it returned them."""
        while True:
            with explain_errors():
                try:
                    return list(ray.get(list(references), timeout=CHECK_SECONDS))
                except GetTimeoutError:
                    self._check_room()

    def _check_room(self) -> None:
        """Raise InputError if actors wait for a machine in vain, since one was lost."""
        found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room, needed = int(found.get(self._resource, 0)), len(self._actors)
        if room < needed:
            raise InputError(
                f"a machine was lost: {needed} workers need a {self._resource} each, and the cluster has "
                f"{room} left; add a machine or use fewer workers, and resume from the run's folder"
            )

    def find_lost(self, shards: int) -> list[int]:
        """Return the numbers of the shards whose processes have ended; `shards` is the number of all."""
        answers = [self._actors[shard].answer.remote() for shard in range(shards)]
        lost = []
        for shard, answer in enumerate(answers):
            try:
                ray.get(answer)
            except RayActorError:
                lost.append(shard)
                del self._actors[shard]
        return lost

    def release(self) -> None:
        """Release the memory of all shards; their processes wait for other shards."""
        for actor in self._actors.values():
            actor.release.remote()

    def close(self) -> None:
        """End all actors, and Ray if it was started here."""
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        deregister_serializer(Tensor)
        if self._owns_ray:
            stop_ray()


def _register_tensors() -> None:
    """Make Ray send tensors as arrays, without a copy, and receive them as tensors with separate memory.

    How products of matrices are rounded depends on how their memory is aligned.
    """
    register_serializer(Tensor, serializer=_to_array, deserializer=torch.tensor)


def _to_array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()
