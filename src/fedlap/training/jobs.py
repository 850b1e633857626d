"""Jobs: runs to train, whether they can be stacked, and when one has diverged."""

import math
from dataclasses import dataclass, fields
from typing import Any, get_args

from jaxtyping import Bool
from torch import Tensor

from fedlap.algorithms import Algorithm, Binding, Coupled, Grouping, Pooling, list_settings
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError, UnsuitedError, check_integer
from fedlap.models import Architecture, Model
from fedlap.models.torch_module import ModuleNetwork
from fedlap.summaries import summarise_fields
from fedlap.training.result import Progress
from fedlap.training.schedule import check_algorithm_and_model
from fedlap.training.scores import Tally

DIVERGENCE_FACTOR = 1e6  # a loss above this multiple of the run's lowest loss counts as diverged


@dataclass(frozen=True, eq=False)
class Job:
    """A run to train: the arguments of `fit` without the schedule."""

    algorithm: Algorithm
    federation: Federation
    model: Architecture
    seed: int = 0
    start: Any = None
    progress: Progress | None = None  # the state to resume from
    allow_changes: bool = False  # resume although data or settings have changed

    __repr__ = summarise_fields

    @property
    def rounds_done(self) -> int:
        """Rounds that are finished already."""
        return self.progress.round if self.progress else 0

    def __post_init__(self) -> None:
        check_algorithm_and_model(self.algorithm, self.model)
        check_integer("seed", self.seed)


def compute_stack_key(job: Job) -> Any:
    """Return a key that is equal for jobs that can be stacked; it is unique if the method cannot be."""
    algorithm, federation = job.algorithm, job.federation
    if not algorithm.traits.is_stackable:
        return object()
    types = {field.name: field.type for field in fields(algorithm)}  # type: ignore[arg-type]
    settings = tuple(
        tuple(value.items()) if isinstance(value, dict) else value
        for name, value in list_settings(algorithm).items()
        if name != "graph" and (isinstance(value, dict) or float not in (types[name], *get_args(types[name])))
    )
    shape = federation.inputs, federation.outputs, type(federation.loss), federation.roster.is_weighted
    # The number of pooled clients determines the number of local steps.
    pooled = len(federation.clients) if isinstance(algorithm, Pooling) else None
    return type(algorithm), settings, job.model, shape, pooled, job.rounds_done


def bind_algorithm(
    algorithm: Algorithm, federation: Federation, model: Architecture
) -> tuple[Algorithm, Model]:
    """Bind the algorithm to the clients and size the model; raise InputError if they do not fit."""
    sized = Model(model.build(federation.inputs, federation.outputs), federation.loss, model.l2, model)
    return algorithm.bind(federation.roster, sized) if isinstance(algorithm, Binding) else algorithm, sized


def plan_local_work(algorithm: Algorithm, sampled: int) -> LocalWork:
    """Return the local work per round; a client that owns all rows takes the steps of all sampled clients."""
    work = LocalWork.of(algorithm.local_steps, algorithm.local_epochs)
    if isinstance(algorithm, Pooling):
        work = work.multiply(sampled)
    if isinstance(algorithm, Grouping):  # so that an epoch has as many steps as with other methods
        work = LocalWork(work.repeats * algorithm.batches_per_step, work.epochs)
    return work


def check_single_rows(
    model: Model, scored: Federation, trainees: Federation, work: LocalWork, batch: BatchSize
) -> None:
    """Raise InputError for a batch of one row, or a row of weight 0, if the module rejects it."""
    weight = trainees.train.weight
    if weight is not None and model.is_batch_dependent and not bool((weight > 0).all()):
        raise UnsuitedError(
            "module: rows of a batch affect each other, as in batch norm, and a row has weight 0; "
            "remove rows of weight 0, or use GroupNorm"
        )
    problem = model.network.single_row_error if isinstance(model.network, ModuleNetwork) else ""
    if not problem:
        return
    count = trainees.train.count
    size = count if batch == "all" else count.clamp_max(batch)
    single = size == 1
    if work.epochs and batch != "all":
        single = single | (count % batch == 1)
    for place in single.nonzero().flatten().tolist():
        raise InputError(
            f"module: {problem}, and client {trainees.clients[place]!r} has a batch of one training row "
            f"out of {int(count[place])} (batch = {batch}); set another batch, remove the client, or use "
            "GroupNorm"
        )
    for name, rows in (("training", scored.train), ("test", scored.test)):
        for place in (rows.count == 1).nonzero().flatten().tolist():
            raise InputError(
                f"module: {problem}, and client {scored.clients[place]!r} has a single {name} row for "
                "scoring; add rows, or use GroupNorm"
            )


def detect_divergence(
    train: Tally | None,
    is_finite: Bool[Tensor, "client"],
    federation: Federation,
    round: int,
    algorithm: Algorithm,
    lowest: float = math.inf,
) -> DivergedError | None:
    """Return the error of a run if a client's training loss is not finite, or far above the lowest so far.

    Test rows never decide. Without a tally of training rows, the parameters of each client's model do, which
    are finite or not (`is_finite`).
    """
    subject, problem = "loss", "is not finite"
    if train is None:
        subject, failed = "model", ~is_finite
    else:
        mean = train.loss / train.count
        failed = ~mean.isfinite()
        if not bool(failed.any()):
            failed = mean > DIVERGENCE_FACTOR * max(1.0, lowest)
            problem = f"has grown to {float(mean.max()):.3g}"
    bad = failed.nonzero().flatten().tolist()
    if not bad:
        return None
    advice = "scale the features"
    if algorithm.traits.has_lr:
        advice = f"lower lr (now {algorithm.lr:g}), or {advice}"
    if isinstance(algorithm, Coupled) and not algorithm.coupling.is_stable:
        product = f"{algorithm.coupling.formula} = {algorithm.coupling.product:.4g}"
        advice = f"lower strength: {product}, but mixing is stable only up to 2"
    first = f"the {subject} of client {federation.clients[bad[0]]!r}"
    return DivergedError(
        f"training diverged: by round {round} {first} {problem} "
        f"({len(bad)} of {len(federation.clients)} clients); {advice}"
    )
