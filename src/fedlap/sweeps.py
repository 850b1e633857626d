"""Many experiments, as few stacks of runs as can be."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedlap.contents import content_of
from fedlap.errors import DivergedError
from fedlap.experiment import Experiment
from fedlap.federation import Federation
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.result import Result
from fedlap.rounds import Moment
from fedlap.schedule import sample_size
from fedlap.scores import Score
from fedlap.sections import located
from fedlap.training import fit_all
from fedlap.trials import Trial, kind, suited

# The share of free memory that a stack of runs may take.
USABLE = 0.5


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment with everything chosen, and what is to be run."""

    experiment: Experiment
    trial: Trial
    model: Model  # of the size that the data ask for

    @property
    def federation(self) -> Federation:
        """Its data."""
        return self.trial.federation


def prepared(experiments: Sequence[Experiment]) -> Iterator[Prepared]:
    """Experiments made ready, each where its turn comes; what cannot be run is refused.

    Data that several have in common are loaded once.
    """
    loaded: dict[str, tuple[Federation, Graph | None]] = {}
    contents: dict[str, str] = {}
    for experiment in experiments:
        key = json.dumps(
            [experiment.data, experiment.partition, experiment.scarce, experiment.seed], default=str
        )
        if key not in loaded:
            loaded[key] = experiment.load()
            contents[key] = content_of(loaded[key][0])
        algorithm, federation, architecture = experiment.build(loaded[key])
        with located(algorithm=experiment.algorithm):
            sample_size(algorithm, experiment.sample, len(federation.clients))
            _, model = suited(algorithm, federation, architecture)
        yield Prepared(
            experiment.settled(algorithm, contents[key]),
            Trial(algorithm, federation, architecture, experiment.seed),
            model,
        )


def train_stack(
    ready: Sequence[Prepared],
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[Moment], None] | None = None,
) -> list[Result | DivergedError]:
    """Train runs of one of the `stacks`, side by side."""
    return fit_all([each.trial for each in ready], ready[0].experiment.schedule, on_score, on_round)


def stacks(ready: Sequence[Prepared]) -> list[list[int]]:
    """The places of those that are trained together, in the order of their first."""
    alike: dict[Any, list[int]] = {}
    for place, each in enumerate(ready):
        alike.setdefault(_kind(place, each), []).append(place)
    made = []
    for places in alike.values():
        most = max(1, int(_free(ready[places[0]]) * USABLE) // max(_bytes(ready[place]) for place in places))
        # As even as can be: five runs of which four fit become three and two.
        number = math.ceil(len(places) / most)
        size = math.ceil(len(places) / number)
        made += [places[begin : begin + size] for begin in range(0, len(places), size)]
    return made


def _kind(place: int, ready: Prepared) -> Any:
    """What runs of one stack have in common; those of a method that is not steady share it with nobody."""
    schedule = ready.experiment.schedule
    return (kind(ready.trial), schedule) if schedule.engine == "stacked" else place


def _bytes(ready: Prepared) -> int:
    """About what a run takes: its data, models, what is made of them in a round, and the mini-batches."""
    experiment, federation, model = ready.experiment, ready.federation, ready.model
    rows = sum(len(part.row) for part in (federation.train, federation.test))
    values = math.prod(federation.inputs)
    working = math.ceil(experiment.sample * len(federation.clients))
    batch = int(federation.train.count.max()) if experiment.batch == "all" else experiment.batch
    size = torch.finfo(experiment.schedule.real).bits // 8
    models = 4 * len(federation.clients) + 6 * working
    return size * (rows * values + models * model.size + 4 * working * batch * model.network.widest)


def _free(ready: Prepared) -> int:
    """Bytes of memory that are free where runs are computed."""
    device = ready.experiment.schedule.placed()
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
