"""Preparation of experiments: load data once, build jobs, and pack them into few stacks."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedlap.data.federation import Federation
from fedlap.errors import DivergedError
from fedlap.experiments.content_digest import digest_content
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import locate_errors
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.training import packing
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.packing import SizedJob
from fedlap.training.recorder import RoundEnd
from fedlap.training.result import Result
from fedlap.training.schedule import compute_sample_size
from fedlap.training.scores import Score
from fedlap.training.scoring_interval import choose_interval
from fedlap.training.strength_choice import choose_strength


@dataclass(frozen=True, eq=False)
class Prepared:
    """A resolved experiment and its job."""

    experiment: Experiment
    job: Job
    model: Model  # sized for the data

    @property
    def federation(self) -> Federation:
        """The data of the experiment."""
        return self.job.federation


class Loader:
    """Prepares experiments, and loads data that several experiments share only once."""

    def __init__(self) -> None:
        """Start with no data."""
        self._loaded: dict[str, tuple[Federation, Graph | None]] = {}
        self._contents: dict[str, str] = {}

    def load(self, experiment: Experiment) -> tuple[Federation, Graph | None]:
        """Load the data of an experiment; a fold is taken from the shared data."""
        key = _build_data_key(experiment)
        if key not in self._loaded:
            whole = experiment.model_copy(update={"fold": None})
            has_fold = experiment.fold is not None
            self._loaded[key] = experiment.hold_out_fold(self.load(whole)) if has_fold else experiment.load()
        return self._loaded[key]

    def build_job(self, experiment: Experiment) -> tuple[Job, Model]:
        """Build the job and the model, sized for the data; raise InputError if they cannot be trained."""
        algorithm, federation, architecture = experiment.build(self.load(experiment))
        with locate_errors(algorithm=experiment.algorithm):
            algorithm = choose_strength(
                algorithm, federation, architecture, experiment.schedule, experiment.seed
            )
            compute_sample_size(algorithm, experiment.sample, len(federation.clients))
            _, model = bind_algorithm(algorithm, federation, architecture)
        return Job(algorithm, federation, architecture, experiment.seed), model

    def prepare(self, experiment: Experiment) -> Prepared:
        """Resolve an experiment and build its job; raise InputError if it cannot be trained."""
        key = _build_data_key(experiment)
        job, model = self.build_job(experiment)
        if key not in self._contents:
            self._contents[key] = digest_content(job.federation)
        every = choose_interval(job, experiment.schedule)
        return Prepared(experiment.resolve(job.algorithm, self._contents[key], every), job, model)

    def clear(self) -> None:
        """Release all data."""
        self._loaded.clear()
        self._contents.clear()


def prepare(experiments: Sequence[Experiment]) -> Iterator[Prepared]:
    """Prepare experiments one by one; raise InputError for one that cannot be trained."""
    loader = Loader()
    yield from map(loader.prepare, experiments)


def train_stack(
    prepared: Sequence[Prepared],
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[RoundEnd], None] | None = None,
) -> list[Result | DivergedError]:
    """Train the runs of one stack together."""
    return fit_all([run.job for run in prepared], prepared[0].experiment.schedule, on_score, on_round)


def pack_prepared(prepared: Sequence[Prepared]) -> list[list[int]]:
    """Return stacks as lists of indices into `prepared`, ordered by the first index."""
    return packing.pack_jobs([SizedJob(run.job, run.model, run.experiment.schedule) for run in prepared])


def _build_data_key(experiment: Experiment) -> str:
    """Return a key that is equal for experiments with equal data."""
    fields = ("data", "partition", "scarce", "fold", "seed")
    return json.dumps([getattr(experiment, field) for field in fields], default=str)
