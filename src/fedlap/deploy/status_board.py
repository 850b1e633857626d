"""The server's status while it runs: observed at the coordinator, stored in status.json, and shown."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.run_state import Phase, Site
from fedlap.deploy.status import ClientState, ClientStatus, Status, StatusWriter
from fedlap.deploy.status_display import StatusDisplay

LASTING_STATES = ("idle", "late", "absent", "left")  # the others begin again in every round
SHOWN_SCORES = ("loss", "accuracy", "rmse")


class StatusBoard:
    """Status of a coordinator in a file and on a console; it remembers since when each state holds."""

    def __init__(self, run: Coordinator, writer: StatusWriter, display: StatusDisplay) -> None:
        """Observe nothing yet; `update` does."""
        self._run, self._writer, self._display = run, writer, display
        self._since: dict[str | None, tuple[object, float]] = {}  # by client; None is the run

    @staticmethod
    @contextmanager
    def show(
        folder: Path,
        run: Coordinator,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator["StatusBoard"]:
        """Show a run until the end of the block; the file then says that the run is done or stopped.

        console: the one that events are printed to, so that they appear above the table.
        """
        with StatusDisplay(console, clock) as display:
            board = StatusBoard(run, StatusWriter(folder, clock), display)
            board.update(clock())
            try:
                yield board
            finally:
                board.update(clock(), has_ended=True)

    def update(self, now: float, has_ended: bool = False) -> None:
        """Observe the coordinator, and write and show its status if they are due."""
        status = self.observe(now)
        if has_ended and status.phase != "done":
            status = replace(status, phase="stopped", awaited=())
        self._writer.update(status)
        self._display.update(status)

    def observe(self, now: float) -> Status:
        """Return the status of the run."""
        run = self._run
        merged = run.checkpoint.merged if run.setups else {}
        clients = {
            name: ClientStatus(
                state=(state := choose_state(run, site)),
                since=self._note(name, (state, run.round), now),
                round=merged.get(name, 0),
                rows=site.rows or 0,
                bytes_up=site.bytes_up,
                bytes_down=site.bytes_down,
                last_seen=site.last_seen,
            )
            for name, site in run.sites.items()
        }
        last = run.scores[-1] if run.scores else None
        scores = {key: value for key in SHOWN_SCORES if (value := getattr(last, key, None)) is not None}
        return Status(
            run=run.plan.name,
            round=run.round,
            rounds=run.plan.rounds,
            phase=run.phase.value,
            since=self._note(None, (run.phase, run.round), now),
            clients=clients,
            awaited=tuple(run.list_awaited(now)),
            scores=scores,
            scored_round=None if last is None else last.round,
        )

    def _note(self, name: str | None, state: object, now: float) -> float:
        """Return since when a state holds; states that do not depend on the round last over rounds."""
        key = state[0] if isinstance(state, tuple) and state[0] in LASTING_STATES else state
        if self._since.get(name, (None, 0.0))[0] != key:
            self._since[name] = key, now
        return self._since[name][1]


def choose_state(run: Coordinator, site: Site) -> ClientState:
    """Return the state of a client."""
    if site.is_ejected:
        return "left"
    if site.is_late:
        return "late"
    if site.is_away or site.last_seen is None:
        return "absent"
    if not run.setups or site.name not in run.setup.clients:
        return "idle"
    if run.open_round is not None:
        return _choose_round_state(run, run.setup.clients.index(site.name))
    if run.phase is Phase.SCORING:
        return "answered" if site.name in run.tallies else "scoring"
    if run.phase is Phase.FINISHING:
        return "answered" if site.name in run.finished else "finishing"
    return "idle"


def _choose_round_state(run: Coordinator, place: int) -> ClientState:
    """Return the state of a client, by its place in the roster, in the round in progress."""
    opened = run.open_round
    if opened is None or place not in opened.cohort:
        return "idle"
    if place in opened.replies:
        return "answered"
    if place not in opened.missing:
        return "training"
    return "declined" if opened.missing[place] is EventReason.DECLINED else "refused"
