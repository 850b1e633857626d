"""Standard output and standard error that may be closed, full, or of a narrow encoding."""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class OutputError(Exception):
    """Standard output that cannot be written; `closed` if its reader has ended, as `head` does."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.closed = error.errno == errno.EPIPE


class Stream:
    """A text stream that raises OutputError, unlike other files; after one failure every write fails."""

    def __init__(self, stream: TextIO, needed: bool) -> None:
        self._stream = stream
        self._needed = needed  # Results are needed. Training must not end because a remark cannot be printed.
        self._failure: OutputError | None = None

    def write(self, text: str) -> int:
        """Write the text, escaped where the encoding lacks a character."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the buffer."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self._failure = OutputError(error)
            discard_output(self._stream)
        if self._failure is not None and self._needed:
            raise self._failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard_output(stream: TextIO) -> None:
    """Redirect a stream to /dev/null; otherwise Python reports the failure again at exit."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextmanager
def check_streams() -> Iterator[None]:
    """Raise OutputError if standard output cannot be written; escape characters that an encoding lacks."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        # A closed descriptor has no stream at all, and print() then prints nothing.
        if sys.stdout is not None:
            sys.stdout = Stream(sys.stdout, needed=True)
        if sys.stderr is not None:
            sys.stderr = Stream(sys.stderr, needed=False)
        yield
    finally:
        sys.stdout, sys.stderr = before
