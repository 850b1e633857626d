"""The file rounds.jsonl of a run, with one line per score."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from fedlap.storage.files import open_append, unwritable_error, write_file
from fedlap.training.scores import Score

SCORE_LOG_FILE = "rounds.jsonl"


@dataclass(eq=False)
class ScoreLog:
    """The file rounds.jsonl of a run in training, and all its scores, from which the file can be restored.

    at_once: append each score immediately to a file that stays open; else write all scores in `sync`.
    """

    path: Path
    scores: list[Score]
    _file: FileIO | None
    _seen: tuple[int, int]  # inode and size of the file
    _written: int  # number of scores in the file

    @staticmethod
    @contextmanager
    def of(folder: Path, scores: Sequence[Score], at_once: bool) -> Iterator["ScoreLog"]:
        """Open the log of a run whose file contains these scores."""
        path, found = folder / SCORE_LOG_FILE, get_stat(folder / SCORE_LOG_FILE)
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
        """Flush all scores to disk; return whether another program had removed or changed the file."""
        found = get_stat(self.path)
        intact = found is not None and (found.st_ino, found.st_size) == self._seen
        if not intact:
            if self._file is not None:
                self._file.close()
            write_file(self.path, b"".join(map(format_line, self.scores)))
            self._written = len(self.scores)
            self._file = self._open() if self._file is not None else None
        file = self._file or self._open()
        try:
            self._write(file)
            os.fsync(file.fileno())
            stat = os.fstat(file.fileno())
            self._seen = stat.st_ino, stat.st_size
        except OSError as error:
            raise unwritable_error(self.path, error) from error
        finally:
            if file is not self._file:
                file.close()
        return not intact

    def _open(self) -> FileIO:
        try:
            return open_append(self.path)
        except OSError as error:
            raise unwritable_error(self.path, error) from error

    def _write(self, file: FileIO) -> None:
        """Write the scores that are not in the file yet."""
        lines = memoryview(b"".join(map(format_line, self.scores[self._written :])))
        self._written, (inode, size) = len(self.scores), self._seen
        self._seen = inode, size + len(lines)
        try:
            while lines:
                lines = lines[file.write(lines) :]
        except OSError as error:
            raise unwritable_error(self.path, error) from error


def format_line(score: Score) -> bytes:
    """Return the line of a score."""
    return json.dumps(score.as_dict()).encode() + b"\n"


def get_stat(path: Path) -> os.stat_result | None:
    """Return the status of a file, without following links; None if there is no file."""
    try:
        return path.lstat()
    except OSError:
        return None
