"""The ledger: one line per finished run, so that no run is repeated."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.storage.files import (
    describe_error,
    open_append,
    parse_json,
    read_file,
    refuse_link,
    unwritable_error,
)


class Ledger:
    """A file with one line per run; an incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        """Read the entries of an existing file."""
        self.path = path
        self._known: dict[str, dict[str, Any]] = {}
        try:
            lines = read_file(path).split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read: {describe_error(error)}") from error
        for number, line in enumerate(lines, 1):
            try:
                entry = parse_json(line)
                self._known[entry.pop("run")] = entry
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise InputError(f"{str(path)!r}, line {number} is damaged; remove that line") from error

    def find_entry(self, experiment: Experiment) -> dict[str, Any] | None:
        """Return the recorded outcome of a run, or None."""
        return self._known.get(_build_key(experiment))

    def add(self, outcomes: Sequence[tuple[Experiment, Mapping[str, Any]]]) -> None:
        """Append the outcomes of runs: all lines or none."""
        lines = b""
        for experiment, entry in outcomes:
            self._known[_build_key(experiment)] = dict(entry)
            lines += json.dumps({"run": _build_key(experiment), **entry}).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f"{self.path.name}.lock")
            refuse_link(lock)
            with FileLock(lock):
                self._append(lines)
        except OSError as error:
            raise unwritable_error(self.path, error) from error

    def _append(self, lines: bytes) -> None:
        """Append lines; the caller holds the lock."""
        with open_append(self.path) as file:
            file.truncate(file.readall().rfind(b"\n") + 1)  # the remains of an interrupted write
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())


def _build_key(experiment: Experiment) -> str:
    """Return the key of a run.

    The device is not part of it, since it changes the last digits only, nor are the scores of training rows,
    which change no other number.
    """
    same = {"device": "cpu", "score_training": "last"}
    return f"{experiment.model_copy(update=same).digest}-{experiment.rounds}"
