"""The log of a deployment: one JSON line per event, without values of rows.

An event consists of words from the lists below, of names of the roster, and of listed numbers and digests.
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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from fedlap.deploy.transport import ExitCode
from fedlap.storage.files import describe_error, open_append, parse_json, read_file

EVENT_LOG_FILE = "log.jsonl"
ROTATED_FILE = re.compile(r"log\.([1-9][0-9]{0,5})\.jsonl")
MOST_LOG_BYTES = 10_000_000  # per file
MOST_LOG_FILES = 5
SYNC_SECONDS = 1.0  # between two waits for the disk, which take about 5 ms each

# Events and their sentences in the readable form. In the log of a client, no name means the client itself.
EVENTS = {
    # The run, at the server
    "listening": "The server listens",
    "started": "The run starts",
    "resumed": "The run resumes",
    "merged": "The replies are merged",
    "scored": "The models are scored",
    "not_scored": "The models are not scored",
    "requested": "A change of the roster is requested for {name}",
    "roster": "The roster changes for {name}",
    "register_changed": "The register of certificates has changed",
    "done": "The run is finished",
    # A client, at the server or at the client
    "present": "{name} is present",
    "registered": "{name} is registered",
    "answered": "{name} has answered",
    "declined": "{name} declines the round",
    "left_out": "{name} is left out of the round",
    "late": "{name} is late",
    "refused": "A message of {name} is refused",
    "repeated": "{name} repeats a message and gets the same answer",
    "left": "{name} leaves",
    # The rest of a client
    "unreachable": "The server does not answer",
    "reconnected": "The server answers again",
    "finished": "The final model is stored",
    "ended": "The server has ended the run",
    "forgotten": "State and models are deleted",
    # Both
    "waiting": "Waiting",
    "stopped": "The process stops; it resumes when it is started again",
    "failed": "The process ends with an error",
    "certificate_expiring": "The certificate expires soon; renew it",
    "certificate_renewed": "The renewed certificate is in use",
    "log_gap": "Events are missing here, since the log could not be written",
}

# Reasons. {names} stands for names of the roster with commas between, {number} for a number. A reason never
# contains the message of an error, which may quote a row.
REASONS = (
    "for {names}",
    "without {names}",
    "not a client of this run",
    "no client has answered",
    "silent",
    "silent beyond the deadline",
    "for now",
    "for good",
    *("join", "leave", "eject"),
    "a change of the roster that is not possible",
    # Messages
    "damaged message",
    "its messages are damaged",
    "nobody asked for it, or the round is over",
    "it was computed for another roster",
    "its shape or type differs from that of the method",
    "it contains NaN or infinity",
    "its norm is {number}, above {number}",
    "it is no tally",
    "message too long",
    # Clients
    "it declined",
    "the client cannot write its disk",
    "disk full or read-only",
    "the data do not fit the plan",
    "other rows than at the start",
    "the run has ended",
    "training diverged",
    # Connections and versions; the first line has one reason per exit code
    *("other authority", "expired", "wrong name", "refused", "other version", "other plan", "storage"),
    "other wire format",
    "not reachable",
    "no answer in time",
    "revoked",
    "a signal",
    "internal error",
)
OTHER_REASON = "see the console"  # in the place of a text that is not in the list
REPLY_PREFIX = "reply: "  # of a reason, if the message was a reply

# Numbers and their units in the readable form.
NUMBERS = {
    **dict.fromkeys(("clients", "cohort", "replies", "minimum", "attempt", "code", "port", "version"), ""),
    **dict.fromkeys(("rows", "test_rows", "rounds", "events", "parameters", "issue", "strength"), ""),
    **dict.fromkeys(("bytes", "bytes_up", "bytes_down", "free_bytes"), "bytes"),
    **dict.fromkeys(("seconds", "silent_seconds", "round_seconds", "deadline"), "s"),
    **dict.fromkeys(("train_loss", "loss", "accuracy", "rmse", "mae", "r2", "objective", "norm"), ""),
    "days": "days",
}
DIGESTS = ("plan", "graph", "fingerprint")  # hexadecimal digits
DIGEST = re.compile("[0-9a-f]{8,64}")
NUMBER_TEXT = r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf|nan)"
MOST_NAME_LENGTH = 64
LARGEST_INTEGER = 1 << 63

Number = int | float | bool


def name_reason(code: ExitCode) -> str:
    """Return the reason of an exit code."""
    return code.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Event:
    """One line of the log; `time` is UTC with milliseconds, and numbers that are not finite are None.

    facts: numbers, and digests as hexadecimal digits.
    """

    time: str
    run: str
    event: str
    round: int | None = None
    name: str | None = None
    reason: str | None = None
    facts: Mapping[str, Number | str | None] = field(default_factory=dict)


class EventLog:
    """A log for all threads of a process, rotated by size: log.jsonl, then log.1.jsonl (older) and so on.

    A killed process loses no event. A power cut loses the events that the system has not written yet, usually
    those of the last second. If the log cannot be written, the run continues; an event `log_gap` counts the
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
    ) -> None:
        """Open the log, whose name must be log.jsonl.

        names: clients that events may name; `allow` adds others.
        show: prints the readable form of every event.
        """
        if path.name != EVENT_LOG_FILE:
            raise ValueError(f"the log is named {path.name!r}; expected {EVENT_LOG_FILE!r}")
        self.path, self.run = path, _check_name("run", run)
        self._most_bytes, self._most_files, self._show = most_bytes, most_files, show
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
        log = EventLog(folder / EVENT_LOG_FILE, run, names, show=show)
        try:
            yield log
        finally:
            log.close()

    def allow(self, names: Collection[str]) -> None:
        """Add clients that events may name; a client that has left can still be named."""
        self._names |= {_check_name("name", name) for name in names}

    def write(
        self,
        event: str,
        *,
        round: int | None = None,
        name: str | None = None,
        reason: str | None = None,
        **facts: Number | str | None,
    ) -> None:
        """Log an event; raise TypeError or ValueError for an unlisted word or another type.

        reason: if it is not listed, as a message of an error or of the other side, only the console gets it.
        """
        checked = Event(
            format_utc(time.time()),
            self.run,
            _check_event(event),
            None if round is None else _check_round(round),
            None if name is None else self._check_client(name),
            None if reason is None else self._find_reason(reason),
            {key: _check_fact(key, value) for key, value in facts.items() if value is not None},
        )
        with self._lock:
            self._append(checked)
        if self._show is not None:
            self._show(format_event(replace(checked, reason=reason)))

    def _check_client(self, name: str) -> str:
        if _check_name("name", name) not in self._names:
            raise ValueError("the name is not that of a client; call `allow` with the names of the roster")
        return name

    def _find_reason(self, text: str) -> str:
        """Return the text if it is a listed reason, else a reference to the console."""
        if type(text) is not str:
            raise TypeError(f"reason is of type {type(text).__name__}; expected a str")
        names = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True)) or "(?!)"
        slots = {"names": f"(?:{names})(?:, (?:{names}))*", "number": NUMBER_TEXT}
        bare = text.removeprefix(REPLY_PREFIX)
        is_listed = text == OTHER_REASON or any(_match_template(form, bare, slots) for form in REASONS)
        return text if is_listed else OTHER_REASON

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
            gap = Event(event.time, self.run, "log_gap", facts={"events": self._missing})
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
        **event.facts,
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
        and all(isinstance(value, int | float | str | None) for value in facts.values())
    )
    return Event(**words, **others, facts=facts) if is_valid else None


def format_event(event: Event) -> str:
    """Return the readable form, e.g. "2026-07-03 12:00:01Z  round 3: south has answered (40,120 bytes)"."""
    sentence = EVENTS.get(event.event, event.event)
    if "{name}" in sentence:
        sentence = sentence.replace("{name}", event.name or "this client")
        sentence = sentence[0].upper() + sentence[1:] if event.name is None else sentence
    elif event.name is not None:
        sentence = f"{event.name}: {sentence}"
    place = "" if event.round is None else f"round {event.round}: "
    reason = "" if event.reason is None else f": {event.reason}"
    facts = ", ".join(_format_fact(key, value) for key, value in event.facts.items())
    moment = f"{event.time[:19].replace('T', ' ')}Z"
    return f"{moment}  {place}{sentence}{reason}{f' ({facts})' if facts else ''}"


def _match_template(template: str, text: str, slots: Mapping[str, str]) -> bool:
    """Return whether a text is a template with its slots filled by these patterns."""
    pattern = re.escape(template)
    for slot, inner in slots.items():
        pattern = pattern.replace(re.escape(f"{{{slot}}}"), inner)
    return re.fullmatch(pattern, text) is not None


def _format_fact(key: str, value: Number | str | None) -> str:
    unit = NUMBERS.get(key, "")
    word = key if not unit else key.removesuffix("_seconds").removesuffix("_bytes").removeprefix("bytes_")
    if type(value) is int:
        text = str(value) if key in ("code", "port", "version") else f"{value:,}"
    else:
        text = f"{value:.4g}" if isinstance(value, float) else "not finite" if value is None else str(value)
    text = f"{text} {unit}".rstrip()
    return text if word in (unit, "seconds", "bytes") else f"{word.replace('_', ' ')} {text}"


def format_utc(seconds: float) -> str:
    """Format seconds since 1970 as UTC with milliseconds, e.g. 2026-07-03T12:00:01.250Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _check_event(event: object) -> str:
    if type(event) is not str or event not in EVENTS:
        raise ValueError(f"unknown event of type {type(event).__name__}; add its sentence to EVENTS")
    return event


def _check_name(what: str, name: object) -> str:
    """Return a name; the error does not quote it, since it may be the text of a row."""
    if type(name) is not str:
        raise TypeError(f"{what} is of type {type(name).__name__}; expected a str")
    if not name or len(name) > MOST_NAME_LENGTH or not name.isprintable() or name != name.strip():
        raise ValueError(f"{what} is not a name; use at most {MOST_NAME_LENGTH} printable characters")
    return name


def _check_round(round: object) -> int:
    if type(round) is not int or not 0 <= round < LARGEST_INTEGER:
        raise TypeError(f"round is of type {type(round).__name__}; expected an int of at least 0")
    return round


def _check_fact(key: str, value: object) -> Number | str | None:
    """Return a number of an exact Python type, None if it is not finite, or a digest."""
    if key in DIGESTS:
        if type(value) is str and DIGEST.fullmatch(value):
            return value
        raise TypeError(f"{key} is of type {type(value).__name__}; expected 8 to 64 hexadecimal digits")
    if key not in NUMBERS:
        raise ValueError("unknown number; add its name and unit to NUMBERS")
    if type(value) is int and abs(value) < LARGEST_INTEGER:
        return value
    if type(value) is bool:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else None
    raise TypeError(f"{key} is of type {type(value).__name__}; expected a 64-bit int, a float or a bool")
