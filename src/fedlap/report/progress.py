"""How far a run is: a moving bar on a terminal, a few plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlap.scores import Score


class Pace:
    """What is known of a run so far."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name, self.rounds = name, rounds
        self.began, self.reached = time.perf_counter(), ""

    def on_score(self, score: Score) -> None:
        """Take note of a score."""
        self.reached = f"J {score.objective:.4f}  " if score.loss is None else f"test loss {score.loss:.4f}  "
        if score.accuracy is not None:
            self.reached = f"test accuracy {100 * score.accuracy:.2f} %  "

    def state(self, done: int) -> str:
        """The last score and the pace."""
        pace = done / max(1e-9, time.perf_counter() - self.began)
        return f"{self.reached}{pace:.3g} rounds/s"


@contextmanager
def progress(
    console: Console, name: str, rounds: int, lines: int
) -> Iterator[tuple[Callable[[Score], None], Callable[[int], None]]]:
    """Functions for each score and each round of a run; so many plain lines where nothing can move."""
    pace = Pace(name, rounds)
    if not console.is_terminal or console.is_dumb_terminal:
        every = max(1, rounds // lines)

        def line(done: int) -> None:
            if done % every == 0 or done == rounds:
                console.print(
                    f"{name}  round {done}/{rounds}  {pace.state(done)}", highlight=False, markup=False
                )

        yield pace.on_score, line
        return
    columns = (
        TextColumn("{task.fields[name]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=rounds, name=name, state="")
        yield pace.on_score, lambda done: bar.update(task, completed=done, state=pace.state(done))
