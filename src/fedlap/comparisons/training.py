"""Training of many runs: packed into stacks, stored in folders or in memory, with progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap.comparisons.stack_tasks import StackOptions, check_distributable, train_stacks_by_workers
from fedlap.errors import DivergedError
from fedlap.experiments.prepare import Prepared, pack_prepared, train_stack
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan, RunOutcome
from fedlap.experiments.workers import TaskWorkers
from fedlap.report.page.reported_runs import ObjectRun, ReportedRun, StoredRun, TrainedRun
from fedlap.report.seed_list import format_seeds
from fedlap.tracking import build_tracker
from fedlap.tracking.progress import RunCallbacks, show_progress
from fedlap.training.recorder import RoundEnd
from fedlap.training.scores import Score

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class TrainingSession:
    """The place of runs, and the callbacks of their training.

    folder: the folder that stores runs; None leaves them in memory.
    again: train runs that are stored already once more.
    rerun_advice: how to set `again`, as text for remarks.
    trackers: names of trackers; only stored runs are logged.
    console: shows the progress; None shows none.
    on_remark: called with every remark.
    watch_signals: context that yields whether a signal asked to stop.
    command: the command or call behind the runs, for pages.
    workers: processes that train the stacks of stored runs; None trains them in this process.
    """

    folder: Path | None = None
    again: bool = False
    rerun_advice: str = "again=True forces a rerun"
    interval: CheckpointInterval = field(default_factory=CheckpointInterval)
    trackers: tuple[str, ...] = ()
    console: "Console | None" = None
    on_remark: Callable[[str], None] = lambda text: None
    watch_signals: Callable[[], AbstractContextManager[Callable[[], bool]]] = lambda: nullcontext(
        lambda: False
    )
    command: str = ""
    workers: TaskWorkers | None = None


def train_runs(
    session: TrainingSession, ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> list[tuple[ReportedRun, RunOutcome]]:
    """Train runs that are not finished, and return every run with its outcome.

    A diverged run is reported, the others continue. The progress shows the labels, or how many values of
    `fields` are trained at once.
    """
    done: dict[int, tuple[ReportedRun, RunOutcome]] = {}
    for place, run, outcome in _train_anywhere(session, ready, labels, fields):
        done[place] = run, outcome
        if isinstance(outcome, DivergedError):
            session.on_remark(f"error: {labels[place]}, seed {ready[place].experiment.seed}: {outcome}")
    return [done[place] for place in range(len(ready))]


def train_outcomes(
    session: TrainingSession, ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> list[RunOutcome]:
    """Train runs that are not finished, and return the outcome of every run; results are released."""
    outcomes = {place: outcome for place, _, outcome in _train_anywhere(session, ready, labels, fields)}
    return [outcomes[place] for place in range(len(ready))]


def _train_anywhere(
    session: TrainingSession, ready: Sequence[Prepared], labels: Sequence[str], fields: str
) -> Iterator[tuple[int, ReportedRun, RunOutcome]]:
    if session.folder is None:
        for place, trained in _train_in_memory(session, ready, labels, fields):
            outcome = trained.outcome
            yield place, trained, outcome if isinstance(outcome, DivergedError) else outcome.scores
        return
    for place, stored in _train_stored(session, session.folder, ready, labels, fields):
        folder = RunFolder.of(session.folder, ready[place].experiment).folder
        is_named = ready[place].experiment.objects is None
        yield place, StoredRun(folder) if is_named else ObjectRun(folder, prepared=ready[place]), stored


def _train_in_memory(
    session: TrainingSession, ready: Sequence[Prepared], labels: Sequence[str], fields: str
) -> Iterator[tuple[int, TrainedRun]]:
    """Train all runs, stack after stack, and yield the index of each with its result."""
    stacks = pack_prepared(ready)
    with _show_stacks(session, ready, labels, fields, stacks) as (on_score, on_round):
        for places in stacks:

            def score_run(position: int, score: Score, places: Sequence[int] = places) -> None:
                on_score(places[position], score)

            def end_round(end: RoundEnd, places: Sequence[int] = places) -> None:
                on_round(places, end.round)

            results = train_stack([ready[place] for place in places], score_run, end_round)
            for place, result in zip(places, results, strict=True):
                yield place, TrainedRun(ready[place].experiment, result)


def _train_stored(
    session: TrainingSession,
    out: Path,
    ready: Sequence[Prepared],
    labels: Sequence[str],
    fields: str,
) -> Iterator[tuple[int, RunOutcome]]:
    """Train the runs that are not finished in `out`, and yield the index and the outcome of every run."""
    for number, wave in enumerate(_split_waves(ready)):
        again = session.again and number == 0
        runs = [ready[place] for place in wave]
        for place, outcome in _train_wave(session, out, runs, [labels[p] for p in wave], fields, again):
            yield wave[place], outcome


def _train_wave(
    session: TrainingSession,
    out: Path,
    ready: Sequence[Prepared],
    labels: Sequence[str],
    fields: str,
    again: bool,
) -> Iterator[tuple[int, RunOutcome]]:
    """Train runs of different folders together."""
    plan = ResumePlan.of(out, ready, again)
    for remark in (*plan.remarks, *_explain_plan(plan, out, session.rerun_advice)):
        session.on_remark(f"note: {remark}")
    yield from plan.outcomes.items()
    if not plan.remaining:
        return
    if session.workers is not None:
        yield from _train_by_workers(session, session.workers, out, plan, labels, fields, again)
        return
    trackers = {
        place: build_tracker(list(session.trackers), plan.runs[place].folder, session.on_remark)
        for place in plan.remaining
    }
    stacks = plan.pack()
    with (
        session.watch_signals() as stopping,
        _show_stacks(session, ready, labels, fields, stacks) as (on_score, on_round),
    ):
        callbacks = ProgressCallbacks(
            session.interval, stopping, on_score, on_round, lambda text: session.on_remark(f"note: {text}")
        )
        yield from plan.train(stacks, callbacks, trackers)


def _train_by_workers(
    session: TrainingSession,
    workers: TaskWorkers,
    out: Path,
    plan: ResumePlan,
    labels: Sequence[str],
    fields: str,
    again: bool,
) -> Iterator[tuple[int, RunOutcome]]:
    """Train every remaining stack of a plan in a worker."""
    check_distributable(plan.prepared)
    workers.open("cuda" in plan.prepared[0].experiment.device)
    stacks = plan.pack()
    name = partial(_label_stack, plan.prepared, labels, fields)

    def report(done: int, places: Sequence[int]) -> None:
        if session.console is not None:
            session.console.print(
                f"{name(places)}  trained, {done} of {len(stacks)} stacks",
                highlight=False, markup=False, soft_wrap=True,
            )  # fmt: skip

    with session.watch_signals() as stopping:
        yield from train_stacks_by_workers(
            workers, plan, stacks, StackOptions(out, again, session.interval, session.trackers),
            stopping, report, session.on_remark,
        )  # fmt: skip


def _show_stacks(
    session: TrainingSession,
    ready: Sequence[Prepared],
    labels: Sequence[str],
    fields: str,
    stacks: Sequence[Sequence[int]],
) -> AbstractContextManager[RunCallbacks]:
    """Show the progress of stacks on the console of the session, if it has one."""

    def get_rounds(places: Sequence[int]) -> int:
        return ready[places[0]].experiment.rounds

    if session.console is None:
        return nullcontext((_ignore, _ignore))
    scored = "validation" if all(run.experiment.fold is not None for run in ready) else "test"
    name = partial(_label_stack, ready, labels, fields)
    return show_progress(session.console, stacks, name, get_rounds, scored)


def _label_stack(ready: Sequence[Prepared], labels: Sequence[str], fields: str, places: Sequence[int]) -> str:
    """Return the label of a stack, or how many values of `fields` it has, and its seeds."""
    names = list(dict.fromkeys(labels[place] for place in places))
    seeds = sorted({ready[place].experiment.seed for place in places})
    return f"{names[0] if len(names) == 1 else f'{len(names)} values of {fields}'}, {format_seeds(seeds)}"


def _ignore(*_: Any) -> None:
    """Ignore the call; the callback without a progress bar."""


def _split_waves(ready: Sequence[Prepared]) -> list[list[int]]:
    """Split indices into waves: runs that differ only in rounds share a folder, and resume one another."""
    by_digest: dict[str, list[int]] = {}
    for place in sorted(range(len(ready)), key=lambda place: ready[place].experiment.rounds):
        by_digest.setdefault(ready[place].experiment.digest, []).append(place)
    longest = max(map(len, by_digest.values()))
    return [
        sorted(places[wave] for places in by_digest.values() if wave < len(places)) for wave in range(longest)
    ]


def _explain_plan(plan: ResumePlan, out: Path, rerun_advice: str) -> Iterator[str]:
    """Yield remarks about runs that are loaded or resumed."""
    one = len(plan.runs) == 1
    if plan.outcomes:
        subject = "this run is" if one else f"{len(plan.outcomes)} of {len(plan.runs)} runs are"
        more = f", `fedlap resume {plan.runs[0].folder} --rounds …` trains further" if one else ""
        yield f"{subject} finished and loaded from {out}; {rerun_advice}{more}"
    resumed_rounds = [
        plan.prepared[place].job.rounds_done
        for place in plan.remaining
        if plan.prepared[place].job.rounds_done
    ]
    if resumed_rounds:
        subject = "this run resumes" if one else f"{len(resumed_rounds)} of {len(plan.runs)} runs resume"
        first, last = min(resumed_rounds), max(resumed_rounds)
        at = f"round {first}" if first == last else f"rounds {first} to {last}"
        yield f"{subject} from {at}; {rerun_advice}"
