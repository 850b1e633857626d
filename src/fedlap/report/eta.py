"""Progress of a long job, and an estimate of the time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Eta:
    """Estimate of the time left for work of known weights, from the time per weight so far."""

    def __init__(self, total: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start the clock."""
        self.total, self.done, self._part = total, 0.0, 0.0
        self._clock, self._started_at = clock, clock()

    def add(self, weight: float) -> None:
        """Count more of the current piece as done."""
        self._part += weight

    def finish(self, weight: float) -> None:
        """Count a whole piece as done; its weight replaces what was added for it."""
        self.done, self._part = self.done + weight, 0.0

    def estimate_seconds_left(self) -> float | None:
        """Estimate the seconds left; None while too little is done for an estimate."""
        done = self.done + self._part
        if done <= 0.002 * self.total:
            return None
        return (self._clock() - self._started_at) * max(0.0, self.total - done) / done

    def describe(self) -> str:
        """Return the time left as text, empty while there is no estimate."""
        seconds = self.estimate_seconds_left()
        return "" if seconds is None else f"about {format_duration(seconds)} left"


def format_duration(seconds: float) -> str:
    """Format a duration as seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


StackCallbacks = tuple[Callable[[str], None], Callable[[int, int], None]]


@contextmanager
def show_stack_progress(console: Console, eta: Eta) -> Iterator[StackCallbacks]:
    """Yield callbacks for a new stack's name and for its rounds.

    They move a progress bar on a terminal and print one line per stack elsewhere.
    """
    if not console.is_terminal or console.is_dumb_terminal:

        def print_line(name: str) -> None:
            estimate = eta.describe()
            console.print(
                f"{name}{f'  ({estimate})' if estimate else ''}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

        yield print_line, lambda done, rounds: None
        return
    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1, name="", eta="")
        yield (
            lambda name: bar.reset(task, total=1, name=name, eta=eta.describe()),
            lambda done, rounds: bar.update(task, total=rounds, completed=done, eta=eta.describe()),
        )
