"""`fedlap.compare`: methods, also users' own, trained with equal seeds and ranked by paired tests."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS, DEFAULT_METHOD, Algorithm
from fedlap.algorithms.local_work import BatchSize
from fedlap.comparisons.advice import advise
from fedlap.comparisons.graphs import GraphLike, RowGraph, list_graphs
from fedlap.comparisons.methods import BuildMethod, MethodLike, RowMethod, name_methods, parse_method
from fedlap.comparisons.own_data import DataLike, OwnData
from fedlap.comparisons.result import ComparisonResult
from fedlap.comparisons.rows import DescribedRow, OwnRow, Row
from fedlap.comparisons.run_rows import run_rows
from fedlap.comparisons.training import TrainingSession
from fedlap.comparisons.tuning import FOLDS
from fedlap.data.federation import Federation
from fedlap.errors import InputError, check_integer
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Loader
from fedlap.experiments.settings import Section, split_section
from fedlap.graph import Graph
from fedlap.models import Architecture
from fedlap.report.comparison import Comparison, OutcomesByRow
from fedlap.training.schedule import (
    AUTO_INTERVAL,
    DtypeName,
    EngineName,
    KeepName,
    Precision,
    Schedule,
    ScoringInterval,
    TrainingRowsScored,
)

_LOG = logging.getLogger("fedlap")
ModelLike = str | Section | Architecture


def compare(
    methods: str | Sequence[MethodLike] | Mapping[str, MethodLike],
    data: DataLike,
    model: ModelLike = "linear",
    *,
    graph: GraphLike | Sequence[GraphLike] | Mapping[str, GraphLike] = "complete",
    seeds: Iterable[int] = range(5),
    rounds: int = 100,
    batch: BatchSize = 20,
    sample: float = 1.0,
    dtype: DtypeName = "float32",
    device: str = "cpu",
    engine: EngineName = "stacked",
    precision: Precision = "float32",
    keep: KeepName = "auto",
    evaluate_every: ScoringInterval = AUTO_INTERVAL,
    score_training: TrainingRowsScored = "last",
    metric: str | None = None,
    tune: bool = False,
    folds: int = FOLDS,
    folder: str | Path | None = None,
    again: bool = False,
    progress: bool = False,
) -> ComparisonResult:
    """Train several methods with equal seeds and rank them; paired tests compare the leader with the others.

    All methods of a seed have the same data, start, cohorts and batches. Runs that can be stacked train
    together.

    methods: names, methods, classes, or functions that take a federation, or a federation and a graph, and
        return a method; a list, or a dictionary with the labels of the rows.
    data: the name of a data set, a federation, or a function that takes a seed and returns a federation,
        alone or with its known graph.
    model: a name or an architecture, such as fl.models.mlp((20,)) or fl.models.module(net).
    graph: for methods that take one: a name, a Graph, or a function of a federation. Several graphs, as a
        list or by label, give such methods one row per graph; "shuffled" is the graph before it with its
        clients permuted by the seed.
    seeds: seeds of data, starts, sampling and batches; one run per method and seed.
    metric: the metric to show and rank by; default: accuracy for classes, rmse for real targets.
    tune: choose lr and strength of every method and seed by cross-validation on training rows before.
    folds: number of folds for `tune`.
    folder: store runs, table and figure here; finished runs are loaded, and interrupted runs resume.
    again: train stored runs once more.
    progress: show the progress.
    The other parameters are those of `fedlap.fit`.
    """
    numbers = list_seeds(seeds)
    schedule = Schedule(
        rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every, score_training
    )
    graphs = list_graphs(graph)
    maker = RowMaker(data, model, schedule, numbers)
    rows = [
        row
        for label, method in name_methods(methods).items()
        for row in maker.make(label, parse_method(label, method), graphs)
    ]
    session = build_session(folder, again, progress, "compare")
    controls = find_controls([row.label for row in rows], graphs)

    def build_table(title: str, outcomes: OutcomesByRow, source: str) -> Comparison:
        return Comparison(title, numbers, outcomes, source, controls=controls)

    result = run_rows(rows, numbers, session, build_table, metric=metric, folds=folds if tune else None)
    return replace(result, advice=advise(result.comparison, result.runs, tune, _format_argument))


def list_seeds(seeds: Iterable[int]) -> list[int]:
    """Return the seeds without repetitions; raise InputError unless they are integers."""
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):
        raise InputError(
            f"seeds = {seeds!r}; pass a list of seeds, such as [0, 1] or range(5)", field="seeds"
        )
    numbers = list(seeds)
    for seed in numbers:
        check_integer("seeds", seed)
    if not numbers:
        raise InputError("seeds: the list is empty; pass seeds, such as range(5)", field="seeds")
    return list(dict.fromkeys(numbers))


def build_session(folder: str | Path | None, again: bool, progress: bool, function: str) -> TrainingSession:
    """Return the session of a call in Python: remarks are logged, progress goes to standard error."""
    console = None
    if progress:
        from rich.console import Console

        console = Console(stderr=True)
    return TrainingSession(
        None if folder is None else Path(folder).expanduser(),
        again,
        console=console,
        on_remark=lambda text: _LOG.info("%s", text),
        command=f"# fedlap.{function} in Python",
    )


def find_controls(labels: Sequence[str], graphs: Sequence[RowGraph]) -> tuple[tuple[str, str], ...]:
    """Return pairs of rows: a method with a graph, and with the shuffled form of this graph."""
    return tuple(
        (f"{label.removesuffix(f' ({graph.label})')} ({graph.control_of})", label)
        for label in labels
        for graph in graphs
        if graph.control_of is not None and label.endswith(f" ({graph.label})")
    )


def label_row(label: str, graph: RowGraph | None, graphs: Sequence[RowGraph]) -> str:
    """Return the label of a row, with its graph if there are several."""
    return label if graph is None or len(graphs) == 1 else f"{label} ({graph.label})"


class RowMaker:
    """Makes rows with the same data, model and schedule."""

    def __init__(self, data: DataLike, model: ModelLike, schedule: Schedule, seeds: Sequence[int]) -> None:
        """Load nothing yet."""
        self._loader, self._schedule = Loader(), schedule
        self._data_section = _to_section(data)
        self._model_section = _to_section(model)
        self._model: Any = None if self._model_section is not None else model
        experiment = None if self._data_section is None else Experiment.of(self.describe())
        self._data = OwnData(data, seeds, self._loader, experiment)

    def make(self, label: str, method: RowMethod, graphs: Sequence[RowGraph]) -> list[Row]:
        """Return one row per graph for a method that takes one, else one row."""
        chosen: Sequence[RowGraph | None] = graphs if method.takes_graph else [None]
        return [self._make_row(label_row(label, graph, graphs), method, graph) for graph in chosen]

    def _make_row(self, label: str, method: RowMethod, graph: RowGraph | None) -> Row:
        base = Experiment.of(self.describe(method, graph))
        fixed = frozenset(method.section or ()) - {"name"}
        is_described = None not in (method.section, self._data_section, self._model_section)
        if is_described and (graph is None or graph.section is not None):
            return DescribedRow(label, base, self._loader, fixed)
        build = method.build or build_registered(base)
        return OwnRow(label, base, self._data, build, graph, self._model, fixed)

    def describe(self, method: RowMethod | None = None, graph: RowGraph | None = None) -> dict[str, Any]:
        """Describe the parts that have names; the others have defaults that are replaced later."""
        named = {
            "data": self._data_section,
            "model": self._model_section,
            "algorithm": None if method is None else method.section,
            "graph": None if graph is None else graph.section,
        }
        described = {key: value for key, value in named.items() if value is not None}
        defaults = {"algorithm": {"name": DEFAULT_METHOD}, "graph": {"name": "complete"}}
        return {**defaults, **described, **asdict(self._schedule)}


def build_registered(experiment: Experiment) -> BuildMethod:
    """Return a function that builds the registered method of an experiment."""
    name, settings = split_section(experiment.algorithm)

    def build(federation: Federation, graph: Graph | None) -> Algorithm:
        return ALGORITHMS[name](**settings, **({} if graph is None else {"graph": graph}))

    return build


def _to_section(part: Any) -> Section | None:
    """Return the section of a part with a name; None for an object or a function."""
    if isinstance(part, str):
        return {"name": part}
    return dict(part) if isinstance(part, Mapping) else None


def _format_argument(name: str, value: Any) -> str:
    return f"{name}={value!r}"
