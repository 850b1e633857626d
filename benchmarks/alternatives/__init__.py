"""Run the same FedAvg workload by other systems, each in a separate process.

    flower = ALTERNATIVES["flower"]
    flower.start(data, threads=2)   # builds its environment the first time; returns its description
    seconds = flower.round()
    flower.stop()

An idle alternative only waits, so rounds of several systems can be interleaved. Only Flower uses the CPU when
idle: Ray's processes and Flower's polling take about 4 in 100 of one core.
"""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .environments import UnavailableError, environment
from .protocol import family, see_off

__all__ = ["ALTERNATIVES", "Alternative", "AlternativeError", "UnavailableError"]

START, ROUND, QUESTION, STOP = 300.0, 300.0, 60.0, 30.0  # the most seconds to wait for an answer


class AlternativeError(RuntimeError):
    """A system failed; the message ends with its last output."""


@dataclass
class Alternative:
    """A system that is run by a script, one round at a time."""

    name: str  # of its environment
    script: Path
    ready: dict[str, Any] = field(default_factory=dict)  # system, version, steps of a round, note
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)
    _lines: queue.Queue[str] = field(default_factory=queue.Queue, repr=False)
    _errors: IO[str] | None = field(default=None, repr=False)

    def start(self, data: Path, threads: int) -> dict[str, Any]:
        """Start it, wait until it has warmed up, and return its description.

        Raises UnavailableError if its environment cannot be built.
        """
        if self._process:
            raise AlternativeError(f"{self.name} runs already")
        python = environment(self.name)
        self._lines = queue.Queue()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process is
        self._process = subprocess.Popen(
            [python, self.script, data.resolve(), "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._process.stdout, self._lines), daemon=True).start()
        try:
            self.ready = self._answer("ready", START)
        except BaseException:
            self._kill()
            raise
        return self.ready

    def round(self) -> float:
        """Do one round and return its seconds."""
        return float(self._ask("go", "seconds", ROUND))

    def peak_mb(self) -> float:
        """Return the peak memory of all its processes, pages that they share counted more than once."""
        return float(self._ask("memory", "peak_mb", QUESTION))

    def accuracy(self) -> float:
        """Return the share of training rows that its global model gets right."""
        return float(self._ask("accuracy", "train_accuracy", QUESTION))

    def stop(self) -> None:
        """End it and everything that it started."""
        if not self._process:
            return
        processes = family(self._process.pid)
        with suppress(OSError):
            self._process.stdin.write("stop\n")
            self._process.stdin.close()
        try:
            self._process.wait(STOP)
            see_off(processes)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()

    @contextmanager
    def running(self, data: Path, threads: int) -> Iterator["Alternative"]:
        """Start it, and stop it when the block ends."""
        self.start(data, threads)
        try:
            yield self
        finally:
            self.stop()

    def _ask(self, request: str, answer: str, seconds: float) -> Any:
        """Send a request and return the value of that name in its answer."""
        if not self._process:
            raise AlternativeError(f"{self.name} has not been started")
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except OSError:
            raise AlternativeError(self._why(f"ended before {request!r}")) from None
        return self._answer(answer, seconds)[answer]

    def _answer(self, wanted: str, seconds: float) -> dict[str, Any]:
        """Wait for the next line and read it."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AlternativeError(self._why(f"gave no {wanted!r} within {seconds:g} s")) from None
        if not line:
            raise AlternativeError(self._why(f"ended instead of giving {wanted!r}"))
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or wanted not in answer:
            raise AlternativeError(self._why(f"gave {line.strip()!r} instead of {wanted!r}"))
        return answer

    def _why(self, what: str) -> str:
        """Return a message with the last lines that the process printed."""
        self._errors.seek(0)
        last = [line.rstrip() for line in self._errors if line.strip()][-5:]
        return "\n    ".join([f"{self.name} {what}", *last])

    def _kill(self) -> None:
        """End what is left of its process group and forget it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._errors):
            with suppress(OSError):
                pipe.close()
        self._process = None

    @staticmethod
    def _listen(lines: IO[str], into: "queue.Queue[str]") -> None:
        """Pass lines on as they come, and an empty one when there are no more."""
        with lines:
            for line in lines:
                into.put(line)
        into.put("")


ALTERNATIVES = {
    name: Alternative(name, Path(__file__).resolve().with_name(f"{name}.py"))
    for name in ("ours", "flower", "pfl_research", "fedjax_simulation")
}
