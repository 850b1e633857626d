"""Parallel processes of fedlap, each with some of the rows."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from fedlap.cli import console
from fedlap.cli.interrupts import stop_on_signal
from fedlap.errors import StoppedError
from fedlap.experiments.plugins import PLUGINS_VARIABLE, list_plugin_files

POLL_SECONDS = 0.05  # between two checks for finished processes


def run_processes(commands: Sequence[Sequence[str]], workers: int) -> int:
    """Run `fedlap` once per list of arguments, `workers` at a time; return the number of failures.

    Lines on standard error are printed here. A request to stop lets every process finish its round.
    """
    waiting, failed, terminated = list(commands), 0, False
    running: list[tuple[subprocess.Popen[str], threading.Thread]] = []
    try:
        with stop_on_signal() as stopping:
            while running or (waiting and not stopping()):
                while waiting and len(running) < workers and not stopping():
                    running.append(_start_process(waiting.pop(0)))
                if stopping() and not terminated:  # a second signal would quit within the round
                    terminated = True
                    for process, _ in running:
                        process.terminate()
                time.sleep(POLL_SECONDS)
                for worker in [worker for worker in running if worker[0].poll() is not None]:
                    running.remove(worker)
                    worker[1].join()
                    failed += worker[0].returncode != 0
            if stopping():
                raise StoppedError("stopped; finished rows are stored")
    finally:
        for process, _ in running:
            process.kill()
    return failed


def _start_process(arguments: Sequence[str]) -> tuple[subprocess.Popen[str], threading.Thread]:
    """Start a process with the plugins of this one, and a thread that prints its standard error.

    The process gets no terminal signals.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "fedlap.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, PLUGINS_VARIABLE: os.pathsep.join(list_plugin_files())},
        start_new_session=True,
    )
    assert process.stderr is not None
    relay = threading.Thread(target=_relay_lines, args=(process.stderr,), daemon=True)
    relay.start()
    return process, relay


def _relay_lines(lines: IO[str]) -> None:
    with lines:
        for line in lines:
            console.print_remark(line.rstrip("\n"))
