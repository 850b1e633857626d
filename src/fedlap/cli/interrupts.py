"""Ctrl-C: the first finishes the round and writes a checkpoint, the second quits immediately."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedlap.cli import console

# Signals and the handler of the second one, even if a shell has set the process to ignore them.
SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to stop; restore the signal handlers afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Python delivers signals to the main thread only
        return
    stopping = threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def request_stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        for other, handler in SIGNALS.items():
            signal.signal(other, handler)
        console.print_remark("Stopping after this round (press Ctrl-C again to quit now)")

    try:
        for number in SIGNALS:
            signal.signal(number, request_stop)
        yield stopping.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
