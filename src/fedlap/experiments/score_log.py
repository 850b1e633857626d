"""File rounds.jsonl of a run: a line per score."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from fedlap.storage.files import appending, unwritable, write_file
from fedlap.training.scores import Score

ROUNDS = "rounds.jsonl"


@dataclass(eq=False)
class ScoreLog:
    """File rounds.jsonl of a run in training, a line per score, and the scores to restore it from.

    at_once: write each score when it comes, into a file that stays open; else write all of them in `sync`.
    """

    path: Path
    scores: list[Score]
    _file: FileIO | None
    _seen: tuple[int, int]  # inode and size of the file
    _written: int  # number of scores in the file

    @staticmethod
    @contextmanager
    def of(folder: Path, scores: Sequence[Score], at_once: bool) -> Iterator["ScoreLog"]:
        """The log of a run whose file has these scores."""
        path, found = folder / ROUNDS, stat_of(folder / ROUNDS)
        log = ScoreLog(
            path, list(scores), None, (found.st_ino, found.st_size) if found else (0, 0), len(scores)
        )
        try:
            log._file = log._open() if at_once else None
            yield log
        finally:
            if log._file is not None:
                log._file.close()

    def append(self, score: Score) -> None:
        """Add a score."""
        self.scores.append(score)
        if self._file is not None:
            self._write(self._file)

    def sync(self) -> bool:
        """Bring all scores to the disk; return whether the file had been removed or changed by others."""
        found = stat_of(self.path)
        intact = found is not None and (found.st_ino, found.st_size) == self._seen
        if not intact:
            if self._file is not None:
                self._file.close()
            write_file(self.path, b"".join(map(line_of, self.scores)))
            self._written = len(self.scores)
            self._file = self._open() if self._file is not None else None
        file = self._file or self._open()
        try:
            self._write(file)
            os.fsync(file.fileno())
            at = os.fstat(file.fileno())
            self._seen = at.st_ino, at.st_size
        except OSError as error:
            raise unwritable(self.path, error) from error
        finally:
            if file is not self._file:
                file.close()
        return not intact

    def _open(self) -> FileIO:
        try:
            return appending(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _write(self, file: FileIO) -> None:
        """Write the scores that are not in the file yet."""
        lines = memoryview(b"".join(map(line_of, self.scores[self._written :])))
        self._written, (inode, size) = len(self.scores), self._seen
        self._seen = inode, size + len(lines)
        try:
            while lines:
                lines = lines[file.write(lines) :]
        except OSError as error:
            raise unwritable(self.path, error) from error


def line_of(score: Score) -> bytes:
    """The line of a score."""
    return json.dumps(score.as_dict()).encode() + b"\n"


def stat_of(path: Path) -> os.stat_result | None:
    """Facts about a file itself, not about what it may link to; None if there is none."""
    try:
        return path.lstat()
    except OSError:
        return None
