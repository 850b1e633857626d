"""Ctrl-C: the first lets the round end and saves, the second stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from fedlap.cli import console

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop; outside, and after the first signal, they do what they did."""
    if threading.current_thread() is not threading.main_thread():  # signals are not for other threads
        yield lambda: False
        return
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        restore()
        console.remark("stopping after this round; once more stops at once")

    try:
        for number in SIGNALS:
            signal.signal(number, note)
        yield asked.is_set
    finally:
        restore()
