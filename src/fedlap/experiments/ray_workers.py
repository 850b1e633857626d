"""Actors of Ray that run whole tasks."""

import os
import platform
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
import torch
from ray.exceptions import RayActorError

from fedlap.errors import InputError
from fedlap.experiments.plugins import PLUGINS_VARIABLE, list_plugin_files, load_plugins
from fedlap.experiments.workers import WorkerTask
from fedlap.training.shards.cluster import ClusterSettings
from fedlap.training.shards.ray_session import (
    count_workers,
    explain_errors,
    shorten_error,
    start_ray,
    stop_ray,
)

STOP_CHECK_SECONDS: Final = 0.1  # between two checks for a request to stop
ATTEMPTS: Final = 2  # per task, if its process ends


class TaskActor:
    """A process that runs tasks in a thread, so that it can receive a request to stop."""

    def __init__(self, paths: Sequence[str], folder: str, variables: Mapping[str, str], threads: int) -> None:
        """Import modules from the paths of the first process."""
        sys.path.extend(path for path in paths if path not in sys.path)
        self._folder, self._variables, self._threads = folder, variables, threads
        self._is_set_up, self._stopping = False, threading.Event()

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a task and return its result."""
        if not self._is_set_up:  # here, since Ray does not return the error of a constructor
            self._set_up()
        torch.set_num_threads(self._threads)
        return function(self._stopping.is_set, *arguments)

    def _set_up(self) -> None:
        """Use the folder, the variables and the plugins of the first process."""
        os.environ.update(self._variables)
        if not Path(self._folder).is_dir():
            raise InputError(
                f"folder {self._folder!r} does not exist on machine {platform.node()!r}; run the command in "
                "a folder that all machines share"
            )
        os.chdir(self._folder)
        load_plugins([], lambda text: None)
        self._is_set_up = True

    def stop(self) -> None:
        """Ask the task in progress to end early."""
        self._stopping.set()


class RayWorkers:
    """Workers on one GPU each, or on as many cores as they have threads.

    If this process uses Ray already, that Ray is used, and left running.
    """

    def __init__(
        self, settings: ClusterSettings, threads: int, on_gpu: bool, on_remark: Callable[[str], None]
    ) -> None:
        """Start Ray or join a cluster; raise InputError if that fails, or if the cluster is too small."""
        self._threads, self._on_remark = threads, on_remark
        self._idle, self._busy = list[Any](), dict[Any, tuple[int, Any]]()  # tasks and actors by reference
        self._owns_ray = start_ray(settings, threads)
        self._share: dict[str, Any] = {"num_gpus": 1} if on_gpu else {"num_cpus": threads}
        try:
            self.workers = (
                count_workers(settings, "GPU") if on_gpu else count_workers(settings, "CPU", threads)
            )
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[WorkerTask], should_stop: Callable[[], bool]) -> Iterator[tuple[int, Any]]:
        """Run tasks, and yield the index and the result of each when it ends."""
        waiting, losses, has_stopped = list(range(len(tasks))), Counter[int](), False
        while self._busy or (waiting and not has_stopped):
            if should_stop() and not has_stopped:
                has_stopped = True
                for _, actor in self._busy.values():
                    actor.stop.remote()
            while waiting and len(self._busy) < self.workers and not has_stopped:
                self._start(waiting[0], tasks[waiting.pop(0)])
            ended, _ = ray.wait(list(self._busy), timeout=STOP_CHECK_SECONDS) if self._busy else ([], [])
            for reference in ended:
                task, actor = self._busy.pop(reference)
                with explain_errors():
                    try:
                        result = ray.get(reference)
                    except RayActorError as error:
                        ray.kill(actor)  # It may still run, and lock its folders.
                        losses[task] += 1
                        self._report_loss(losses[task], shorten_error(error))
                        waiting.insert(0, task)
                        continue
                self._idle.append(actor)
                yield task, result

    def close(self) -> None:
        """End all actors, and Ray if it was started here."""
        for actor in [*self._idle, *(actor for _, actor in self._busy.values())]:
            ray.kill(actor)
        self._idle.clear()
        self._busy.clear()
        if self._owns_ray:
            stop_ray()

    def _start(self, number: int, task: WorkerTask) -> None:
        """Start a task in an idle process, or in a new one."""
        if not self._idle:
            make = ray.remote(TaskActor).options(
                max_restarts=0, max_task_retries=0, max_concurrency=2, **self._share
            )
            variables = {name: value for name, value in os.environ.items() if name.startswith("FEDLAP_")}
            variables[PLUGINS_VARIABLE] = os.pathsep.join(list_plugin_files())
            self._idle.append(make.remote(sys.path, str(Path.cwd()), variables, self._threads))
        actor = self._idle.pop()
        with explain_errors():
            self._busy[actor.run.remote(*task)] = number, actor

    def _report_loss(self, losses: int, reason: str) -> None:
        """Report the end of a process; raise InputError if it was the last attempt of its task."""
        if losses >= ATTEMPTS:
            raise InputError(
                f"{losses} workers ended during the same task ({reason}); finished runs are stored: check "
                "the memory of the machines, and repeat the command"
            )
        self._on_remark(f"note: a worker ended ({reason}); its task is repeated")
