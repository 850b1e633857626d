"""Processes of fedlap on this machine, for the demonstrations: keys, ports, commands, and their end."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from fedlap.deploy.keys import create_authority, install_certificate, request_certificate, sign_certificate

HOST = "127.0.0.1"
LIFETIME = timedelta(days=60)
MOST_SECONDS = 300  # far more than a run needs

Process = subprocess.Popen[bytes]


def create_keys(folder: Path, names: Sequence[str], hosts: Sequence[str] = ()) -> None:
    """Create an authority, and a key and certificate for each name. hosts: at which others dial them."""
    create_authority(folder / "authority", "demo", 2 * LIFETIME)
    for name in names:
        request = request_certificate(folder / name, name, hosts)  # at the site; the key never leaves it
        signed, _ = sign_certificate(folder / "authority", request, LIFETIME)  # at the authority
        install_certificate(folder / name, signed)  # at the site


def find_free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now."""
    with ExitStack() as until_end:
        probes = [until_end.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def start_command(words: Sequence[object], log: Path) -> Process:
    """Start `fedlap` with these words and one thread; its output is appended to a file."""
    command = [sys.executable, "-m", "fedlap.cli", *map(str, words)]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})


def check_running(processes: Mapping[str, Process], folder: Path, end: float) -> bool:
    """Return whether a process runs; show its log and exit if one has failed, or if it is too late.

    end: the latest moment of the monotonic clock.
    """
    failed = [name for name, process in processes.items() if process.poll()]
    if failed or time.monotonic() > end:
        log = (folder / f"{[*failed, *processes][0]}.log").read_text(encoding="utf-8")
        sys.exit(f"{', '.join(failed) or 'the run'} did not end well; {folder} has the logs:\n{log}")
    return any(process.poll() is None for process in processes.values())


def end_all(processes: Mapping[str, Process]) -> None:
    """End the processes that still run."""
    for process in processes.values():
        if process.poll() is None:
            process.terminate()
    for process in processes.values():
        process.wait()
