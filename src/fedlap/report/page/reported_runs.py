"""Runs as a page needs them: their settings, data, models and graph, from a folder or from memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedlap.algorithms import ALGORITHMS, GraphLearning
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared
from fedlap.experiments.run_folder import ENVIRONMENT_FILE, RunFolder, describe_environment
from fedlap.experiments.stored_run import (
    load_experiment_data,
    load_learned_graph,
    load_result,
    load_trained_models,
)
from fedlap.graph import Graph
from fedlap.personal import Coefficients, Personals, compute_coefficients
from fedlap.report.comparison import Comparison
from fedlap.report.page.client_gains import ClientValues, score_clients, score_models
from fedlap.storage.files import parse_json, read_file
from fedlap.training.jobs import bind_algorithm
from fedlap.training.metrics import Metric
from fedlap.training.result import Result


class ReportedRun(Protocol):
    """A run of a page."""

    @property
    def experiment(self) -> Experiment:
        """The description of the run."""
        ...

    @property
    def learns_graph(self) -> bool:
        """True if the method learns its graph."""
        ...

    def read_environment(self) -> list[tuple[str, Any]]:
        """Return versions, device and threads by name."""
        ...

    def explain_stale_models(self, scored: int) -> str | None:
        """Return why the models do not match the scores of round `scored`; None if they do."""
        ...

    def load_data(self) -> tuple[Federation, Graph | None]:
        """Return the data, and the graph that is part of them; raise InputError if they changed."""
        ...

    def load_graph(self, federation: Federation, known: Graph | None) -> Graph:
        """Return the graph of the run, learned or given, in the order of the clients."""
        ...

    def score_clients(self, federation: Federation, metric: Metric) -> ClientValues:
        """Return the score of each client's model on its test rows."""
        ...

    def load_personals(self) -> Personals:
        """Return the models of all clients."""
        ...

    def compute_coefficients(self, federation: Federation, known: Graph | None) -> Coefficients | None:
        """Return the coefficients of linear models; None for other models."""
        ...

    def load_result(self) -> Result:
        """Return the models, states and scores of the run; raise the error of a diverged run."""
        ...


@dataclass(frozen=True)
class StoredRun(RunFolder):
    """A run in its folder."""

    @property
    def learns_graph(self) -> bool:
        """True if the method learns its graph."""
        name = self.experiment.algorithm["name"]
        return name in ALGORITHMS and issubclass(ALGORITHMS[name], GraphLearning)

    def read_environment(self) -> list[tuple[str, Any]]:
        """Return the versions, device and threads that the run recorded."""
        try:
            return list(parse_json(read_file(self.folder / ENVIRONMENT_FILE)).items())
        except (OSError, ValueError, AttributeError):
            return [("environment", f"not recorded in {self.name}")]

    def explain_stale_models(self, scored: int) -> str | None:
        """Return why the models do not match the scores of round `scored`; None if they do."""
        if self.saved_rounds[:1] == [scored]:
            return None
        saved = next(iter(self.saved_rounds), 0)
        return (
            f"its scores are of round {scored}, but it was trained to round {saved} since; repeat "
            f"the command with --rounds {saved}"
        )

    def load_data(self) -> tuple[Federation, Graph | None]:
        """Load the data, and the graph that is part of them; raise InputError if they changed."""
        return load_experiment_data(self.experiment)

    def load_graph(self, federation: Federation, known: Graph | None) -> Graph:
        """Load the learned graph, or build the graph of the experiment."""
        learned = load_learned_graph(self, federation.clients)
        graph = self.experiment.build_graph(federation, known) if learned is None else learned[1]
        return graph.align(federation.clients)

    def score_clients(self, federation: Federation, metric: Metric) -> ClientValues:
        """Score each client's stored model on its test rows."""
        return score_clients(federation, load_trained_models(self.folder), metric)

    def load_personals(self) -> Personals:
        """Load the models of all clients."""
        return load_trained_models(self.folder)

    def compute_coefficients(self, federation: Federation, known: Graph | None) -> Coefficients | None:
        """Compute the coefficients of the stored models; None if the method is not registered here."""
        if not self.experiment.has_registered_method:
            return None
        personals = load_trained_models(self.folder)
        method, _, architecture = self.experiment.build((federation, known))
        algorithm, model = bind_algorithm(method, federation, architecture)
        rows = [personals.find_position(client) for client in federation.clients]
        return compute_coefficients(federation, model, algorithm, personals.models[rows])

    def load_result(self) -> Result:
        """Load the models, states and scores of the run; raise the error of a diverged run."""
        return load_result(self)


@dataclass(frozen=True)
class ObjectRun(StoredRun):
    """A run in its folder, with the Python objects that it was trained from."""

    prepared: Prepared = field(kw_only=True)

    @property
    def learns_graph(self) -> bool:
        """True if the method learns its graph."""
        return isinstance(self.prepared.job.algorithm, GraphLearning)

    def load_data(self) -> tuple[Federation, Graph | None]:
        """Return the data."""
        return self.prepared.federation, None

    def load_graph(self, federation: Federation, known: Graph | None) -> Graph:
        """Return the learned graph, or the graph of the method."""
        return _find_graph(self.load_result()).align(federation.clients)

    def compute_coefficients(self, federation: Federation, known: Graph | None) -> Coefficients | None:
        """Compute the coefficients of the stored models."""
        result = self.load_result()
        return compute_coefficients(federation, result.objective, result.algorithm, result.models)

    def score_clients(self, federation: Federation, metric: Metric) -> ClientValues:
        """Score each client's stored model on its test rows, also that of a user's module."""
        result = self.load_result()
        return score_models(federation, result.objective, result.models, metric)

    def load_personals(self) -> Personals:
        """Return the models of all clients."""
        return self.load_result().personals

    def load_result(self) -> Result:
        """Load the models, states and scores of the run; raise the error of a diverged run."""
        return load_result(self, self.prepared)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run in memory: its description, and its result or the error that ended it."""

    experiment: Experiment
    outcome: Result | DivergedError

    def load_result(self) -> Result:
        """Return the result; raise the error of a diverged run."""
        if isinstance(self.outcome, DivergedError):
            raise self.outcome
        return self.outcome

    @property
    def learns_graph(self) -> bool:
        """True if the method learns its graph."""
        return isinstance(self.outcome, Result) and isinstance(self.outcome.algorithm, GraphLearning)

    def read_environment(self) -> list[tuple[str, Any]]:
        """Return the versions, device and threads of this process."""
        return list(describe_environment(self.experiment.schedule.resolve_device()).items())

    def explain_stale_models(self, scored: int) -> str | None:
        """Return None: the models are those of the last score."""
        return None

    def load_data(self) -> tuple[Federation, Graph | None]:
        """Return the data."""
        return self.load_result().federation, None

    def load_graph(self, federation: Federation, known: Graph | None) -> Graph:
        """Return the learned graph, or the graph of the method."""
        return _find_graph(self.load_result()).align(federation.clients)

    def score_clients(self, federation: Federation, metric: Metric) -> ClientValues:
        """Score each client's model on its test rows."""
        result = self.load_result()
        return score_models(federation, result.objective, result.models, metric)

    def load_personals(self) -> Personals:
        """Return the models of all clients."""
        return self.load_result().personals

    def compute_coefficients(self, federation: Federation, known: Graph | None) -> Coefficients | None:
        """Compute the coefficients of the models."""
        result = self.load_result()
        return compute_coefficients(federation, result.objective, result.algorithm, result.models)


def _find_graph(result: Result) -> Graph:
    """Return the learned graph of a result, or the graph of its method."""
    if isinstance(result.algorithm, GraphLearning):
        return result.algorithm.learned_graph(result.server, result.progress.clients)
    graph: Graph = vars(result.algorithm)["graph"]
    return graph


@dataclass(frozen=True, eq=False)
class ReportedResults:
    """A comparison, the runs of each row in the order of its seeds, and the command behind them."""

    comparison: Comparison
    runs: Mapping[str, Sequence[ReportedRun]]
    command: str

    @property
    def first_row(self) -> Sequence[ReportedRun]:
        """Runs of the first row, which stand for the common settings."""
        return next(iter(self.runs.values()))

    def rounds(self, row: str) -> int:
        """Return the round of a row's scores; if every run diverged, the requested rounds."""
        finished = self.comparison.finished_runs(row)
        return finished[0][-1].round if finished else self.runs[row][0].experiment.rounds

    def explain_stale_models(self, row: str) -> str | None:
        """Return why the models of a row do not match its scores; None if they do."""
        for run, outcome in zip(self.runs[row], self.comparison.runs[row], strict=True):
            if not isinstance(outcome, DivergedError) and (
                why := run.explain_stale_models(outcome[-1].round)
            ):
                return why
        return None
