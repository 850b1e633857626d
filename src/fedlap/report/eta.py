"""How far a long piece of work is, and about how long the rest will take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Remaining:
    """Work of known weights: time goes with weight, as far as it went so far."""

    def __init__(self, total: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """Nothing is done."""
        self.total, self.done, self._part = total, 0.0, 0.0
        self._clock, self._began = clock, clock()

    def add(self, weight: float) -> None:
        """So much more of the piece at hand is done."""
        self._part += weight

    def finish(self, weight: float) -> None:
        """A whole piece is done."""
        self.done, self._part = self.done + weight, 0.0

    def left(self) -> float | None:
        """Seconds, or nothing as long as too little is done to tell."""
        done = self.done + self._part
        if done <= 0.002 * self.total:
            return None
        return (self._clock() - self._began) * max(0.0, self.total - done) / done

    def text(self) -> str:
        """In words."""
        left = self.left()
        return "" if left is None else f"about {duration(left)} left"


def duration(seconds: float) -> str:
    """A time, short."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


Shown = tuple[Callable[[str], None], Callable[[int, int], None]]


@contextmanager
def shown(console: Console, remaining: Remaining) -> Iterator[Shown]:
    """Functions for a new stack's name and for its rounds: a moving bar, or a line a stack elsewhere."""
    if not console.is_terminal or console.is_dumb_terminal:

        def line(name: str) -> None:
            told = remaining.text()
            console.print(
                f"{name}{f'  ({told})' if told else ''}", highlight=False, markup=False, soft_wrap=True
            )

        yield line, lambda done, rounds: None
        return
    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1, name="", left="")
        yield (
            lambda name: bar.reset(task, total=1, name=name, left=remaining.text()),
            lambda done, rounds: bar.update(task, total=rounds, completed=done, left=remaining.text()),
        )
