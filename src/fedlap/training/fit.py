"""Training: one run, or several as one stack."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fedlap.algorithms import Algorithm
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, report_out_of_memory
from fedlap.models import Architecture
from fedlap.training.assemble import assemble
from fedlap.training.jobs import Job
from fedlap.training.loop import train
from fedlap.training.recorder import Recorder, RoundEnd
from fedlap.training.result import Result
from fedlap.training.schedule import DtypeName, EngineName, KeepName, Precision, Schedule, use_precision
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

    rounds: total number of rounds, including those of a resumed run.
    batch: rows per mini-batch, or "all" for full gradients.
    sample: share of clients sampled per round; S = max(1, ⌊sample·N + ½⌋), without replacement.
    seed: seed of starts, sampling and batches; equal seeds give equal numbers.
    start: one start vector for all clients or a stack with one row per client; default: the model's start.
    dtype, device: floating-point type and device of the computation.
    engine: "stacked" trains all clients at once, "one_by_one" is the plain reference.
    precision: precision of float32 matrix products; "tf32" and "bf16" are faster where supported.
    keep: where data and models are stored between rounds, "device" or "host"; from the host, the rows of the
        sampled clients are copied to the device every round. "auto" uses the device if everything fits.
    evaluate_every: rounds between scores; the last round is always scored, and 0 scores only the last.
    resume: the result of an earlier call with fewer rounds; training continues from there exactly. Clients
        are matched by name, in any order. InputError is raised for other clients and for every change that
        affects the numbers: data, seed, batch, sample, dtype, precision, model or settings of the method.
        rounds, device, engine, keep, evaluate_every and the callbacks may differ.
    allow_changes: resume despite such changes, from the earlier models with the new data or settings; the
        clients' names must still be equal.
    on_score, on_round: called with each new score, and with the number of each finished round.
    """
    schedule = Schedule(rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every)
    progress = None if resume is None else resume.progress
    (result,) = fit_all(
        [Job(algorithm, federation, model, seed, start, progress, allow_changes)],
        schedule,
        None if on_score is None else lambda _, score: on_score(score),
        None if on_round is None else lambda round_end: on_round(round_end.round),
    )
    if isinstance(result, DivergedError):
        raise result
    return result


@torch.no_grad()
def fit_all(
    jobs: Sequence[Job],
    schedule: Schedule,
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[RoundEnd], None] | None = None,
) -> list[Result | DivergedError]:
    """Train several runs as one stack: one method and model, any seeds and real-valued settings.

    A diverged run returns its error; the other runs continue. `on_score` also receives the index of the run,
    `on_round` may read the progress of all runs or stop them. The seconds of a score are the run's share of
    the stack's time.
    """
    advice = "use a smaller batch or model, fewer clients per round (sample), or fewer runs at once"
    with (
        report_out_of_memory("fit", advice),
        use_precision(schedule.precision),
        _select_device(schedule.resolve_device()),
    ):
        training = assemble(jobs, schedule)
        recorder = Recorder(training.jobs, training.origins, schedule, on_score, on_round)
        server = train(training.method, training.engine, training.server, schedule, recorder)
        return training.collect_results(server, recorder)


def _select_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which CUDA streams and graphs are created on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
