"""Ctrl-C: the first finishes the round and writes a checkpoint, the second quits immediately."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedlap.cli import console
from fedlap.training.interrupts import catch_signals

# Signals and the handler of the second one, even if a shell has set the process to ignore them.
SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to stop; restore the signal handlers afterwards."""
    remark = "Stopping after this round (press Ctrl-C again to quit now)"
    with catch_signals(SIGNALS, lambda: console.print_remark(remark)) as stopping:
        yield stopping
