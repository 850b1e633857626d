"""The state of a run between machines, and its file status.json.

Times are seconds of this process's monotonic clock, which a change of the system's time does not disturb. The
file has UTC instead, and `read_status` converts it to the clock of the process that reads.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from fedlap.deploy.event_log import format_utc
from fedlap.errors import InputError
from fedlap.storage.files import describe_error, parse_json, read_file, write_file

STATUS_FILE = "status.json"
STATUS_VERSION = 1
STATUS_SECONDS = 1.0  # at least, between two writes of the file while nothing important changes

# idle: connected, and not sampled in this round. late: silent beyond the deadline, so left out of rounds.
# absent: not connected. declined: it cannot train now, e.g. because its disk is full. refused: its reply does
# not count, or it cannot take part. left: it leaves the roster or is ejected. Of peers alone: removed, by
# one end of the edge; waiting for the neighbours' models; done with the last round.
ClientState = Literal[
    "idle", "training", "answered", "scoring", "finishing", "late", "absent", "declined", "refused", "left",
    "removed", "waiting", "done",
]  # fmt: skip
# gathering: clients register, before the first round. collecting: a peer without its disk asks for the
# neighbours' models. finishing: clients store their final models, or a peer answers those who have not
# finished. stopped: the process ended before the last round; it resumes when it is started again.
RunPhase = Literal["gathering", "collecting", "training", "scoring", "finishing", "done", "stopped"]
ENDED_PHASES = ("done", "stopped")


@dataclass(frozen=True)
class ClientStatus:
    """A client as the server sees it, or a neighbour as a peer sees it.

    round: the last round that it answered, 0 before the first. age: rounds by which a peer is ahead of that.
    problem: why a peer cannot ask this neighbour; empty if it can.
    """

    state: ClientState
    since: float
    round: int = 0
    rows: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    last_seen: float | None = None
    age: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Status:
    """A run as the server sees it, or as a peer sees it: then `clients` are the peer and its neighbours.

    since: start of the phase in this round. awaited: clients that the run waits for. scores: the last ones.
    peer: the name of the peer; empty for a server. problem: why the last change of the roster was refused.
    unheard: peers beyond the neighbours whose records have not arrived yet. former_bytes: sent to and
    received from neighbours whose edges are removed.
    """

    run: str
    round: int
    rounds: int
    phase: RunPhase
    since: float
    clients: Mapping[str, ClientStatus]
    awaited: tuple[str, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    scored_round: int | None = None
    written: float | None = None  # time of the file that this was read from
    peer: str = ""
    unheard: tuple[str, ...] = ()
    problem: str = ""
    former_bytes: tuple[int, int] = (0, 0)

    @property
    def bytes_up(self) -> int:
        """Bytes that all clients have sent, or that the peer has sent to its neighbours."""
        return self.former_bytes[0] + sum(client.bytes_up for client in self.clients.values())

    @property
    def bytes_down(self) -> int:
        """Bytes that all clients have received, or the peer from its neighbours."""
        return self.former_bytes[1] + sum(client.bytes_down for client in self.clients.values())


def encode_status(status: Status, now: float, utc: float) -> dict[str, Any]:
    """Return plain values with UTC times; `now` and `utc` are the same moment on both clocks."""

    def convert(moment: float | None) -> str | None:
        return None if moment is None else format_utc(utc - (now - moment))

    clients = {
        name: {
            "state": client.state,
            "since": convert(client.since),
            "round": client.round,
            "rows": client.rows,
            "bytes_up": client.bytes_up,
            "bytes_down": client.bytes_down,
            "last_seen": convert(client.last_seen),
            "age": client.age,
            "problem": client.problem,
        }
        for name, client in status.clients.items()
    }
    scores = {key: value if value is not None and math.isfinite(value) else None
              for key, value in status.scores.items()}  # fmt: skip
    return {
        "version": STATUS_VERSION,
        "run": status.run,
        "peer": status.peer,
        "written": convert(now if status.written is None else status.written),
        "round": status.round,
        "rounds": status.rounds,
        "phase": status.phase,
        "since": convert(status.since),
        "awaited": list(status.awaited),
        "unheard": list(status.unheard),
        "problem": status.problem,
        "bytes_up": status.bytes_up,
        "bytes_down": status.bytes_down,
        "former_bytes": list(status.former_bytes),
        "scored_round": status.scored_round,
        "scores": scores,
        "clients": clients,
    }


def decode_status(facts: Mapping[str, Any], now: float, utc: float) -> Status:
    """Return the status of plain values with times of this process's clock; raise ValueError for others."""

    def convert(text: object) -> float:
        return now - (utc - datetime.fromisoformat(_expect(text, str)).timestamp())

    def parse_client(client: Mapping[str, Any]) -> ClientStatus:
        seen = client["last_seen"]
        return ClientStatus(
            state=_expect_word(client["state"], ClientState),
            since=convert(client["since"]),
            last_seen=None if seen is None else convert(seen),
            problem=_expect(client.get("problem", ""), str),
            **{key: _expect(client[key], int) for key in ("round", "rows", "bytes_up", "bytes_down", "age")},
        )

    try:
        if facts["version"] != STATUS_VERSION:
            raise ValueError(f"it has version {facts['version']!r}, and this fedlap reads {STATUS_VERSION}")
        scored = facts["scored_round"]
        former_up, former_down = facts.get("former_bytes", (0, 0))
        clients = {name: parse_client(client) for name, client in facts["clients"].items()}
        if not set(facts["awaited"]) <= set(clients):
            raise ValueError("it waits for a client that it does not list")
        return Status(
            run=_expect(facts["run"], str),
            round=_expect(facts["round"], int),
            rounds=_expect(facts["rounds"], int),
            phase=_expect_word(facts["phase"], RunPhase),
            since=convert(facts["since"]),
            clients=clients,
            awaited=tuple(facts["awaited"]),
            scores={
                name: None if value is None else float(_expect(value, int | float))
                for name, value in facts["scores"].items()
            },
            scored_round=None if scored is None else _expect(scored, int),
            written=convert(facts["written"]),
            peer=_expect(facts["peer"], str),
            unheard=tuple(_expect(name, str) for name in facts["unheard"]),
            problem=_expect(facts.get("problem", ""), str),
            former_bytes=(_expect(former_up, int), _expect(former_down, int)),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is not a status of a run ({type(error).__name__}: {error})") from None


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"unexpected {type(value).__name__}")
    return value


def _expect_word(value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        raise ValueError(f"unknown word {value!r}")
    return value


def write_status(folder: Path, status: Status, now: float | None = None) -> None:
    """Write status.json atomically, readable for its owner alone."""
    facts = encode_status(status, time.monotonic() if now is None else now, time.time())
    write_file(folder / STATUS_FILE, json.dumps(facts, indent=1).encode(), private=True)


def read_status(folder: Path) -> Status:
    """Read status.json of the folder of a server or a peer; raise InputError if there is none."""
    path = folder / STATUS_FILE
    try:
        facts = parse_json(read_file(path))
        return decode_status(facts, time.monotonic(), time.time())
    except FileNotFoundError:
        raise InputError(
            f"{str(folder)!r} has no {STATUS_FILE}; pass the folder of a run that `fedlap serve` or "
            "`fedlap peer` has started"
        ) from None
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {describe_error(error)}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{str(path)!r} cannot be used: {' '.join(str(error).split())}") from None


class StatusWriter:
    """Writes status.json at most once per second, and immediately if the phase or a client's state changes.

    If the file cannot be written, training continues.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._clock, self._written_at = clock, -math.inf
        self._words: tuple[object, ...] | None = None

    def update(self, status: Status) -> bool:
        """Write the status if it is due; return whether it was written."""
        now, words = self._clock(), _list_words(status)
        if words == self._words and now - self._written_at < STATUS_SECONDS:
            return False
        self._words, self._written_at = words, now
        try:
            write_status(self.folder, status, now)
        except InputError:
            return False
        return True


def _list_words(status: Status) -> tuple[object, ...]:
    """Return the parts of a status whose change is written at once.

    Clients of fast rounds change between idle, training and answered many times per second.
    """
    lasting = {
        name: client.state
        for name, client in status.clients.items()
        if client.state not in ("idle", "training", "answered", "waiting")
    }
    return status.phase in ENDED_PHASES, status.problem, lasting
