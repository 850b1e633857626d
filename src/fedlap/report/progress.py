"""How far a stack of runs is: a moving bar on a terminal, a few plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlap.training.scores import Score

Told = tuple[Callable[[int, Score], None], Callable[[Sequence[int], int], None]]


class Pace:
    """What is known so far of the runs that are trained together."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.scores: dict[int, Score] = {}
        self.began = self.told = time.perf_counter()
        self.before = 0  # rounds that were done before

    def on_score(self, place: int, score: Score) -> None:
        """Take note of a run's score."""
        self.scores[place] = score

    def on_round(self, places: Sequence[int], done: int) -> None:
        """Take note of a round; the first of a stack began when the stack before it ended."""
        if list(places) != self.places:
            self.places, self.began, self.before = list(places), self.told, done - 1
        self.told = time.perf_counter()

    def state(self, done: int) -> str:
        """What is reached, and the pace."""
        pace = (done - self.before) / max(1e-9, time.perf_counter() - self.began)
        return f"{self._reached()}{pace:.3g} rounds/s"

    def _reached(self) -> str:
        """The middle one of the last scores; runs that diverged have none of this round."""
        last = [self.scores[place] for place in self.places if place in self.scores]
        last = [score for score in last if score.round == max(other.round for other in last)]
        accuracy = [score.accuracy for score in last if score.accuracy is not None]
        loss = [score.loss for score in last if score.loss is not None]
        if accuracy:
            return f"test accuracy {100 * median(accuracy):.2f} %  "
        if loss:
            return f"test loss {median(loss):.4g}  "
        return f"J {median(score.objective for score in last):.4g}  " if last else ""


@contextmanager
def progress(
    console: Console,
    stacks: Sequence[Sequence[int]],
    name: Callable[[Sequence[int]], str],
    rounds: Callable[[Sequence[int]], int],
) -> Iterator[Told]:
    """Functions for each score and each round of stacks of runs; about five lines where nothing can move."""
    pace = Pace()
    if not console.is_terminal or console.is_dumb_terminal:

        def line(places: Sequence[int], done: int) -> None:
            pace.on_round(places, done)
            all_ = rounds(places)
            if done % max(1, all_ // max(1, 5 // len(stacks))) == 0 or done == all_:
                console.print(
                    f"{name(places)}  round {done}/{all_}  {pace.state(done)}",
                    highlight=False, markup=False, soft_wrap=True,
                )  # fmt: skip

        yield pace.on_score, line
        return
    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=rounds(stacks[0]), name=name(stacks[0]), state="")

        def move(places: Sequence[int], done: int) -> None:
            if pace.places and list(places) != pace.places:
                bar.reset(task, total=rounds(places), name=name(places), state="")
            pace.on_round(places, done)
            bar.update(task, completed=done, state=pace.state(done))

        yield pace.on_score, move
