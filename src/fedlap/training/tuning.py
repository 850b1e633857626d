"""Tuning: cross-validation of a method's settings, on training rows only."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlap.algorithms import Algorithm, Coupled, list_settings
from fedlap.algorithms.coupling import Coupling
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError, unknown_name_error
from fedlap.models import Architecture
from fedlap.summaries import summarise_fields
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.metrics import Metric, check_metric, choose_metric
from fedlap.training.packing import SizedJob, pack_jobs
from fedlap.training.schedule import (
    DtypeName,
    EngineName,
    KeepName,
    Precision,
    Schedule,
    check_algorithm_and_model,
    compute_sample_size,
)
from fedlap.training.scores import Score

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1)
REFERENCE_RATE = 0.03  # the learning rate for which strengths are chosen
STRENGTH_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # multiples of the largest strength with stable mixing


@dataclass(frozen=True, eq=False)
class Candidate:
    """A combination of values, the method with these values, and one last-round score per held-out fold."""

    values: dict[str, Any]
    algorithm: Algorithm
    scores: list[Score | DivergedError]
    metric_name: str | None = None

    __repr__ = summarise_fields

    @property
    def validation(self) -> np.ndarray:
        """The metric on each held-out fold; NaN if training diverged."""
        return np.array(
            [
                math.nan if isinstance(score, DivergedError) else getattr(score, self.metric.name)
                for score in self.scores
            ]
        )

    @property
    def metric(self) -> Metric:
        """The metric that ranks candidates: accuracy for classes and RMSE for real targets by default."""
        scores = [score for score in self.scores if isinstance(score, Score)]
        return choose_metric(scores, self.metric_name)

    @property
    def diverged(self) -> DivergedError | None:
        """The error of the first diverged fold; a candidate with one is never selected."""
        return next((score for score in self.scores if isinstance(score, DivergedError)), None)


@dataclass(frozen=True, eq=False)
class TuningResult:
    """Candidates in the order of the grid, and the combinations that were refused, with their errors."""

    tried: list[Candidate]
    refused: list[tuple[dict[str, Any], InputError]]

    __repr__ = summarise_fields

    @property
    def best(self) -> Candidate:
        """The candidate with the best mean of the metric over folds; the first of a tie."""
        ranked = [candidate for candidate in self.tried if candidate.diverged is None]
        sign = ranked[0].metric.sign
        return max(ranked, key=lambda candidate: float(candidate.validation.mean()) * sign)

    @property
    def algorithm(self) -> Algorithm:
        """The method with the best values."""
        return self.best.algorithm


def tune(
    algorithm: Algorithm,
    federation: Federation,
    model: Architecture,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    folds: int = 5,
    rounds: int = 100,
    batch: BatchSize = 20,
    sample: float = 1.0,
    seed: int = 0,
    dtype: DtypeName = "float32",
    device: str = "cpu",
    engine: EngineName = "stacked",
    precision: Precision = "float32",
    keep: KeepName = "auto",
    metric: str | None = None,
) -> TuningResult:
    """Select values of a method's settings by cross-validation on training rows; test rows are never used.

    Every candidate is trained `folds` times, each time without one fold of every client's training rows, and
    scored on that fold after the last round. All runs are trained as one stack if the method allows it. The
    graph is the same on every fold.

    vary: values to try per setting, in all combinations; default: learning rates and strengths that suit the
        method. Combinations that it rejects (an unstable strength) are skipped and listed in `refused`.
    folds: number of folds of the training rows, drawn with `seed`.
    metric: the metric that selects the best; default: accuracy for classes, rmse for real targets.
    The other parameters are those of `fedlap.fit`.
    """
    check_algorithm_and_model(algorithm, model)
    schedule = Schedule(rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every=0)
    check_grid(vary)
    check_metric(metric, federation.labels is not None)
    combinations, refused = _build_methods(algorithm, default_grid(algorithm) if vary is None else vary)
    return cross_validate(combinations, refused, federation, model, folds, schedule, seed, metric)


def cross_validate(
    combinations: Sequence[tuple[dict[str, Any], Algorithm]],
    refused: Sequence[tuple[dict[str, Any], InputError]],
    federation: Federation,
    model: Architecture,
    folds: int,
    schedule: Schedule,
    seed: int,
    metric: str | None = None,
) -> TuningResult:
    """Train methods without each fold of the training rows, and score them on that fold.

    combinations: values and the method with these values; those that cannot be trained are added to
        `refused`, the combinations that the method rejected. An error is raised if none is left.
    """
    candidates: list[Candidate] = []
    refused = list(refused)
    models = []
    for values, method in combinations:
        try:
            compute_sample_size(method, schedule.sample, len(federation.clients))
            models.append(bind_algorithm(method, federation, model)[1])
            candidates.append(Candidate(values, method, []))
        except InputError as error:
            refused.append((values, error))
    if not candidates:
        first = refused[0][1]
        raise InputError(
            f"tune: every candidate is invalid; the first: {first}", field=first.field
        ) from first
    parts = [federation.fold(folds, held_out, seed) for held_out in range(folds)]
    jobs = [
        SizedJob(Job(candidate.algorithm, part, model, seed), sized, schedule)
        for candidate, sized in zip(candidates, models, strict=True)
        for part in parts
    ]
    outcomes: dict[int, Score | DivergedError] = {}
    for stack in pack_jobs(jobs):
        results = fit_all([jobs[index].job for index in stack], schedule)
        for index, result in zip(stack, results, strict=True):
            outcomes[index] = result if isinstance(result, DivergedError) else result.scores[-1]
    tried = [
        replace(
            candidate, scores=[outcomes[folds * index + fold] for fold in range(folds)], metric_name=metric
        )
        for index, candidate in enumerate(candidates)
    ]
    if all(candidate.diverged is not None for candidate in tried):
        raise DivergedError(f"tune: every candidate diverged; the first: {tried[0].diverged}")
    return TuningResult(tried, refused)


def default_grid(algorithm: Algorithm, fixed: Iterable[str] = ()) -> dict[str, list[float]]:
    """Return the default values of lr and, for methods on a graph, of strength, unless these are fixed.

    Strengths are 0.01, 0.03, 0.1, 0.3 and 1 times the largest strength with which mixing is stable at the
    reference rate, 2/(μRρ), rounded to one digit; methods that do not mix by steps use the same values.
    """
    names, fixed = list_settings(algorithm), set(fixed)
    free = [name for name in names if name not in fixed]
    grid: dict[str, list[float]] = {"lr": list(LEARNING_RATES)} if "lr" in free else {}
    lr = algorithm.lr if "lr" in names and "lr" in fixed else REFERENCE_RATE
    largest = _compute_largest_strength(algorithm, lr)
    if "strength" in free and largest is not None:
        grid["strength"] = [float(f"{share * largest:.0e}") for share in STRENGTH_SHARES]
    return grid


def _compute_largest_strength(algorithm: Algorithm, lr: float) -> float | None:
    """Return the largest stable strength at this rate, rounded down to one digit; None without edges."""
    if isinstance(algorithm, Coupled):
        coupling = replace(algorithm.coupling, lr=lr)
    elif "graph" in vars(algorithm):
        repeats = LocalWork.of(algorithm.local_steps, algorithm.local_epochs).repeats
        coupling = Coupling(vars(algorithm)["graph"], None, lr, repeats)
    else:
        return None
    if coupling.product_per_strength <= 0:
        return None
    most = 2 / coupling.product_per_strength
    digit = 10.0 ** math.floor(math.log10(most))
    return float(f"{math.floor(most / digit) * digit:.0e}")


def _build_methods(
    algorithm: Algorithm, vary: Mapping[str, Sequence[Any]]
) -> tuple[list[tuple[dict[str, Any], Algorithm]], list[tuple[dict[str, Any], InputError]]]:
    """Return the method with every valid combination of values, and the invalid ones with their errors.

    The last setting varies fastest.
    """
    known = list_settings(algorithm)
    for name in vary:
        if name not in known:
            raise unknown_name_error(f"setting of {type(algorithm).__name__}", name, known, field=name)
    if not vary or not all(len(values) for values in vary.values()):
        raise InputError("tune: vary has no values; pass settings and values, such as {'lr': [0.01, 0.1]}")
    methods: list[tuple[dict[str, Any], Algorithm]] = []
    refused: list[tuple[dict[str, Any], InputError]] = []
    for values in itertools.product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        try:
            methods.append((chosen, replace(algorithm, **chosen)))  # type: ignore[type-var]
        except InputError as error:
            refused.append((chosen, error))
    return methods, refused


def check_grid(vary: Any) -> None:
    """Raise InputError unless `vary` maps every setting to a list of values."""
    if vary is not None and not isinstance(vary, Mapping):
        raise InputError(f"tune: vary = {vary!r}; pass settings and values, such as {{'lr': [0.01, 0.1]}}")
    for name, values in (vary or {}).items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(
                f"tune: {name} = {values!r}; pass a list of values, such as {{{name!r}: [{values!r}]}}"
            )
