"""Which runs are trained together: as many as have enough in common and fit into memory."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedlap.models import Model
from fedlap.training.jobs import Job, kind
from fedlap.training.schedule import Schedule

# The share of free memory that a stack of runs may take.
USABLE = 0.5
_beside = 1  # processes that share the memory
# Parameters at work for each thread of a CPU, about as many as its cache holds: more in one stack are slower
# than one stack after another.
CACHED = 1_000_000


@dataclass(frozen=True, eq=False)
class Sized:
    """A run that is to be made, and what its memory depends on."""

    trial: Job
    model: Model  # of the size that the data ask for
    schedule: Schedule

    def data(self) -> int:
        """About the bytes that its rows take."""
        federation = self.trial.federation
        rows = sum(len(part.row) for part in (federation.train, federation.test))
        return self._number * rows * math.prod(federation.inputs)

    def models(self) -> int:
        """About the bytes of its models, of what is made of them in a round, and of mini-batches."""
        federation, batch, working = self.trial.federation, self.schedule.batch, self._working
        rows = int(federation.train.count.max()) if batch == "all" else batch
        models = 4 * len(federation.clients) + 6 * working
        return self._number * (models * self.model.size + 4 * working * rows * self.model.network.widest)

    def working(self) -> int:
        """The parameters that a step changes."""
        return self._working * self.model.size

    @property
    def _working(self) -> int:
        """How many clients work in a round."""
        return math.ceil(self.schedule.sample * len(self.trial.federation.clients))

    @property
    def _number(self) -> int:
        return torch.finfo(self.schedule.real).bits // 8


def share_memory(processes: int) -> None:
    """Let others, as many as these less this one, have their part of the memory."""
    global _beside
    _beside = processes


def stacks(runs: Sequence[Sized]) -> list[list[int]]:
    """The places of those that are trained together, in the order of their first."""
    alike: dict[Any, list[int]] = {}
    for place, run in enumerate(runs):
        alike.setdefault(_kind(place, run), []).append(place)
    made = []
    for places in alike.values():
        # As even as can be: five runs of which four fit become three and two.
        number = math.ceil(len(places) / _most([runs[place] for place in places]))
        size = math.ceil(len(places) / number)
        made += [places[begin : begin + size] for begin in range(0, len(places), size)]
    return made


def _kind(place: int, run: Sized) -> Any:
    """What runs of one stack have in common; those of a method that is not steady share it with nobody."""
    return (kind(run.trial), run.schedule) if run.schedule.engine == "stacked" else place


def _most(runs: Sequence[Sized]) -> int:
    """How many of these fit: each with rows of its own, or all beside the rows that they share.

    On a CPU the models that are at work should fit into its cache, too.
    """
    usable = int(_free(runs[0].schedule) * USABLE / _beside)
    apart = usable // max(run.data() + run.models() for run in runs)
    shared = sum({id(run.trial.federation): run.data() for run in runs}.values())
    beside = (usable - shared) // max(run.models() for run in runs)
    most = max(1, apart, beside)
    if runs[0].schedule.placed().type == "cpu":
        cached = CACHED * torch.get_num_threads() // max(run.working() for run in runs)
        most = min(most, max(1, cached))
    return most


def _free(schedule: Schedule) -> int:
    """Bytes of memory that are free where runs are computed."""
    device = schedule.placed()
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
