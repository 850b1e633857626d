"""Stacks of stored runs as tasks of workers, which write into the folders of the runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fedlap.errors import InputError, StoppedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Loader, Prepared
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan, RunOutcome
from fedlap.experiments.workers import TaskWorkers
from fedlap.tracking import build_tracker


@dataclass(frozen=True)
class StackOptions:
    """The options of a session that its workers need."""

    out: Path
    again: bool
    interval: CheckpointInterval
    trackers: tuple[str, ...]


class TrainedStack(NamedTuple):
    """Outcomes by position in the stack, remarks, and the message of a stack that was stopped."""

    outcomes: dict[int, RunOutcome]
    remarks: list[str]
    stopped: str


def check_distributable(prepared: Sequence[Prepared]) -> None:
    """Raise InputError for an engine that has workers of its own."""
    if any(run.experiment.engine == "ray" for run in prepared):
        raise InputError(
            "engine = 'ray' divides the clients of a run among workers, and these workers train whole runs; "
            "leave out --workers and --address, or set engine to 'stacked'",
            field="engine",
        )


def train_stacks_by_workers(
    workers: TaskWorkers,
    plan: ResumePlan,
    stacks: Sequence[Sequence[int]],
    options: StackOptions,
    should_stop: Callable[[], bool],
    on_stack: Callable[[int, Sequence[int]], None],
    on_remark: Callable[[str], None],
) -> Iterator[tuple[int, RunOutcome]]:
    """Train every stack in a worker, and yield the index and the outcome of every run.

    on_stack: called with the number of trained stacks and the runs of the last one.
    """
    tasks = [
        (train_stored_stack, ([plan.prepared[index].experiment for index in stack], options))
        for stack in stacks
    ]
    done, stopped = 0, ""
    for number, trained in workers.run(tasks, should_stop):
        for remark in trained.remarks:
            on_remark(remark)
        yield from ((stacks[number][position], outcome) for position, outcome in trained.outcomes.items())
        if trained.stopped:
            stopped = trained.stopped
        else:
            done += 1
            on_stack(done, stacks[number])
    if done < len(stacks):
        raise StoppedError(stopped or "stopped; finished runs are stored")


def train_stored_stack(
    should_stop: Callable[[], bool], experiments: Sequence[Experiment], options: StackOptions
) -> TrainedStack:
    """Train runs as one stack, from their checkpoints if there are any, and store them in their folders."""
    loader, remarks = Loader(), list[str]()
    prepared = [replace(loader.prepare(experiment), experiment=experiment) for experiment in experiments]
    plan = ResumePlan.of(options.out, prepared, options.again)
    trackers = {
        index: build_tracker(list(options.trackers), plan.runs[index].folder, remarks.append)
        for index in plan.remaining
    }
    callbacks = ProgressCallbacks(
        options.interval, should_stop, on_remark=lambda text: remarks.append(f"note: {text}")
    )
    outcomes, stopped = dict(plan.outcomes), ""
    try:
        for index, outcome in plan.train(_pack_remaining(plan), callbacks, trackers):
            outcomes[index] = outcome
    except StoppedError as error:
        stopped = str(error)
    return TrainedStack(outcomes, remarks, stopped)


def _pack_remaining(plan: ResumePlan) -> list[list[int]]:
    """Return the remaining runs as one stack, as the first process packed them, if their rounds are equal.

    The runs of a worker that ended while it wrote checkpoints may have different rounds.
    """
    remaining = plan.remaining
    rounds = {plan.prepared[index].job.rounds_done for index in remaining}
    return [remaining] if len(rounds) == 1 else plan.pack()
