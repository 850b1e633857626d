"""The log of a deployment: one JSON line per event, without values of rows.

An event consists of words from `event_words.py`, of names of the roster, and of numbers with a listed name.
Anything else raises an error, so neither tensors nor texts of rows can get into the log by mistake.
"""

import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Self

from fedlap.deploy.event_words import EVENTS, NUMBERS, PLAIN_NUMBERS, EventReason
from fedlap.deploy.transport import PermanentError
from fedlap.storage.files import describe_error, open_append, parse_json, read_file

EVENT_LOG_FILE = "log.jsonl"
ROTATED_FILE = re.compile(r"log\.([1-9][0-9]{0,5})\.jsonl")
MOST_LOG_BYTES = 10_000_000  # per file
MOST_LOG_FILES = 5
SYNC_SECONDS = 1.0  # between two waits for the disk, which take about 5 ms each

MOST_NAME_LENGTH = 64  # characters, of a run or client
LARGEST_INTEGER = 1 << 63

Number = int | float | bool


@dataclass(frozen=True)
class Event:
    """One line of the log; `time` is UTC with milliseconds, and numbers that are not finite are None."""

    time: str
    run: str
    event: str
    round: int | None = None
    name: str | None = None
    reason: str | None = None
    numbers: Mapping[str, Number | None] = field(default_factory=dict)


class EventLog:
    """A log for all threads of a process, rotated by size: log.jsonl, then log.1.jsonl (older) and so on.

    A killed process loses no event. A power cut loses the events that the system has not written yet, usually
    those of the last second. If the log cannot be written, the run continues; an event `log-gap` counts the
    missing events as soon as there is room.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        names: Collection[str] = (),
        most_bytes: int = MOST_LOG_BYTES,
        most_files: int = MOST_LOG_FILES,
        show: Callable[[str], None] | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        """Open the log, whose name must be log.jsonl.

        names: clients that events may name; `allow` adds others.
        show: prints the readable form of every event, except those in `hidden`.
        """
        if path.name != EVENT_LOG_FILE:
            raise ValueError(f"the log is named {path.name!r}; expected {EVENT_LOG_FILE!r}")
        self.path, self.run = path, _check_name("run", run)
        self._most_bytes, self._most_files, self._show = most_bytes, most_files, show
        self._hidden = {*hidden, "failed"}  # The command prints the error itself.
        self._file: FileIO | None = None
        self._lock = threading.Lock()
        self._missing = 0
        self._synced_at = -math.inf
        self._names: set[str] = set()
        self.allow(names)

    @staticmethod
    @contextmanager
    def open(
        folder: Path, run: str, names: Collection[str], show: Callable[[str], None] | None = None
    ) -> Iterator["EventLog"]:
        """Open the log of a folder, and close it at the end of the block."""
        with EventLog(folder / EVENT_LOG_FILE, run, names, show=show) as log:
            yield log

    def __enter__(self) -> Self:
        """Return the log, which is closed at the end of the block; an error that ends the block is logged."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PermanentError):
            self.write("failed", reason=EventReason.from_code(error.code))
        elif isinstance(error, Exception):
            self.write("failed")
        self.close()

    def allow(self, names: Collection[str]) -> None:
        """Add clients that events may name; a client that has left can still be named."""
        self._names |= {_check_name("name", name) for name in names}

    def write(
        self,
        event: str,
        *,
        round: int | None = None,
        name: str | None = None,
        reason: EventReason | None = None,
        **numbers: Number,
    ) -> None:
        """Log an event; raise TypeError or ValueError for an unlisted word or another type."""
        checked = Event(
            format_utc(time.time()),
            self.run,
            _check_event(event, name),
            None if round is None else _check_round(round),
            None if name is None else self._check_client(name),
            None if reason is None else str(_check_reason(reason)),
            {key: _check_number(key, value) for key, value in numbers.items()},
        )
        with self._lock:
            self._append(checked)
        if self._show is not None and event not in self._hidden:
            self._show(format_event(checked))

    def _check_client(self, name: str) -> str:
        if _check_name("name", name) not in self._names:
            raise ValueError("the name is not that of a client; call `allow` with the names of the roster")
        return name

    def close(self) -> None:
        """Wait until all events are on disk, and close the file."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):  # a full disk has been reported by then, or is found by others
                    self._sync(self._file)
                self._file.close()
                self._file = None

    def _append(self, event: Event) -> None:
        """Write a line; on failure count the event, and begin a new file or line next time."""
        lines = encode_event(event)
        if self._missing:
            gap = Event(event.time, self.run, "log-gap", numbers={"events": self._missing})
            lines = encode_event(gap) + lines
        try:
            file = self._open(len(lines))
            done = 0
            while done < len(lines):
                done += file.write(lines[done:])
            if time.monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync(file)
        except OSError as error:
            if not self._missing and self._show is not None:
                self._show(f"{self.path} cannot be written ({describe_error(error)}); make room there")
            self._missing += 1
            if self._file is not None:
                self._file.close()
                self._file = None
        else:
            self._missing = 0

    def _sync(self, file: FileIO) -> None:
        os.fsync(file.fileno())
        self._synced_at = time.monotonic()

    def _open(self, size: int) -> FileIO:
        """Return the file, after rotation if it has no room for `size` more bytes."""
        file = self._file
        if file is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._file = open_append(self.path, private=True)
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                file.write(b"\n")  # The line of a process that was killed, or that found no room, ends here.
        if 0 < os.fstat(file.fileno()).st_size > self._most_bytes - size:
            self._sync(file)
            file.close()
            self._file = None
            rotate_log(self.path, self._most_files)
            file = self._file = open_append(self.path, private=True)
        return file


def rotate_log(path: Path, most_files: int) -> None:
    """Rename log.jsonl to log.1.jsonl, after log.1.jsonl to log.2.jsonl and so on; remove the oldest."""
    for number in [number for number in _list_rotated(path.parent) if number >= most_files - 1]:
        path.with_name(f"log.{number}.jsonl").unlink()
    for number in reversed(_list_rotated(path.parent)):
        path.with_name(f"log.{number}.jsonl").replace(path.with_name(f"log.{number + 1}.jsonl"))
    if most_files > 1:
        path.replace(path.with_name("log.1.jsonl"))
    else:
        path.unlink()


def _list_rotated(folder: Path) -> list[int]:
    """Return the numbers of rotated files, newest first."""
    return sorted(int(found[1]) for path in folder.iterdir() if (found := ROTATED_FILE.fullmatch(path.name)))


def read_events(folder: Path) -> list[Event]:
    """Return the events of a folder, oldest first; damaged lines, as a power cut leaves them, are skipped."""
    paths = [folder / f"log.{number}.jsonl" for number in reversed(_list_rotated(folder))]
    lines = [line for path in [*paths, folder / EVENT_LOG_FILE] if path.exists()
             for line in read_file(path).split(b"\n")]  # fmt: skip
    return [event for line in lines if (event := decode_event(line)) is not None]


def encode_event(event: Event) -> bytes:
    """Return the line of an event."""
    facts = {
        "time": event.time,
        "run": event.run,
        "round": event.round,
        "name": event.name,
        "event": event.event,
        "reason": event.reason,
        **event.numbers,
    }
    return json.dumps(facts, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def decode_event(line: bytes) -> Event | None:
    """Return the event of a line, also with words of a later version; None if the line is damaged."""
    try:
        facts: dict[str, Any] = parse_json(line)
        words = {key: facts.pop(key) for key in ("time", "run", "event")}
        others = {key: facts.pop(key) for key in ("round", "name", "reason")}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    texts = [*words.values(), *(value for key in ("name", "reason") if (value := others[key]) is not None)]
    is_valid = (
        all(isinstance(text, str) for text in texts)
        and isinstance(others["round"], int | None)
        and all(isinstance(value, int | float | None) for value in facts.values())
    )
    return Event(**words, **others, numbers=facts) if is_valid else None


def format_event(event: Event) -> str:
    """Return the readable form, e.g. "2026-07-03 12:00:01Z  round 3: south has answered (40,120 bytes)"."""
    sentence = EVENTS.get(event.event, event.event)
    if "{name}" in sentence:
        sentence = sentence.replace("{name}", event.name or "a client")
    elif event.name is not None:
        sentence = f"{event.name}: {sentence}"
    place = "" if event.round is None else f"round {event.round}: "
    reason = "" if event.reason is None else f": {event.reason}"
    numbers = ", ".join(_format_number(key, value) for key, value in event.numbers.items())
    moment = f"{event.time[:19].replace('T', ' ')}Z"
    return f"{moment}  {place}{sentence}{reason}{f' ({numbers})' if numbers else ''}"


def _format_number(key: str, value: Number | None) -> str:
    unit = NUMBERS.get(key, "")
    word = key if not unit else key.removesuffix("_seconds").removesuffix("_bytes").removeprefix("bytes_")
    if value is None or type(value) is bool:
        text = "not finite" if value is None else str(value).lower()
    else:
        text = (
            f"{value:.4g}" if type(value) is float else str(value) if key in PLAIN_NUMBERS else f"{value:,}"
        )
    text = f"{text} {unit}".rstrip()
    return text if word in (unit, "seconds", "bytes") else f"{word.replace('_', ' ')} {text}"


def format_utc(seconds: float) -> str:
    """Format seconds since 1970 as UTC with milliseconds, e.g. 2026-07-03T12:00:01.250Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_name(text: object) -> bool:
    """Return whether a text can name a run or a client in the log."""
    return (
        type(text) is str
        and 0 < len(text) <= MOST_NAME_LENGTH
        and text.isprintable()
        and text == text.strip()
    )


def _check_event(event: object, name: object) -> str:
    if type(event) is not str or event not in EVENTS:
        raise ValueError(f"unknown event of type {type(event).__name__}; add its sentence to EVENTS")
    if "{name}" in EVENTS[event] and name is None:
        raise ValueError(f"event {event!r} has no name; pass the name of the client")
    return event


def _check_name(what: str, name: object) -> str:
    """Return a name; the error does not quote it, since it may be the text of a row."""
    if type(name) is not str:
        raise TypeError(f"{what} is of type {type(name).__name__}; expected a str")
    if not is_name(name):
        raise ValueError(f"{what} is not a name; use at most {MOST_NAME_LENGTH} printable characters")
    return name


def _check_reason(reason: object) -> EventReason:
    if type(reason) is not EventReason:
        raise TypeError(f"reason is of type {type(reason).__name__}; expected an EventReason")
    return reason


def _check_round(round: object) -> int:
    if type(round) is not int or not 0 <= round < LARGEST_INTEGER:
        raise TypeError(f"round is of type {type(round).__name__}; expected an int of at least 0")
    return round


def _check_number(key: str, value: object) -> Number | None:
    """Return a number of an exact Python type, or None if it is not finite."""
    if key not in NUMBERS:
        raise ValueError("unknown number; add its name and unit to NUMBERS")
    if type(value) is int and abs(value) < LARGEST_INTEGER:
        return value
    if type(value) is bool:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else None
    raise TypeError(f"{key} is of type {type(value).__name__}; expected a 64-bit int, a float or a bool")
