"""A ledger: what came out of runs that are done, a line for each, so that none is made twice."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.storage.files import appending, parse_json, read_file, reason, refuse_link, unwritable


class Ledger:
    """A file of lines; one that was not written to its end does not count."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self.path = path
        self._known: dict[str, dict[str, Any]] = {}
        try:
            lines = read_file(path).split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read: {reason(error)}") from error
        for number, line in enumerate(lines, 1):
            try:
                entry = parse_json(line)
                self._known[entry.pop("run")] = entry
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise InputError(f"{str(path)!r}, line {number} is damaged; remove that line") from error

    def entry(self, experiment: Experiment) -> dict[str, Any] | None:
        """What came out of a run, if it was made."""
        return self._known.get(_key(experiment))

    def add(self, made: Sequence[tuple[Experiment, Mapping[str, Any]]]) -> None:
        """Write down what came out of runs, all lines or none."""
        lines = b""
        for experiment, entry in made:
            self._known[_key(experiment)] = dict(entry)
            lines += json.dumps({"run": _key(experiment), **entry}).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f"{self.path.name}.lock")
            refuse_link(lock)
            with FileLock(lock):
                self._append(lines)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _append(self, lines: bytes) -> None:
        """While nobody else does."""
        with appending(self.path) as file:
            file.truncate(file.readall().rfind(b"\n") + 1)  # what an interrupted write left
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())


def _key(experiment: Experiment) -> str:
    """What a run is called; where it is made says nothing of what comes out but last digits."""
    return f"{experiment.model_copy(update={'device': 'cpu'}).digest}-{experiment.rounds}"
