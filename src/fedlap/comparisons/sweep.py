"""`fedlap.sweep`: all combinations of values of a method's settings, trained with equal seeds and ranked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlap.algorithms.local_work import BatchSize
from fedlap.comparisons.compare import ModelLike, RowMaker, build_session, list_seeds
from fedlap.comparisons.graphs import GraphLike, list_graphs, resolve_shuffled
from fedlap.comparisons.methods import MethodLike, name_methods, parse_method
from fedlap.comparisons.own_data import DataLike
from fedlap.comparisons.result import ComparisonResult
from fedlap.comparisons.rows import DescribedRow, OwnRow, Row
from fedlap.comparisons.run_rows import BuildTable, run_rows
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fields import Combination, VariedField, combine_values, find_path
from fedlap.experiments.prepare import Loader
from fedlap.report.comparison import Comparison, OutcomesByRow
from fedlap.report.sweep_table import Sweep
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
from fedlap.training.tuning import check_grid


def sweep(
    method: MethodLike,
    data: DataLike,
    model: ModelLike = "linear",
    *,
    vary: Mapping[str, Sequence[Any]],
    graph: GraphLike = "complete",
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
    folder: str | Path | None = None,
    again: bool = False,
    progress: bool = False,
) -> ComparisonResult:
    """Train a method with all combinations of values of its settings, and rank them on test rows.

    Use `fedlap.tune` to choose settings: it never uses test rows.

    method: a name, a method, its class, or a function that takes a federation and returns a method.
    vary: values to try per setting, such as {"strength": [0, 0.01, 0.1]}. If method, data, model and graph
        are names, any field of an experiment can vary, such as "model.hidden" or "batch".
    The other parameters are those of `fedlap.compare`.
    """
    check_grid(vary)
    numbers = list_seeds(seeds)
    schedule = Schedule(
        rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every, score_training
    )
    ((label, _),) = name_methods([method]).items()
    parsed, graphs = parse_method(label, method), list_graphs(graph)
    if len(graphs) > 1:
        raise InputError("graph: a sweep has one graph; vary it, as in vary={'graph': ['ring', 'complete']}")
    maker = RowMaker(data, model, schedule, numbers)
    (row,) = maker.make(label, parsed, graphs)
    rows: Sequence[Row]
    if isinstance(row, DescribedRow):
        name = row.experiment.algorithm["name"]
        fields = [
            resolve_shuffled(VariedField(find_path(key, f"vary {key}", name), list(values)))
            for key, values in vary.items()
        ]
        combinations = combine_values(fields)
        described = maker.describe(parsed, graphs[0] if parsed.takes_graph else None)
        rows = named = build_rows("sweep", combinations, described, numbers[0], Loader())
        algorithms = tuple(dict.fromkeys(row.experiment.algorithm["name"] for row in named))
    else:
        assert isinstance(row, OwnRow)
        known = row.list_setting_names(numbers[0])
        fields = [VariedField(f"algorithm.{key}", list(values)) for key, values in vary.items()]
        for key in vary:
            if key not in known:
                raise unknown_name_error(f"setting of {label}", key, known, field=key)
        combinations = combine_values(fields)
        rows = [
            replace(row, label=combination.label, settings=dict(zip(vary, combination.values, strict=True)))
            for combination in combinations
        ]
        algorithms = (label,)
    session = build_session(folder, again, progress, "sweep")
    build_table = build_sweep_table(combinations, numbers, algorithms)
    return run_rows(rows, numbers, session, build_table, metric=metric, fields=" × ".join(vary))


def build_sweep_table(
    combinations: Sequence[Combination], seeds: Sequence[int], algorithms: tuple[str, ...]
) -> BuildTable:
    """Return a function that builds the table of all combinations."""

    def build(title: str, outcomes: OutcomesByRow, source: str) -> Comparison:
        fields = tuple(field.name for field in combinations[0].fields)
        values = {combination.label: combination.values for combination in combinations}
        controls = tuple(_find_controls(combinations))
        return Sweep(title, list(seeds), outcomes, source, fields, values, algorithms, controls=controls)

    return build


def _find_controls(combinations: Sequence[Combination]) -> Iterator[tuple[str, str]]:
    """Yield pairs of rows that differ only in a graph and its shuffled form."""
    for shuffled in combinations:
        for place, (field, value) in enumerate(zip(shuffled.fields, shuffled.values, strict=True)):
            if isinstance(value, str) and value in field.controls:
                values = list(shuffled.values)
                values[place] = field.controls[value]
                yield replace(shuffled, values=tuple(values)).label, shuffled.label


def build_rows(
    command: str, combinations: Sequence[Combination], common: dict[str, Any], seed: int, loader: Loader
) -> list[DescribedRow]:
    """Build a row per combination; raise if two are equal, since a field is then unused."""
    experiments = build_experiments(command, combinations, common, seed)
    return [
        DescribedRow(label, experiment, loader, names_errors=True)
        for label, experiment in experiments.items()
    ]


def build_experiments(
    command: str, combinations: Sequence[Combination], common: dict[str, Any], seed: int
) -> dict[str, Experiment]:
    """Build an experiment per combination; raise if two are equal, since a field is then unused."""
    unresolved: dict[str, Experiment] = {}
    for combination in combinations:
        experiment = combination.build_experiment(common, seed)
        for label, other in unresolved.items():
            if experiment == other:
                raise InputError(
                    f"{command}: {label} and {combination.label} are the same run, since "
                    f"{experiment.algorithm['name']} does not use this field; vary another field"
                )
        unresolved[combination.label] = experiment
    return unresolved
