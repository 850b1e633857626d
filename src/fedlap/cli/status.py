"""The command that shows a server's run: status."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedlap.cli import console
from fedlap.deploy.status import ENDED_PHASES, encode_status, read_status
from fedlap.deploy.status_display import StatusDisplay, describe_waiting, render_status
from fedlap.errors import InputError

READ_SECONDS = 0.5  # between two readings of the file


def show_status(folder: Path, watch: bool, as_json: bool) -> None:
    """Print the status of a server's run once, or until it ends."""
    if watch and as_json:
        raise InputError("--watch and --json cannot be combined; remove one of them")
    if watch:
        with suppress(KeyboardInterrupt):  # the way to end it
            watch_status(folder)
        return
    status, now, utc = read_status(folder), time.monotonic(), time.time()
    if as_json:
        print(json.dumps({**encode_status(status, now, utc), "waiting": describe_waiting(status, now)}))
        return
    console.out.print(render_status(status, now))


def watch_status(folder: Path, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a server's run until it ends: a live table on a terminal, one line per minute elsewhere."""
    with StatusDisplay(console.out) as display:
        while True:
            status = read_status(folder)
            display.update(status)
            if status.phase in ENDED_PHASES:
                return
            sleep(READ_SECONDS)
