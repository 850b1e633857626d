"""Many experiments, as few stacks of runs as can be."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedlap.data.federation import Federation
from fedlap.errors import DivergedError
from fedlap.experiments.content_digest import content_of
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import locate_errors
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.training import packing
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, suited
from fedlap.training.loop import RoundEnd
from fedlap.training.packing import Sized
from fedlap.training.result import Result
from fedlap.training.schedule import sample_size
from fedlap.training.scores import Score


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment with everything chosen, and what is to be run."""

    experiment: Experiment
    trial: Job
    model: Model  # of the size that the data ask for

    @property
    def federation(self) -> Federation:
        """Its data."""
        return self.trial.federation


class Loader:
    """Makes experiments ready; data that several have in common are loaded once."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._loaded: dict[str, tuple[Federation, Graph | None]] = {}
        self._contents: dict[str, str] = {}

    def load(self, experiment: Experiment) -> tuple[Federation, Graph | None]:
        """Its data, of which folds are cut where they are."""
        key = _data(experiment)
        if key not in self._loaded:
            whole = experiment.model_copy(update={"fold": None})
            cut = experiment.fold is not None
            self._loaded[key] = experiment.folded(self.load(whole)) if cut else experiment.load()
        return self._loaded[key]

    def trial(self, experiment: Experiment) -> tuple[Job, Model]:
        """What is to be run, and the model of the size that the data ask for; what cannot be is refused."""
        algorithm, federation, architecture = experiment.build(self.load(experiment))
        with locate_errors(algorithm=experiment.algorithm):
            sample_size(algorithm, experiment.sample, len(federation.clients))
            _, model = suited(algorithm, federation, architecture)
        return Job(algorithm, federation, architecture, experiment.seed), model

    def ready(self, experiment: Experiment) -> Prepared:
        """With everything chosen; what cannot be run is refused."""
        key = _data(experiment)
        trial, model = self.trial(experiment)
        if key not in self._contents:
            self._contents[key] = content_of(trial.federation)
        return Prepared(experiment.settled(trial.algorithm, self._contents[key]), trial, model)

    def forget(self) -> None:
        """Let go of all data."""
        self._loaded.clear()
        self._contents.clear()


def prepared(experiments: Sequence[Experiment]) -> Iterator[Prepared]:
    """Experiments made ready, each where its turn comes; what cannot be run is refused."""
    loader = Loader()
    yield from map(loader.ready, experiments)


def train_stack(
    ready: Sequence[Prepared],
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[RoundEnd], None] | None = None,
) -> list[Result | DivergedError]:
    """Train runs of one of the `stacks`, side by side."""
    return fit_all([each.trial for each in ready], ready[0].experiment.schedule, on_score, on_round)


def stacks(ready: Sequence[Prepared]) -> list[list[int]]:
    """The places of those that are trained together, in the order of their first."""
    return packing.stacks([Sized(each.trial, each.model, each.experiment.schedule) for each in ready])


def _data(experiment: Experiment) -> str:
    """What fixes an experiment's data."""
    fields = ("data", "partition", "scarce", "fold", "seed")
    return json.dumps([getattr(experiment, field) for field in fields], default=str)
