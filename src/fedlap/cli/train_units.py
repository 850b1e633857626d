"""Training of the rows of recipes, in this process or by workers."""

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

from fedlap.cli import console
from fedlap.cli.interrupts import stop_on_signal
from fedlap.errors import InputError, StoppedError
from fedlap.experiments.prepare import Loader
from fedlap.experiments.workers import TaskWorkers
from fedlap.report.eta import Eta, show_stack_progress
from fedlap.reproduce.cell_results import ResultFolder
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import Unit
from fedlap.reproduce.runner import Reproducer, ReproductionCallbacks, WorkEstimate, estimate_work
from fedlap.training.packing import share_memory

Pending = list[tuple[Unit, list[int]]]  # rows and their seeds
Tuned = dict[str, dict[str, Any]]  # values of an earlier tuning, by recipe


class TrainedUnits(NamedTuple):
    """The number of rows that failed, lines on standard error, and whether a stop ended the training."""

    failed: int
    lines: list[str]
    is_stopped: bool


def split_units(pending: Pending, workers: int) -> list[Pending]:
    """Split rows into one part per cell; if those are too few, one per row and the rows that follow it."""
    too_few = len({unit.place for unit, _ in pending}) < workers
    parts: dict[tuple[Any, ...], Pending] = {}
    for unit, numbers in pending:
        place = (unit.recipe.source, unit.cell, unit.reading, tuple(numbers))
        parts.setdefault((*place, unit.recipe.leader_of(unit.row) if too_few else ""), []).append(
            (unit, numbers)
        )
    return list(parts.values())


def train_units_by_workers(
    workers: TaskWorkers, parts: Sequence[Pending], out: Path, device: str, tuned: Tuned
) -> int:
    """Train parts of the rows, each in a worker; print their lines and return the number of failures."""
    number, failed, done = workers.open("cuda" in device), 0, 0
    tasks = [(train_units_in_worker, (part, out, device, tuned, number)) for part in parts]
    with stop_on_signal() as stopping:
        for _, trained in workers.run(tasks, stopping):
            for line in trained.lines:
                console.print_remark(line)
            failed += trained.failed
            done += not trained.is_stopped
    if done < len(parts):
        raise StoppedError(f"stopped; finished runs are in {out / 'ledger.jsonl'}")
    return failed


def train_units_in_worker(
    should_stop: Callable[[], bool], pending: Pending, out: Path, device: str, tuned: Tuned, processes: int
) -> TrainedUnits:
    """Train rows in a worker, which shares its memory with the other ones."""
    share_memory(processes)
    failed, is_stopped = 0, False
    with redirect_stderr(io.StringIO()) as written:
        try:
            failed = train_units(pending, out, device, tuned, lambda: nullcontext(should_stop))
        except StoppedError:
            is_stopped = True
    return TrainedUnits(failed, written.getvalue().splitlines(), is_stopped)


def train_units(
    pending: Pending,
    out: Path,
    device: str,
    tuned: Tuned,
    watch_signals: Callable[[], AbstractContextManager[Callable[[], bool]]] = stop_on_signal,
) -> int:
    """Train rows one after another; report failures and return their number."""
    results, ledger = ResultFolder(out), Ledger(out / "ledger.jsonl")
    loader, failed = Loader(), 0
    estimates: list[WorkEstimate | None] = []
    for unit, numbers in pending:
        try:
            estimates.append(estimate_work(unit, numbers, loader))
        except InputError as error:
            estimates.append(None)
            console.print_remark(f"error: {unit.place}: {error}")
    remaining = Eta(sum(work.total for work in estimates if work is not None))
    reproducers: dict[tuple[str, tuple[int, ...]], Reproducer] = {}
    active, per_round = 0, 0.0  # runs, and the work of one round of one run
    with watch_signals() as stopping, show_stack_progress(console.err, remaining) as (name, move):

        def on_stack(unit: Unit, stage: str, runs: int) -> None:
            nonlocal active
            active = runs
            name(_format_progress(unit, stage, runs))

        def on_round(done: int, rounds: int) -> None:
            remaining.add(active * per_round)
            move(done, rounds)

        place = ""
        for (unit, numbers), cost in zip(pending, estimates, strict=True):
            if cost is None:
                failed += 1
                continue
            if unit.place != place:
                loader.clear()  # two data sets at once may not fit in memory
                place = unit.place
            per_round = cost.per_round
            key = (unit.recipe.name, tuple(numbers))
            if key not in reproducers:
                callbacks = ReproductionCallbacks(on_stack, on_round, stopping)
                values = tuned[unit.recipe.name]
                reproducers[key] = Reproducer(ledger, numbers, device, values, callbacks, loader)
            others = [other for other, seeds in pending if other.place == unit.place and seeds == numbers]
            row = reproducers[key].run_row(unit, others)
            results.write(unit, row, reproducers[key].load_federation(unit))
            remaining.finish(cost.total)
    return failed


def _format_progress(unit: Unit, stage: str, runs: int) -> str:
    return f"{unit.place}  {unit.recipe.rows[unit.row].title}: {stage}, {runs} run{'s' if runs > 1 else ''}"
