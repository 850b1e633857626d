"""Runs that are to be made: what they are, what they have in common, and why one may fail."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from fedlap.algorithms import Algorithm, Coupled, Grouping, Pooling, Steady, Suited
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.algorithms.per_run import PerRun
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError, whole
from fedlap.models import Architecture, Model
from fedlap.models.module import ModuleNetwork
from fedlap.training.result import Progress
from fedlap.training.schedule import check_makers
from fedlap.training.scores import Tally

EXPLODED = 1e6  # times the least mean training loss of a run, above which it has failed


@dataclass(frozen=True, eq=False)
class Job:
    """A run that is to be made: what `fit` takes, but for the schedule."""

    algorithm: Algorithm
    federation: Federation
    model: Architecture
    seed: int = 0
    start: Any = None
    progress: Progress | None = None  # where it goes on from
    allow_changes: bool = False  # resume although data or settings are not those that the run began with

    @property
    def done(self) -> int:
        """Rounds that it has behind it."""
        return self.progress.round if self.progress else 0

    def __post_init__(self) -> None:
        check_makers(self.algorithm, self.model)
        whole("seed", self.seed)


def kind(trial: Job) -> Any:
    """What trials of one stack have in common; one of a method that is not steady has nothing."""
    algorithm, federation = trial.algorithm, trial.federation
    if not isinstance(algorithm, Steady):
        return object()
    settings = tuple(
        getattr(algorithm, field.name)
        for field in fields(algorithm)  # type: ignore[arg-type]
        if field.init and field.name != "graph" and float not in (field.type, *get_args(field.type))
    )
    shape = federation.inputs, federation.outputs, type(federation.loss)
    pooled = len(federation.clients) if isinstance(algorithm, Pooling) else None  # it sets their work
    return type(algorithm), settings, trial.model, shape, pooled, trial.done


def differing(algorithms: Sequence[Algorithm]) -> dict[str, list[Any]]:
    """The settings that these methods do not have in common, with all their values."""
    settings = {field.name: [getattr(a, field.name) for a in algorithms] for field in fields(algorithms[0])}  # type: ignore[arg-type]
    return {name: values for name, values in settings.items() if any(v != values[0] for v in values)}


def one_method(
    first: Algorithm, differing: dict[str, list[Any]], column: Callable[[list[float]], PerRun]
) -> Algorithm:
    """A method whose real-valued settings are columns where they differ; graphs are for servers alone."""
    if not differing:
        return first
    made = object.__new__(type(first))
    made.__dict__.update(vars(first))
    for name, values in differing.items():
        real = all(isinstance(value, float | int) for value in values)
        made.__dict__[name] = column(values) if real else None
    return made


def suited(algorithm: Algorithm, federation: Federation, model: Architecture) -> tuple[Algorithm, Model]:
    """The algorithm for these clients and the model of their size; what does not go together is refused."""
    sized = Model(model.build(federation.inputs, federation.outputs), federation.loss, model.l2)
    return algorithm.suited(federation, sized) if isinstance(algorithm, Suited) else algorithm, sized


def work_of(algorithm: Algorithm, sampled: int) -> LocalWork:
    """What each client does in a round; one that owns all rows makes the steps of all sampled ones."""
    work = LocalWork.of(algorithm.local_steps, algorithm.local_epochs)
    if isinstance(algorithm, Pooling):
        work = work.times(sampled)
    if isinstance(algorithm, Grouping):  # so that a pass, too, is as many steps as others make of it
        work = LocalWork(work.repeats * algorithm.batches_per_step, work.epochs)
    return work


def check_single_rows(
    model: Model, scored: Federation, trainees: Federation, work: LocalWork, batch: BatchSize
) -> None:
    """Refuse a batch of one row where the module cannot take it, as a batch norm cannot."""
    lone = model.network.lone if isinstance(model.network, ModuleNetwork) else ""
    if not lone:
        return
    count = trainees.train.count
    size = count if batch == "all" else count.clamp_max(batch)
    single = size == 1
    if work.epochs and batch != "all":
        single = single | (count % batch == 1)
    for place in single.nonzero().flatten().tolist():
        raise InputError(
            f"module: {lone}, and client {trainees.clients[place]!r} has a batch of one training row of its "
            f"{int(count[place])} (batch = {batch}); set another batch, leave it out, or use GroupNorm"
        )
    for what, part in (("training", scored.train), ("test", scored.test)):
        for place in (part.count == 1).nonzero().flatten().tolist():
            raise InputError(
                f"module: {lone}, and client {scored.clients[place]!r} has one {what} row to be scored on; "
                "give it more rows, or use GroupNorm"
            )


def diverged(
    train: Tally, federation: Federation, done: int, algorithm: Algorithm, least: float = math.inf
) -> DivergedError | None:
    """Why a run has failed, if some client's training loss is no number, or far above the least so far."""
    mean = train.loss / train.count
    lost = ~mean.isfinite()
    what = "is not finite"
    if not bool(lost.any()):
        lost = mean > EXPLODED * max(1.0, least)
        what = f"has grown to {float(mean.max()):.3g}"
    bad = lost.nonzero().flatten().tolist()
    if not bad:
        return None
    advice = f"lower lr (now {algorithm.lr:g}), or scale the features"
    if isinstance(algorithm, Coupled) and not algorithm.coupling.stable:
        product = f"{algorithm.coupling.formula} = {algorithm.coupling.product:.4g}"
        advice = f"lower strength: {product}, and mixing is stable up to 2"
    return DivergedError(
        f"training diverged: by round {done} the loss of client {federation.clients[bad[0]]!r} {what} "
        f"({len(bad)} of {len(federation.clients)} clients); {advice}"
    )
