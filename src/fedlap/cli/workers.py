"""Processes of this program beside each other, each with a part of the work."""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from fedlap.cli import console
from fedlap.cli.interrupts import stop_on_signal
from fedlap.experiments.session import StoppedError

PATIENCE = 0.05  # seconds between looks at who is done


def side_by_side(parts: Sequence[Sequence[str]], workers: int) -> int:
    """Run `fedlap` with each of these arguments, so many at a time; how many of them failed.

    What they say beside results is passed on line by line. Asked to stop, they end their round first.
    """
    waiting, failed, told = list(parts), 0, False
    running: list[tuple[subprocess.Popen[str], threading.Thread]] = []
    try:
        with stop_on_signal() as stopping:
            while running or (waiting and not stopping()):
                while waiting and len(running) < workers and not stopping():
                    running.append(_started(waiting.pop(0)))
                if stopping() and not told:  # once: a second time stops them at once
                    told = True
                    for process, _ in running:
                        process.terminate()
                time.sleep(PATIENCE)
                for each in [each for each in running if each[0].poll() is not None]:
                    running.remove(each)
                    each[1].join()
                    failed += each[0].returncode != 0
            if stopping():
                raise StoppedError("stopped; what was done before is not made again")
    finally:
        for process, _ in running:
            process.kill()
    return failed


def _started(arguments: Sequence[str]) -> tuple[subprocess.Popen[str], threading.Thread]:
    """A process, and the thread that passes on what it says; signals of the terminal are for us alone."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedlap.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    relay = threading.Thread(target=_passed_on, args=(process.stderr,), daemon=True)
    relay.start()
    return process, relay


def _passed_on(lines: IO[str]) -> None:
    with lines:
        for line in lines:
            console.remark(line.rstrip("\n"))
