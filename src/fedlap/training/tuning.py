"""Tuning: values of a method's settings, tried by cross-validation on training rows alone."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedlap.algorithms import Algorithm, Coupled
from fedlap.algorithms.coupling import Coupling
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError, unknown
from fedlap.models import Architecture
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, suited
from fedlap.training.packing import Sized, stacks
from fedlap.training.schedule import (
    DtypeName,
    EngineName,
    KeepName,
    Precision,
    Schedule,
    check_makers,
    sample_size,
)
from fedlap.training.scores import Score

RATES = (0.003, 0.01, 0.03, 0.1)
MIDDLE = 0.03  # the rate for which strengths are chosen
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the largest strength with which mixing is stable


@dataclass(frozen=True, eq=False)
class Tried:
    """A candidate: its values, the method that has them, and a last-round score for each fold held out."""

    values: dict[str, Any]
    algorithm: Algorithm
    scores: list[Score | DivergedError]

    @property
    def validation(self) -> np.ndarray:
        """Accuracy on the rows of each fold, or loss where targets are real; NaN where training diverged."""
        return np.array([math.nan if isinstance(s, DivergedError) else _headline(s) for s in self.scores])

    @property
    def diverged(self) -> DivergedError | None:
        """Why it is not to be chosen: the first fold in which training diverged."""
        return next((score for score in self.scores if isinstance(score, DivergedError)), None)


@dataclass(frozen=True, eq=False)
class Tuned:
    """Candidates in the order of the grid, and those that the method refused, with its reasons."""

    tried: list[Tried]
    refused: list[tuple[dict[str, Any], InputError]]

    @property
    def best(self) -> Tried:
        """The highest mean accuracy (or lowest loss) over folds; the first in order among equals."""
        ranked = [each for each in self.tried if each.diverged is None]
        accuracy = isinstance(ranked[0].scores[0], Score) and ranked[0].scores[0].accuracy is not None
        return max(ranked, key=lambda each: float(each.validation.mean()) * (1 if accuracy else -1))

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
) -> Tuned:
    """Choose values of a method's settings by cross-validation on training rows; test rows are never seen.

    Every candidate is trained `folds` times, each time without one fold of every client's training rows, and
    scored on that fold after the last round. All are trained as one stack where the method allows it. A graph
    is the same on every fold.

    vary: settings and the values to try, in all combinations; by default `grid(algorithm)`. Combinations
        that the method refuses (an unstable strength) are skipped with a warning.
    folds: into how many the training rows are cut, by `seed`.
    The others are those of `fedlap.fit`.
    """
    check_makers(algorithm, model)
    schedule = Schedule(rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every=0)
    check_values(vary)
    made, refused = _candidates(algorithm, grid(algorithm) if vary is None else vary)
    ready: list[Tried] = []
    sizes = []
    for values, each in made:
        try:
            sample_size(each, sample, len(federation.clients))
            sizes.append(suited(each, federation, model)[1])
            ready.append(Tried(values, each, []))
        except InputError as error:
            refused.append((values, error))
    if not ready:
        first = refused[0][1]
        raise InputError(
            f"tune: every candidate is refused; the first: {first}", field=first.field
        ) from first
    parts = [federation.fold(folds, held_out, seed) for held_out in range(folds)]
    runs = [
        Sized(Job(each.algorithm, part, model, seed), size, schedule)
        for each, size in zip(ready, sizes, strict=True)
        for part in parts
    ]
    outcomes: dict[int, Score | DivergedError] = {}
    for places in stacks(runs):
        results = fit_all([runs[place].trial for place in places], schedule)
        for place, result in zip(places, results, strict=True):
            outcomes[place] = result if isinstance(result, DivergedError) else result.scores[-1]
    tried = [
        replace(each, scores=[outcomes[folds * place + fold] for fold in range(folds)])
        for place, each in enumerate(ready)
    ]
    if all(each.diverged is not None for each in tried):
        raise DivergedError(f"tune: every candidate diverged; the first: {tried[0].diverged}")
    return Tuned(tried, refused)


def grid(algorithm: Algorithm, fixed: Iterable[str] = ()) -> dict[str, list[float]]:
    """Values to try where nothing else is said: of lr and, on a graph, of strength, unless these are fixed.

    Strengths are 0.01, 0.03, 0.1, 0.3 and 1 times the largest with which mixing is stable at the middle rate,
    2/(μRρ), to one digit; methods that do not mix by steps get the same.
    """
    own, fixed = _settings(algorithm), set(fixed)
    free = [name for name in own if name not in fixed]
    made: dict[str, list[float]] = {"lr": list(RATES)} if "lr" in free else {}
    largest = _largest(algorithm, algorithm.lr if "lr" in own and "lr" in fixed else MIDDLE)
    if "strength" in free and largest is not None:
        made["strength"] = [float(f"{share * largest:.0e}") for share in SHARES]
    return made


def _largest(algorithm: Algorithm, lr: float) -> float | None:
    """The largest strength at this rate, rounded down to one digit; none without a graph that has edges."""
    if isinstance(algorithm, Coupled):
        coupling = replace(algorithm.coupling, lr=lr)
    elif "graph" in vars(algorithm):
        repeats = LocalWork.of(algorithm.local_steps, algorithm.local_epochs).repeats
        coupling = Coupling(vars(algorithm)["graph"], None, lr, repeats)
    else:
        return None
    if coupling.unit <= 0:
        return None
    most = 2 / coupling.unit
    digit = 10.0 ** math.floor(math.log10(most))
    return float(f"{math.floor(most / digit) * digit:.0e}")


Made = tuple[dict[str, Any], Algorithm]


def _candidates(
    algorithm: Algorithm, vary: Mapping[str, Sequence[Any]]
) -> tuple[list[Made], list[tuple[dict[str, Any], InputError]]]:
    """The method with each combination of values, the last setting changing fastest; and those it refuses."""
    known = _settings(algorithm)
    for name in vary:
        if name not in known:
            raise unknown(f"setting of {type(algorithm).__name__}", name, known, field=name)
    if not vary or not all(len(values) for values in vary.values()):
        raise InputError("tune: there is nothing to try; give settings and values, as in {'lr': [0.01, 0.1]}")
    made: list[Made] = []
    refused: list[tuple[dict[str, Any], InputError]] = []
    for values in itertools.product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        try:
            made.append((chosen, replace(algorithm, **chosen)))  # type: ignore[type-var]
        except InputError as error:
            refused.append((chosen, error))
    return made, refused


def check_values(vary: Any) -> None:
    """Refuse anything but settings with a list of values each."""
    if vary is not None and not isinstance(vary, Mapping):
        raise InputError(
            f"tune: vary = {vary!r}; give settings and the values to try, as in {{'lr': [0.01, 0.1]}}"
        )
    for name, values in (vary or {}).items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(
                f"tune: {name} = {values!r}; give a list of values to try, as in {{{name!r}: [{values!r}]}}"
            )


def _settings(algorithm: Algorithm) -> list[str]:
    """Names of what a method can be made with."""
    return [field.name for field in fields(algorithm) if field.init]  # type: ignore[arg-type]


def _headline(score: Score) -> float:
    """What candidates are ranked by."""
    value = score.loss if score.accuracy is None else score.accuracy
    assert value is not None  # a fold is never empty
    return value
