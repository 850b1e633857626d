"""A run between machines on a screen: sentences about who is waited for, and a live table."""

import math
import time
from collections.abc import Callable
from types import TracebackType

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedlap.deploy.event_log import format_utc
from fedlap.deploy.status import ENDED_PHASES, ClientStatus, Status
from fedlap.deploy.transport import format_problem
from fedlap.report import format_bytes
from fedlap.report.eta import format_duration

SILENT_SECONDS = 15.0  # without a word, after which a client is called silent: three missing heartbeats
STALE_SECONDS = 60.0  # age of a status file from which its server is probably down
MOST_WAITED_FOR = 5  # in a sentence
REDRAW_SECONDS = 0.25  # at least, between two drawings of the live table
LINE_SECONDS = 60.0  # between two lines where no table can be redrawn
STYLES = {"training": "cyan", "answered": "green", "late": "yellow", "declined": "yellow", "refused": "red"}
SERVER_COLUMNS = ("client", "state", "round", "rows", "up", "down", "last seen")
PEER_COLUMNS = ("peer", "state", "newest round", "age", "rows", "sent", "received", "last seen")


def describe_waiting(status: Status, now: float) -> str:
    """Return "waiting for south (silent for 35 s) and …", longest silence first; empty for nobody."""
    waited = sorted(status.awaited, key=lambda name: (-_measure_silence(status.clients[name], now), name))
    texts = [f"{name} ({_describe_delay(status.clients[name], now)})" for name in waited]
    texts += [f"{name} (its record has not arrived)" for name in status.unheard]
    if not texts:
        return ""
    if len(texts) > MOST_WAITED_FOR:
        texts[MOST_WAITED_FOR:] = [f"{len(texts) - MOST_WAITED_FOR} others"]
    *others, last = texts
    return f"waiting for {' and '.join([', '.join(others), last] if others else [last])}"


def _measure_silence(client: ClientStatus, now: float) -> float:
    """Return the seconds since the last word: 0 while heartbeats may arrive, infinite before the first."""
    if client.last_seen is None:
        return math.inf
    silence = now - client.last_seen
    return silence if silence >= SILENT_SECONDS else 0.0


def _describe_delay(client: ClientStatus, now: float) -> str:
    silence = _measure_silence(client, now)
    if math.isinf(silence):
        return "not connected yet"
    if silence > 0:
        return f"silent for {format_duration(silence)}"
    word = {"absent": "gone", "idle": "connected"}.get(client.state, client.state)
    return f"{word} for {format_duration(max(0.0, now - client.since))}"


def describe_state(client: ClientStatus, now: float) -> str:
    """Return the state of a client and its duration, e.g. "late since 12:03:10Z" or "training for 12 s"."""
    if client.state in ("idle", "answered", "refused", "left", "removed", "done"):
        return client.state
    if client.state == "late":
        return f"late since {format_utc(time.time() - (now - client.since))[11:19]}Z"
    if client.state == "absent" and client.last_seen is None:
        return "absent"
    if client.state == "training" and (silence := _measure_silence(client, now)) > 0 and silence < math.inf:
        return f"silent for {format_duration(silence)}"
    return f"{client.state} for {format_duration(max(0.0, now - client.since))}"


def describe_phase(status: Status, now: float) -> str:
    """Return round, phase and its duration, e.g. "round 12/50, training for 12 s"."""
    place = f"round {status.round}/{status.rounds}"
    if status.phase in ENDED_PHASES:
        return f"{place}, {status.phase}"
    return f"{place}, {status.phase} for {format_duration(max(0.0, now - status.since))}"


def describe_scores(status: Status) -> str:
    """Return the last scores, e.g. "loss 0.312, rmse 0.79 (round 10)"; empty before the first."""
    texts = [f"{name} {'not finite' if value is None else f'{value:.4g}'}"
             for name, value in status.scores.items()]  # fmt: skip
    if not texts:
        return ""
    return ", ".join(texts) + ("" if status.scored_round is None else f" (round {status.scored_round})")


def describe_status(status: Status, now: float) -> str:
    """Return a run on one line: round, phase, replies, who is waited for, bytes and scores."""
    states = [client.state for name, client in status.clients.items() if name != status.peer]
    cohort = sum(state in ("training", "answered", "late", "declined") for state in states)
    answered = f"{states.count('answered')} of {cohort} answered" if status.phase == "training" else ""
    parts = [describe_phase(status, now), answered, describe_waiting(status, now), status.problem]
    parts.append(describe_traffic(status))
    return f"{_name_run(status)}: " + "; ".join(part for part in [*parts, describe_scores(status)] if part)


def describe_traffic(status: Status) -> str:
    """Return the bytes of all clients, or those that a peer has sent and received."""
    up, down = ("sent", "received") if status.peer else ("up", "down")
    return f"{up} {format_bytes(status.bytes_up)}, {down} {format_bytes(status.bytes_down)}"


def describe_refusals(status: Status) -> list[str]:
    """Return why neighbours are refused that waiting alone does not bring back, one line per neighbour."""
    return [
        format_problem(name, client.problem)
        for name, client in status.clients.items()
        if client.state == "refused" and client.problem
    ]


def _name_run(status: Status) -> str:
    return f"{status.run}, peer {status.peer}" if status.peer else status.run


def render_status(status: Status, now: float | None = None) -> Table:
    """Return a table with a line per client; its caption has bytes, scores and who is waited for."""
    moment = time.monotonic() if now is None else now
    parts = [
        describe_traffic(status),
        describe_scores(status),
        describe_waiting(status, moment),
        status.problem,
        *describe_refusals(status),
        _describe_age(status, moment),
    ]
    table = Table(
        box=SIMPLE_HEAVY,
        pad_edge=False,
        title=Text(f"{_name_run(status)}: {describe_phase(status, moment)}"),
        caption=Text("\n".join(part for part in parts if part)),
        title_justify="left",
        caption_justify="left",
    )
    columns = PEER_COLUMNS if status.peer else SERVER_COLUMNS
    for header in columns:
        is_text = header in ("client", "peer", "state")
        table.add_column(header, justify="left" if is_text else "right", overflow="fold")
    for name, client in status.clients.items():
        cells = _format_client(status, name, client, moment)
        table.add_row(*(cells[header] for header in columns))
    return table


def _format_client(status: Status, name: str, client: ClientStatus, now: float) -> dict[str, Text | str]:
    """Return the cells of a client, a neighbour or the peer itself, by column."""
    is_self, seen = name == status.peer, client.last_seen
    up, down = (format_bytes(number) for number in (client.bytes_up, client.bytes_down))
    ago = "never" if seen is None else f"{format_duration(max(0.0, now - seen))} ago"
    number = str(client.round) if client.round else ""
    label = Text(f"{name} (this peer)" if is_self else name)
    return {
        "client": label,
        "peer": label,
        "state": Text(describe_state(client, now), style=STYLES.get(client.state, "")),
        "round": number,
        "newest round": number,
        "age": str(client.age) if client.age else "",
        "rows": f"{client.rows:,}" if client.rows else "",
        "up": up,
        "down": down,
        "sent": "" if is_self else up,
        "received": "" if is_self else down,
        "last seen": "" if is_self else ago,
    }


def _describe_age(status: Status, now: float) -> str:
    """Return a warning if the status comes from a file that should have been replaced long ago, else ""."""
    age = 0.0 if status.written is None or status.phase in ENDED_PHASES else now - status.written
    if age < STALE_SECONDS:
        return ""
    process = "peer" if status.peer else "server"
    return f"written {format_duration(age)} ago: the {process} does not run, or its disk is full"


class StatusDisplay:
    """A table that is redrawn on a terminal; elsewhere one line per minute. It changes only in `update`."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live: Live | None = None
        self._shown_at = -math.inf
        self._last: Status | None = None
        self._shown: Status | None = None

    def __enter__(self) -> "StatusDisplay":
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def update(self, status: Status) -> None:
        """Show a status, unless the last one was shown a moment ago; the end of a run is shown at once."""
        now, wait = self._clock(), LINE_SECONDS if self._live is None else REDRAW_SECONDS
        has_ended = status.phase in ENDED_PHASES and (self._last is None or self._last.phase != status.phase)
        self._last = status
        if has_ended or now - self._shown_at >= wait:
            self._show(status, now)

    def _show(self, status: Status, now: float) -> None:
        self._shown_at, self._shown = now, status
        if self._live is not None:
            self._live.update(render_status(status, now), refresh=True)
        else:
            text = "; ".join(filter(None, [describe_status(status, now), _describe_age(status, now)]))
            self._console.print(Text(text), soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last status on the screen."""
        if self._last is not None and self._last != self._shown:
            self._show(self._last, self._clock())
        if self._live is not None:
            self._live.stop()
            self._live = None
