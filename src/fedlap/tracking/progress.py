"""Progress of stacks of runs: a bar on a terminal or in a notebook, a few plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlap.training.metrics import choose_metric
from fedlap.training.scores import Score

RunCallbacks = tuple[Callable[[int, Score], None], Callable[[Sequence[int], int], None]]


class StackProgress:
    """Rounds and latest scores of the stack of runs in training; `scored` names the scored rows."""

    def __init__(self, scored: str) -> None:
        self.scored = scored
        self.places: list[int] = []
        self.scores: dict[int, Score] = {}
        self.started_at = self.last_round_at = time.perf_counter()
        self.rounds_before = 0  # rounds that a resumed stack had done

    def on_score(self, place: int, score: Score) -> None:
        """Store a run's score."""
        self.scores[place] = score

    def on_round(self, places: Sequence[int], done: int) -> None:
        """Count a round; the first round of a stack started when the stack before it ended."""
        if list(places) != self.places:
            self.places, self.started_at, self.rounds_before = list(places), self.last_round_at, done - 1
        self.last_round_at = time.perf_counter()

    def describe(self, done: int) -> str:
        """Return the median score and the rounds per second."""
        rate = (done - self.rounds_before) / max(1e-9, time.perf_counter() - self.started_at)
        return f"{self._describe_scores()}{rate:.3g} rounds/s"

    def _describe_scores(self) -> str:
        """Return the median of the latest scores; diverged runs have none for this round."""
        last = [self.scores[place] for place in self.places if place in self.scores]
        last = [score for score in last if score.round == max(other.round for other in last)]
        metric = choose_metric(last)
        values = [value for score in last if (value := getattr(score, metric.name)) is not None]
        if values:
            return f"{self.scored} {metric.label} {metric.format(median(values))}  "
        objectives = [score.objective for score in last if score.objective is not None]
        return f"J {median(objectives):.4g}  " if objectives else ""


def _can_show_bar(console: Console) -> bool:
    """Return whether a bar can be redrawn: on a terminal, or in a notebook with ipywidgets."""
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def show_progress(
    console: Console,
    stacks: Sequence[Sequence[int]],
    name: Callable[[Sequence[int]], str],
    rounds: Callable[[Sequence[int]], int],
    scored: str = "test",
) -> Iterator[RunCallbacks]:
    """Yield callbacks for each score and each round of stacks of runs.

    They move a progress bar on a terminal or in a notebook, and print about five lines elsewhere.
    """
    state = StackProgress(scored)
    if not _can_show_bar(console):

        def print_line(places: Sequence[int], done: int) -> None:
            state.on_round(places, done)
            total = rounds(places)
            if done % max(1, total // max(1, 5 // len(stacks))) == 0 or done == total:
                console.print(
                    f"{name(places)}  round {done}/{total}  {state.describe(done)}",
                    highlight=False, markup=False, soft_wrap=True,
                )  # fmt: skip

        yield state.on_score, print_line
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

        def move_bar(places: Sequence[int], done: int) -> None:
            if state.places and list(places) != state.places:
                bar.reset(task, total=rounds(places), name=name(places), state="")
            state.on_round(places, done)
            bar.update(task, completed=done, state=state.describe(done))

        yield state.on_score, move_bar
