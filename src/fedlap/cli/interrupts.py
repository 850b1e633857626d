"""Ctrl-C: the first lets the round end and saves, the second stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedlap.cli import console

# The signals, and what the second one does; also where a shell has set the process to ignore them.
SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop; outside, signals do what they did."""
    if threading.current_thread() is not threading.main_thread():  # signals are not for other threads
        yield lambda: False
        return
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        for each, handler in SIGNALS.items():
            signal.signal(each, handler)
        console.remark("stopping after this round; once more stops at once")

    try:
        for number in SIGNALS:
            signal.signal(number, note)
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
