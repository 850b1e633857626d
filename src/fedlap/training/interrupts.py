"""Requests to stop by signals: the first is noted, the second has its usual effect."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def catch_signals(
    signals: Mapping[signal.Signals, Any], on_signal: Callable[[], None]
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a signal has arrived; restore all handlers afterwards.

    signals: the handler of the second signal, by signal. on_signal: called at the first signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Python delivers signals to the main thread only
        return
    stopping = threading.Event()
    before = {number: signal.getsignal(number) for number in signals}

    def request_stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        for other, handler in signals.items():
            signal.signal(other, handler)
        on_signal()

    try:
        for number in signals:
            signal.signal(number, request_stop)
        yield stopping.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def catch_interrupt(on_interrupt: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C raises KeyboardInterrupt.

    A program that handles Ctrl-C itself keeps its handler.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with catch_signals(
        {signal.SIGINT: signal.default_int_handler} if usual else {}, on_interrupt
    ) as stopping:
        yield stopping
