"""Training: one run, or several as one stack."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fedlap.algorithms import Algorithm
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, memory_reported
from fedlap.models import Architecture
from fedlap.training.jobs import Job
from fedlap.training.loop import RoundEnd, Runs
from fedlap.training.result import Result
from fedlap.training.schedule import DtypeName, EngineName, KeepName, Precision, Schedule, precisely
from fedlap.training.scores import Score


def fit(
    algorithm: Algorithm,
    federation: Federation,
    model: Architecture,
    *,
    rounds: int = 100,
    batch: BatchSize = 20,
    sample: float = 1.0,
    seed: int = 0,
    start: Any = None,
    dtype: DtypeName = "float32",
    device: str = "cpu",
    engine: EngineName = "stacked",
    precision: Precision = "float32",
    keep: KeepName = "auto",
    evaluate_every: int = 1,
    resume: Result | None = None,
    allow_changes: bool = False,
    on_score: Callable[[Score], None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Train every client's model.

    rounds: how many, those that are resumed included.
    batch: rows of a mini-batch, or "all" for full gradients.
    sample: share of clients that work in a round; S = max(1, ⌊sample·N + ½⌋), without replacement.
    seed: of starts, sampling and batches; the same seed gives the same numbers.
    start: a vector for all clients or a stack with one row each, instead of the model's own start.
    dtype, device: how precisely and where to compute.
    engine: "stacked", all clients at once, or "one_by_one", the plain reference.
    precision: of products of float32 matrices; "tf32" or "bf16" are faster where the device has them.
    keep: where data and models stay between rounds, "device" or "host", whence those of the sampled clients
        are brought; "auto" is the device as long as they fit.
    evaluate_every: rounds between scores; the last round is always scored, and 0 scores no other.
    resume: the result of an earlier call with fewer rounds; training continues from there exactly. Clients
        are matched by name, in whatever order they are passed. Other clients are refused, and so is whatever
        changes the numbers: other data, seed, batch, sample, dtype, precision, model or settings of the
        method. rounds, device, engine, keep, evaluate_every and the callbacks may differ.
    allow_changes: resume even so, from the earlier models with the new data or settings; clients' names
        must still be equal.
    on_score, on_round: called with each score as it is made, and with the number of each round done.
    """
    schedule = Schedule(rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every)
    progress = None if resume is None else resume.progress
    made = fit_all(
        [Job(algorithm, federation, model, seed, start, progress, allow_changes)],
        schedule,
        None if on_score is None else lambda _, score: on_score(score),
        None if on_round is None else lambda moment: on_round(moment.round),
    )[0]
    if isinstance(made, DivergedError):
        raise made
    return made


@torch.no_grad()
def fit_all(
    trials: Sequence[Job],
    schedule: Schedule,
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[RoundEnd], None] | None = None,
) -> list[Result | DivergedError]:
    """Train several runs as one stack: the same method and model, seeds and real-valued settings of any kind.

    A run that diverges is answered by its error; the others go on. `on_score` is told the run's place too,
    `on_round` may save the moment or stop. A score's seconds are the run's share of the stack's.
    """
    advice = "use a smaller batch or model, fewer clients per round (sample), or fewer runs at once"
    with memory_reported("fit", advice), precisely(schedule.precision), _current(schedule.placed()):
        return Runs.of(trials, schedule).trained(on_score, on_round)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """A GPU of several as the one that streams and recordings are made on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
