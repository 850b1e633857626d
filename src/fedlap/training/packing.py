"""Packing of jobs into stacks: jobs with equal keys, as many as fit into memory."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedlap.models import Model
from fedlap.training.jobs import Job, compute_stack_key
from fedlap.training.schedule import Schedule

# Share of free memory for one stack of runs.
STACK_MEMORY_SHARE = 0.5
_process_count = 1  # processes that share the memory
# Parameters updated per CPU thread, about as many as its cache holds: a larger stack is slower than several
# smaller stacks one after another.
CACHED_PARAMETERS_PER_THREAD = 1_000_000


@dataclass(frozen=True, eq=False)
class SizedJob:
    """A job with the model and schedule that determine its memory."""

    job: Job
    model: Model  # sized for the data
    schedule: Schedule

    def estimate_data_bytes(self) -> int:
        """Return the approximate size of the rows."""
        federation = self.job.federation
        rows = sum(len(part.row) for part in (federation.train, federation.test))
        return self._bytes_per_value * rows * math.prod(federation.inputs)

    def estimate_model_bytes(self) -> int:
        """Return the approximate size of the models, of their copies within a round, and of mini-batches."""
        federation, batch, cohort = self.job.federation, self.schedule.batch, self._cohort_size
        rows = int(federation.train.count.max()) if batch == "all" else batch
        models = 4 * len(federation.clients) + 6 * cohort
        return self._bytes_per_value * (
            models * self.model.size + 4 * cohort * rows * self.model.network.widest
        )

    def count_updated_parameters(self) -> int:
        """Return the number of parameters that one step updates."""
        return self._cohort_size * self.model.size

    @property
    def _cohort_size(self) -> int:
        """Number of clients sampled per round."""
        return math.ceil(self.schedule.sample * len(self.job.federation.clients))

    @property
    def _bytes_per_value(self) -> int:
        return torch.finfo(self.schedule.torch_dtype).bits // 8


def share_memory(processes: int) -> None:
    """Divide memory equally among this number of processes, including this one."""
    global _process_count
    _process_count = processes


def pack_jobs(jobs: Sequence[SizedJob]) -> list[list[int]]:
    """Return stacks as lists of indices into `jobs`, ordered by the first index."""
    groups: dict[Any, list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(_compute_group_key(index, job), []).append(index)
    stacks = []
    for group in groups.values():
        # Stacks have nearly equal sizes: five jobs of which four fit become three and two.
        count = math.ceil(len(group) / _compute_stack_limit([jobs[index] for index in group]))
        size = math.ceil(len(group) / count)
        stacks += [group[begin : begin + size] for begin in range(0, len(group), size)]
    return stacks


def _compute_group_key(index: int, job: SizedJob) -> Any:
    """Return a key that is equal for jobs that can be stacked; it is unique without the stacked engine."""
    return (compute_stack_key(job.job), job.schedule) if job.schedule.engine == "stacked" else index


def _compute_stack_limit(jobs: Sequence[SizedJob]) -> int:
    """Return how many jobs fit into memory: each with separate rows, or all next to the rows they share.

    On a CPU, the updated parameters should also fit into its cache.
    """
    memory = int(_measure_free_memory(jobs[0].schedule) * STACK_MEMORY_SHARE / _process_count)
    separate = memory // max(job.estimate_data_bytes() + job.estimate_model_bytes() for job in jobs)
    shared_data = sum({id(job.job.federation): job.estimate_data_bytes() for job in jobs}.values())
    shared = (memory - shared_data) // max(job.estimate_model_bytes() for job in jobs)
    limit = max(1, separate, shared)
    if jobs[0].schedule.resolve_device().type == "cpu":
        parameters = max(job.count_updated_parameters() for job in jobs)
        limit = min(limit, max(1, CACHED_PARAMETERS_PER_THREAD * torch.get_num_threads() // parameters))
    return limit


def _measure_free_memory(schedule: Schedule) -> int:
    """Return the free bytes of memory on the device of a schedule."""
    device = schedule.resolve_device()
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
