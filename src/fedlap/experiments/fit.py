"""`fedlap.fit`: training in Python, with a progress bar, callbacks, Ctrl-C and a folder to resume from."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap.algorithms import Algorithm
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError
from fedlap.models import Architecture
from fedlap.training.callbacks import Callback, EarlyStopping
from fedlap.training.fit import fit_all
from fedlap.training.interrupts import catch_interrupt
from fedlap.training.jobs import Job
from fedlap.training.recorder import RoundEnd
from fedlap.training.result import Result
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
from fedlap.training.scores import Score
from fedlap.training.scoring_interval import INTERVAL_RULE, choose_interval
from fedlap.training.shards.cluster import use_workers
from fedlap.training.strength_choice import (
    DEFAULT_RULE,
    STRENGTH_RULE,
    choose_strength,
    has_auto_strength,
    has_open_strength,
)

if TYPE_CHECKING:
    from fedlap.experiments.fit_folder import FitFolder

_LOG = logging.getLogger("fedlap")


@dataclass(eq=False)
class FitMonitor:
    """The callbacks of one run, and whether it should stop."""

    callbacks: Sequence[Callback]
    interrupted: Callable[[], bool]
    should_stop: bool = False

    def start(self, job: Job) -> bool:
        """Begin the run; return True if a callback stops a resumed run before its next round."""
        scores = job.progress.scores if job.progress else []
        self._add_answers([callback.on_start(tuple(scores)) for callback in self.callbacks])
        return self.should_stop and job.rounds_done > 0

    def on_score(self, place: int, score: Score) -> None:
        """Pass a new score to all callbacks."""
        self._add_answers([callback.on_score(score) for callback in self.callbacks])

    def on_round(self, end: RoundEnd) -> None:
        """Pass the end of a round to all callbacks, and stop the run if one of them or Ctrl-C asks for it."""
        self._add_answers([callback.on_round(end) for callback in self.callbacks])
        self.should_stop |= end.stop_requested or self.interrupted()
        if self.should_stop:
            end.stop()

    def _add_answers(self, answers: Sequence[bool | None]) -> None:
        self.should_stop |= any(answers)


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
    workers: int | None = None,
    address: str | None = None,
    evaluate_every: ScoringInterval = AUTO_INTERVAL,
    score_training: TrainingRowsScored = "last",
    resume: Result | None = None,
    allow_changes: bool = False,
    folder: str | Path | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    on_score: Callable[[Score], None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Train every client's model.

    algorithm: the method. A strength of "auto" is chosen first, by cross-validation on training rows, and the
        algorithm of the result has the number.
    rounds: total number of rounds, including those of a resumed run.
    batch: rows per mini-batch, or "all" for full gradients.
    sample: share of clients sampled per round; S = max(1, ⌊sample·N + ½⌋), without replacement.
    seed: seed of starts, sampling and batches; equal seeds give equal numbers.
    start: one start vector for all clients or a stack with one row per client; default: the model's start.
    dtype, device: floating-point type and device of the computation.
    engine: "stacked" trains all clients at once, "one_by_one" is the plain reference, and "ray" trains in
        several processes, on one machine or many (the extra fedlap[ray]).
    workers, address: of engine "ray": the number of processes, by default one per GPU or per core, and the
        address of a Ray cluster to join, such as "auto"; by default Ray is started on this machine.
    precision: precision of float32 matrix products; "tf32" and "bf16" are faster where supported.
    keep: where data and models are stored between rounds, "device" or "host"; from the host, the rows of the
        sampled clients are copied to the device every round. "auto" uses the device if everything fits.
    evaluate_every: rounds between scores; the last round is always scored, and 0 scores only the last. "auto"
        is the smallest of 1, 2, 5, 10, 20, 50 and 100 with which scoring is estimated to take less time than
        training. The estimate counts rows and parameters, so it is the same on every machine and for every
        number of rounds.
    score_training: "last" scores training rows in the last round only; train_loss, objective and gap of the
        other scores are None. "always" scores training rows whenever test rows are scored, and "never" in no
        round; a run whose loss has grown far but is finite is then not reported as diverged.
    resume: the result of an earlier call with fewer rounds; training continues from there exactly. Clients
        are matched by name, in any order. InputError is raised for other clients and for every change that
        affects the numbers: data, seed, batch, sample, dtype, precision, model or settings of the method.
        rounds, device, engine, keep, workers, address, evaluate_every, score_training and the callbacks may
        differ.
    allow_changes: resume despite such changes, from the earlier models with the new data or settings; the
        clients' names must still be equal.
    folder: a folder for scores, checkpoints and models, written while the run trains. A call with equal
        arguments and the same folder resumes an interrupted run exactly, and loads a finished one; only
        `rounds`, the callbacks and `progress` may differ. InputError is raised for the folder of another run.
    progress: show a progress bar, in a terminal or notebook.
    callbacks: objects of classes derived from `fedlap.Callback`, which can stop the run; `EarlyStopping` is
        one of them.
    on_score, on_round: called with each new score, and with the number of each finished round.

    Ctrl-C stops training after the round and returns the result so far: `result.is_complete` is then False,
    and `fit(..., resume=result)`, or the same folder, continues exactly. A second Ctrl-C raises
    KeyboardInterrupt. The logger "fedlap" reports start, end and checkpoints (INFO, DEBUG).
    """
    schedule = Schedule(
        rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every, score_training
    )
    if folder is not None and resume is not None:
        raise InputError("folder and resume are both set; pass only one of them", field="folder")
    earlier = None if resume is None else resume.progress
    job = Job(algorithm, federation, model, seed, start, earlier, allow_changes)
    watching = [*check_callbacks(callbacks), _FunctionCallback(on_score, on_round)]
    with ExitStack() as until_end:
        until_end.enter_context(use_workers(engine, workers, address))
        job = _choose_strength(job, schedule, None if resume is None else resume.algorithm)
        schedule = _choose_interval(job, schedule)
        for callback in watching:
            if isinstance(callback, EarlyStopping):
                callback.check_schedule(schedule)
        storage = None
        if folder is not None:
            from fedlap.experiments.fit_folder import open_fit_folder  # It needs pydantic.

            storage = until_end.enter_context(open_fit_folder(Path(folder), job, schedule))
            job = storage.job
        if progress:
            watching.append(until_end.enter_context(_show_progress(job, schedule)))
        interrupted = until_end.enter_context(catch_interrupt(_announce_stop))
        result = _train(job, schedule, storage, FitMonitor(watching, interrupted))
    if isinstance(result, DivergedError):
        _LOG.info("%s", result)
        raise result
    return result


def _train(
    job: Job, schedule: Schedule, storage: "FitFolder | None", monitor: FitMonitor
) -> Result | DivergedError:
    """Train the remaining rounds of a run, and store it if there is a folder."""
    name, clients = type(job.algorithm).__name__, len(job.federation.clients)
    _LOG.info(
        "%s, %d clients, seed %d: rounds %d to %d",
        name, clients, job.seed, job.rounds_done + 1, schedule.rounds,
    )  # fmt: skip
    stopped, rounds_left = monitor.start(job), schedule.rounds - job.rounds_done
    if rounds_left == 0 or (stopped and rounds_left > 0):  # Nothing is trained, so nothing is stored.
        (result,) = fit_all([job], replace(schedule, rounds=job.rounds_done))
    elif storage is None:
        (result,) = fit_all([job], schedule, monitor.on_score, monitor.on_round)
    else:
        result = storage.train(monitor)
    if isinstance(result, DivergedError):
        return result
    result = replace(result, rounds=schedule.rounds)
    last, seconds = result.scores[-1:], result.progress.seconds
    _LOG.info(
        "round %d of %d after %.3g s%s",
        result.progress.round, schedule.rounds, seconds, f": {last[0]}" if last else "",
    )  # fmt: skip
    if monitor.interrupted() and not result.is_complete:
        _LOG.warning(
            "interrupted after round %d of %d; pass %s to continue",
            result.progress.round, schedule.rounds, "resume=result" if storage is None else "the same folder",
        )  # fmt: skip
    return result


def _choose_strength(job: Job, schedule: Schedule, earlier: Algorithm | None) -> Job:
    """Return the job with a number in place of the default strength or "auto"."""
    if not has_open_strength(job.algorithm):
        return job
    chosen = choose_strength(job.algorithm, job.federation, job.model, schedule, job.seed, earlier)
    if earlier is None:
        rule = STRENGTH_RULE if has_auto_strength(job.algorithm) else DEFAULT_RULE
        _LOG.info("strength = %g %s", vars(chosen)["strength"], rule)
    return replace(job, algorithm=chosen)


def _choose_interval(job: Job, schedule: Schedule) -> Schedule:
    """Return the schedule with a number in place of the interval "auto"."""
    every = choose_interval(job, schedule)
    if schedule.evaluate_every == AUTO_INTERVAL and every != 1:
        _LOG.info("evaluate_every = %d %s", every, INTERVAL_RULE)
    return replace(schedule, evaluate_every=every)


def _announce_stop() -> None:
    _LOG.warning("stopping after this round (press Ctrl-C again to quit now)")


def check_callbacks(callbacks: Any) -> list[Callback]:
    """Return the callbacks; raise InputError unless every one of them is a Callback."""
    if isinstance(callbacks, Callback):
        raise InputError("callbacks is a single callback; pass a list", field="callbacks")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks contains a {type(callback).__name__}; derive its class from fedlap.Callback, or "
                "pass a function as on_score or on_round",
                field="callbacks",
            )
    return list(callbacks)


@dataclass(frozen=True, eq=False)
class _FunctionCallback(Callback):
    """Two functions as a callback: one for each new score, one for the number of each finished round."""

    score: Callable[[Score], None] | None
    round: Callable[[int], None] | None

    def on_score(self, score: Score) -> None:
        """Call the function for scores."""
        if self.score is not None:
            self.score(score)

    def on_round(self, end: RoundEnd) -> None:
        """Call the function for rounds."""
        if self.round is not None:
            self.round(end.round)


@contextmanager
def _show_progress(job: Job, schedule: Schedule) -> Iterator[Callback]:
    """Yield a callback that moves a progress bar."""
    from rich.console import Console  # Training alone does not need it.

    from fedlap.tracking.progress import show_progress

    name = type(job.algorithm).__name__
    with show_progress(Console(stderr=True), [[0]], lambda _: name, lambda _: schedule.rounds) as (
        on_score,
        on_round,
    ):
        yield _FunctionCallback(lambda score: on_score(0, score), lambda round: on_round([0], round))
