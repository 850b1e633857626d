"""How far a run is: a moving bar on a terminal, a few plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlap.scores import Score

OnScore = Callable[[Score], None]


@contextmanager
def progress(console: Console, name: str, rounds: int, lines: int) -> Iterator[OnScore]:
    """A function to be called with each score of a run; about so many plain lines where nothing can move."""
    began = time.perf_counter()

    def state(score: Score) -> str:
        pace = score.round / max(1e-9, time.perf_counter() - began)
        reached = f"test loss {score.loss:.4f}" if score.loss is not None else f"J {score.objective:.4f}"
        if score.accuracy is not None:
            reached = f"test accuracy {100 * score.accuracy:.2f} %"
        return f"{reached}  {pace:.0f} rounds/s"

    if console.is_terminal:
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=rounds, name=name, state="")
            yield lambda score: bar.update(task, completed=score.round, state=state(score))
        return
    every = max(1, rounds // lines)
    due = every

    def line(score: Score) -> None:
        nonlocal due
        if score.round >= due or score.round == rounds:
            console.print(f"{name}  round {score.round}/{rounds}  {state(score)}", highlight=False)
            due = (score.round // every + 1) * every

    yield line
