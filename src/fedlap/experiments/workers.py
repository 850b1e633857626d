"""Workers that run whole tasks, such as the training of a stack of runs, in other processes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedlap.training.packing import share_memory
from fedlap.training.shards.cluster import ClusterSettings, prepare_import

if TYPE_CHECKING:
    from fedlap.experiments.ray_workers import RayWorkers

# A function and its arguments. In the worker it also gets, first, a function that returns whether to stop.
WorkerTask = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(eq=False)
class TaskWorkers:
    """Ray workers with one task at a time each; they start when they are first needed.

    threads: number of PyTorch threads of a worker. on_remark: called with every remark.
    """

    settings: ClusterSettings = field(default_factory=ClusterSettings)
    threads: int = 1
    on_remark: Callable[[str], None] = lambda text: None
    _opened: "RayWorkers | None" = None

    def open(self, on_gpu: bool = False) -> int:
        """Start the workers, on one GPU each or on cores, and return their number."""
        if self._opened is None:
            prepare_import("training by workers", "workers", self.settings.address)
            from fedlap.experiments.ray_workers import RayWorkers  # Importing Ray takes a second.

            self._opened = RayWorkers(self.settings, self.threads, on_gpu, self.on_remark)
            share_memory(self._opened.workers)
        return self._opened.workers

    def run(
        self, tasks: Sequence[WorkerTask], should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, Any]]:
        """Run tasks, and yield the index and the result of each when it ends; `open` comes before.

        If a stop is requested, tasks in progress are asked to end early, and no other task is started. A task
        whose process ends is repeated once.
        """
        assert self._opened is not None
        return self._opened.run(tasks, should_stop)

    def close(self) -> None:
        """End the workers."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
            share_memory(1)
