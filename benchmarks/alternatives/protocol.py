"""Code shared by the scripts: arguments, data, and the lines they exchange with the harness.

A script is started as `python script.py DATA.npz --threads 2`, warms up and reports that it is ready. Then it
answers each line that it reads: "go" with the seconds of one round, "memory" with the peak of its processes,
"accuracy" with the share of training rows its global model gets right. "stop", or no more input, ends it.
All other output goes to stderr, including what libraries print to stdout.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EPOCHS, BATCH, LR = 5, 20, 0.03
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Rows:
    """One client's training rows."""

    x: np.ndarray  # (rows, features), float32
    y: np.ndarray  # (rows,), int64


def load(path: str | Path) -> list[Rows]:
    """Read every client's rows."""
    with np.load(path) as file:
        x, y, client = file["x"], file["y"], file["client"]
    order = np.argsort(client, kind="stable")
    ends = np.bincount(client).cumsum()[:-1]
    return [Rows(*rows) for rows in zip(np.split(x[order], ends), np.split(y[order], ends), strict=True)]


def shape(clients: list[Rows]) -> tuple[int, int]:
    """Count the features and the labels."""
    return clients[0].x.shape[1], 1 + max(int(rows.y.max()) for rows in clients)


def cohort_size(path: str | Path, clients: list[Rows]) -> int:
    """Count the clients of a round: the share `sample` of the file, or all without it."""
    with np.load(path) as file:
        share = float(file["sample"]) if "sample" in file else 1.0
    return max(1, math.floor(share * len(clients) + 0.5))


def steps(clients: list[Rows]) -> int:
    """Count a round's steps where every epoch ends with a short batch."""
    return EPOCHS * sum(math.ceil(len(rows.y) / BATCH) for rows in clients)


def accuracy(clients: list[Rows], weight: np.ndarray, bias: np.ndarray) -> float:
    """Share of all rows that (features, labels) weights and a bias get right."""
    right = sum(int(((rows.x @ weight + bias).argmax(1) == rows.y).sum()) for rows in clients)
    return right / sum(len(rows.y) for rows in clients)


def arguments(description: str, environment: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Read the command line, and restart the script if its imports did not see the right environment.

    Every process gets one thread: the systems use more cores through more processes or a thread pool.
    """
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="an .npz with x, y and client")
    parser.add_argument("--threads", type=int, default=2, help="cores to use")
    options = parser.parse_args()
    wanted = dict.fromkeys(THREADS, "1") | dict(environment or {})
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    return options


def _stat(pid: int) -> tuple[int, str]:
    """Return a process's parent and its start time, which tells it from a later process with the same id."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), fields[19]


def family(pid: int) -> dict[int, str]:
    """Return a process and all its descendants, with their start times."""
    started, children = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            one = int(entry.name)
            try:
                parent, started[one] = _stat(one)
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(parent, []).append(one)
    found = [pid]
    for one in found:  # grows as it is walked
        found += children.get(one, [])
    return {one: started[one] for one in found if one in started}


def see_off(processes: Mapping[int, str], seconds: float = 10.0) -> None:
    """Wait until the processes have ended, and kill the remaining ones after some seconds."""

    def lives(pid: int) -> bool:
        try:
            return _stat(pid)[1] == processes[pid]
        except OSError:
            return False

    until = time.monotonic() + seconds
    while (left := [pid for pid in processes if lives(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def peak_mb(pid: int) -> float:
    """Add up the peak memory of a process and its descendants; pages that they share count more than once."""
    total = 0
    for one in family(pid):
        try:
            status = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return total / 1024


class Line:
    """The script's end of the protocol. Create it before anything else can print."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def _say(self, **message: object) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def ready(self, system: str, version: str, steps: int, note: str) -> None:
        """Report that the next round may be timed."""
        self._say(ready=True, system=system, version=version, steps=steps, note=note)

    def took(self, seconds: float) -> None:
        """Report the seconds of a round."""
        self._say(seconds=seconds)

    def wait(self, accuracy: Callable[[], float]) -> bool:
        """Answer requests until a round is requested; return False at the end."""
        while request := sys.stdin.readline():
            match request.strip():
                case "go":
                    return True
                case "memory":
                    self._say(peak_mb=peak_mb(os.getpid()))
                case "accuracy":
                    self._say(train_accuracy=accuracy())
                case "stop":
                    return False
                case other:
                    self._say(error=f"unknown request {other!r}; use go, memory, accuracy or stop")
        return False
