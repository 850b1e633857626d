"""The status of a process while it runs: observed, stored in status.json, and shown on a console."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

from rich.console import Console

from fedlap.deploy.status import Status, StatusWriter
from fedlap.deploy.status_display import StatusDisplay

LASTING_STATES: Final = (
    "idle",
    "late",
    "absent",
    "left",
    "removed",
    "done",
)  # the others begin again in every round
SHOWN_SCORES: Final = ("loss", "accuracy", "rmse")

Run = TypeVar("Run")


class StatusBoard(ABC, Generic[Run]):
    """Status of a run in a file and on a console; it remembers since when each state holds."""

    def __init__(self, run: Run, writer: StatusWriter | None, display: StatusDisplay | None) -> None:
        """Observe nothing yet; `update` does. writer, display: None to observe alone."""
        self._run, self._writer, self._display = run, writer, display
        self._since: dict[str | None, tuple[object, float]] = {}  # by client; None is the run

    @classmethod
    @contextmanager
    def show(
        cls, folder: Path, run: Run, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[Self]:
        """Show a run until the end of the block; the file then says that the run is done or stopped.

        console: the one that events are printed to, so that they appear above the table.
        """
        with StatusDisplay(console, clock) as display:
            board = cls(run, StatusWriter(folder, clock), display)
            board.update(clock())
            try:
                yield board
            finally:
                board.update(clock(), has_ended=True)

    def update(self, now: float, has_ended: bool = False) -> None:
        """Observe the run, and write and show its status if they are due."""
        status = self.observe(now)
        if has_ended and status.phase != "done":
            status = replace(status, phase="stopped", awaited=(), unheard=())
        if self._writer is not None:
            self._writer.update(status)
        if self._display is not None:
            self._display.update(status)

    @abstractmethod
    def observe(self, now: float) -> Status:
        """Return the status of the run."""

    def note_state(self, name: str | None, state: object, now: float) -> float:
        """Return since when a state holds; states that do not depend on the round last over rounds.

        name: of the client; None for the run.
        """
        key = state[0] if isinstance(state, tuple) and state[0] in LASTING_STATES else state
        if self._since.get(name, (None, 0.0))[0] != key:
            self._since[name] = key, now
        return self._since[name][1]
