"""Measure a round and the memory of each process of fedlap and of Flower, with real processes on loopback.

Every client has 79,510 parameters and takes five local steps, so that the time of a round is that of the
transport, the disk and the processes. Both systems use TLS, and each client has its own key; Flower runs its
own FedAvg. Its rounds take seconds, those of fedlap milliseconds, so that each has its own number of rounds.

    python -m benchmarks.deployments [--clients 4,16] [--rounds 100] [--flower-rounds 3]
        [--only fedlap-fedavg|fedlap-fedu|flower] [--results benchmarks/RESULTS.md]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.alternatives import UnavailableError
from benchmarks.alternatives.environments import environment
from benchmarks.fedlap_federation import FedlapFederation
from benchmarks.flower_federation import FlowerFederation, list_processes, wait_for
from benchmarks.results import write_section

FEDAVG = Path(__file__).with_name("flower_fedavg")
HEADERS = (
    "system",
    "clients",
    "rounds",
    "ms/round",
    "least to most",
    "CPU s/round",
    "MB, server",
    "MB per client",
    "MB per process",
)

PAUSE = 0.2  # seconds between looks at fedlap's log and at the memory of its processes
SHOWN = {"fedavg": "FedAvg", "fedu": "FedU"}


@dataclass(frozen=True)
class Measurement:
    """A deployment: seconds of each round, and the largest memory of the server and of a client."""

    system: str
    clients: int
    seconds: list[float]
    cpu_seconds: float  # per round, of all processes; it depends less on the load by others
    server_mb: float
    client_mb: float
    processes: str

    def cells(self) -> list[str]:
        """Cells of the row as text."""
        middle, least, most = (f"{1000 * f(self.seconds):,.0f}" for f in (statistics.median, min, max))
        numbers = f"{self.cpu_seconds:.3g}", f"{self.server_mb:.0f}", f"{self.client_mb:.0f}"
        shown = [self.system, str(self.clients), str(len(self.seconds)), middle, f"{least} to {most}"]
        return [*shown, *numbers, self.processes]


class MemorySampler:
    """Samples the memory of processes in a thread, by side; shared pages are divided among their users."""

    def __init__(self, sides: dict[str, int]) -> None:
        """Store the first process of each side, such as {"server": 17, "north": 18}."""
        self.sides, self.most, self.names = sides, dict.fromkeys(sides, 0.0), dict[str, list[str]]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            for side, number in self.sides.items():
                found = [(read_name(process), read_memory_mb(process)) for process in list_processes(number)]
                memory = sum(megabytes for _, megabytes in found)
                if memory > self.most[side]:
                    self.most[side] = memory
                    self.names[side] = sorted(f"{name} {megabytes:.0f}" for name, megabytes in found if name)


def read_memory_mb(process: int) -> float:
    """Return the proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def read_cpu_seconds(first: Iterable[int]) -> float:
    """Return the CPU time of processes and their descendants, including ended ones."""
    ticks = 0
    for process in (process for number in first for process in list_processes(number)):
        with suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(
                map(int, stat[11:15])
            )  # user and system time, of the process and of its ended children
    return ticks / os.sysconf("SC_CLK_TCK")


def read_name(process: int) -> str:
    """Return the name of the tool that a process runs; "" if it has ended."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return next((Path(word).name for word in words if Path(word).name.startswith(("flwr-", "flower-"))), "")


def measure_fedlap(algorithm: str, clients: int, rounds: int) -> Measurement:
    """Measure fedlap's own server and clients."""
    names = [f"client-{k}" for k in range(clients)]
    with tempfile.TemporaryDirectory() as folder, FedlapFederation(Path(folder), names) as federation:
        seconds, used, most = measure_rounds(federation, algorithm, rounds)
    largest = max(names, key=most.__getitem__)
    processes = f"server: fedlap serve {most['server']:.0f}; {largest}: fedlap client {most[largest]:.0f}"
    return Measurement(
        f"fedlap over Zenoh, {SHOWN[algorithm]}", clients, seconds, used, most["server"], most[largest],
        processes,
    )  # fmt: skip


def measure_rounds(
    federation: FedlapFederation, algorithm: str, rounds: int
) -> tuple[list[float], float, dict[str, float]]:
    """Return seconds per round, CPU seconds per round, and the most memory of each process in MB.

    The first tenth of the rounds is not counted.
    """
    skipped = max(1, rounds // 10)
    # Some rounds more, so that all processes still run when the last counted one is seen.
    federation.prepare(algorithm, rounds + skipped + max(20, rounds // 5))
    federation.start()
    ids = {name: process.pid for name, process in federation.processes.items()}
    most = dict.fromkeys(ids, 0.0)
    end, used, first = time.monotonic() + 120 + 2 * len(ids) * rounds, 0.0, 0
    ends = federation.read_rounds()
    while len(ends) < skipped + rounds:
        time.sleep(PAUSE)
        federation.check()
        if time.monotonic() > end:
            raise RuntimeError(f"{len(ends)} of {skipped + rounds} rounds\n{federation.read_logs()}")
        ends = federation.read_rounds()
        if not first and len(ends) >= skipped:
            first, used = len(ends), read_cpu_seconds(ids.values())
        for name in ids if first else ():
            most[name] = max(most[name], read_memory_mb(ids[name]))
    used, counted = read_cpu_seconds(ids.values()) - used, len(federation.read_rounds()) - first
    seconds = [after - before for before, after in pairwise(ends[skipped - 1 : skipped + rounds])]
    return seconds, used / max(1, counted), most


def measure_flower(clients: int, rounds: int) -> Measurement:
    """Measure Flower's own FedAvg; the first round, in which the app is installed, is not counted."""
    tools = environment("flower").parent
    with tempfile.TemporaryDirectory() as name:
        folder, sites = Path(name), {f"client-{k}": {"k": k} for k in range(clients)}
        times = folder / "times.json"
        with FlowerFederation(folder, sites, tools=tools) as federation:
            sides = {side: process.pid for side, process in federation.processes.items()}
            with MemorySampler(sides) as memory:
                changes = {"rounds": rounds + 1, "clients": clients, "times": str(times)}
                federation.run(FEDAVG, changes)
                most = 120 + 20 * clients * (rounds + 1)
                wait_for(lambda: len(read_times(times)) > 0, most, federation.read_logs, 0.5)
                used = read_cpu_seconds(sides.values())
                wait_for(lambda: len(read_times(times)) > rounds, most, federation.read_logs, 0.5)
                used = (read_cpu_seconds(sides.values()) - used) / rounds
        seconds = read_times(times)[1:]
        nodes = [side for side in sides if side != "superlink"]
        largest = max(nodes, key=memory.most.__getitem__)
        kinds = "; ".join(f"{side}: {', '.join(memory.names[side])}" for side in ("superlink", largest))
    return Measurement(
        "Flower 1.41.0, FedAvg", clients, seconds, used, memory.most["superlink"], memory.most[largest], kinds
    )


def read_times(path: Path) -> list[float]:
    """Return the seconds of the rounds so far."""
    seconds: list[float] = json.loads(path.read_text()) if path.exists() else []
    return seconds


# Each takes the number of clients and of rounds.
SYSTEMS: dict[str, Callable[[int, int], Measurement]] = {
    "fedlap-fedavg": partial(measure_fedlap, "fedavg"),
    "fedlap-fedu": partial(measure_fedlap, "fedu"),
    "flower": measure_flower,
}


def main() -> int:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", default="4,16", help="numbers of clients, comma-separated")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of fedlap that count")
    parser.add_argument("--flower-rounds", type=int, default=3, help="rounds of Flower that count")
    parser.add_argument("--only", choices=SYSTEMS, help="one system instead of all")
    parser.add_argument("--results", type=Path, help="the file whose table is replaced")
    options = parser.parse_args()
    console, rows, load = Console(width=200), [], os.getloadavg()[0]
    for name, measure in SYSTEMS.items():
        rounds = options.flower_rounds if name == "flower" else options.rounds
        for clients in map(int, options.clients.split(",")):
            if options.only in (None, name):
                start = time.perf_counter()
                try:
                    measurement = measure(clients, rounds)
                except UnavailableError as reason:
                    console.print(f"{name} is unavailable here: {reason}", style="yellow")
                    continue
                rows.append(measurement.cells())
                console.print(f"{name}, {clients} clients: {time.perf_counter() - start:.0f} s", style="dim")
    table = Table(*HEADERS)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if options.results and rows:
        about = (
            "79,510 parameters, 5 local steps, all clients in every round; processes on loopback with TLS, "
            f"all in one run, {os.cpu_count()} cores, load by others before the start {load:.1f}; "
            "memory is the largest sum of PSS; `python -m benchmarks.deployments`"
        )
        write_section(options.results, "deployments", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
