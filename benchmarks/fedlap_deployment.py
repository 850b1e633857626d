"""Measure a round and the memory of each process of fedlap's own server and clients, on loopback with TLS.

Every client has 79,510 parameters (784 features, 100 hidden units, 10 classes) and takes five local steps, so
that the time of a round is that of the transport, the disk and the processes.

    python -m benchmarks.fedlap_deployment [--clients 4,16] [--rounds 100] [--algorithms fedavg,fedu]
        [--results benchmarks/RESULTS.md]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.deployments import HEADERS, Measurement, read_cpu_seconds, read_memory_mb
from benchmarks.results import write_section
from fedlap.deploy.keys import (
    create_authority,
    create_server_keys,
    install_certificate,
    request_certificate,
    sign_certificate,
)

HOST = "127.0.0.1"
FEATURES, HIDDEN, LABELS, ROWS = 784, 100, 10, 125
PAUSE = 0.2  # seconds between looks at the log and at the memory


@dataclass
class Federation:
    """A folder with rows, keys and a plan, and the processes that use them."""

    folder: Path
    clients: list[str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def prepare(self, algorithm: str, rounds: int) -> None:
        """Write random rows, keys and a plan."""
        keys, rng = self.folder / "keys", np.random.default_rng(0)
        create_authority(keys / "authority", "benchmark", timedelta(days=2))
        create_server_keys(keys / "server", keys / "authority", [HOST], timedelta(days=1))
        names = [f"x{k}" for k in range(FEATURES)]
        for name in self.clients:
            request = request_certificate(keys / name, name)
            signed, _ = sign_certificate(keys / "authority", request, timedelta(days=1))
            install_certificate(keys / name, signed)
            rows = np.column_stack([rng.integers(-9, 10, (ROWS, FEATURES)), rng.integers(0, LABELS, ROWS)])
            header = ",".join([*names, "y"])
            np.savetxt(self.folder / f"{name}.csv", rows, "%d", ",", header=header, comments="")
        labels = json.dumps([str(label) for label in range(LABELS)])
        (self.folder / "plan.toml").write_text(
            f'name = "benchmark"\nclients = {json.dumps(self.clients)}\nrounds = {rounds}\nbatch = 20\n'
            f'evaluate_every = 0\n[algorithm]\nname = "{algorithm}"\nlr = 0.001\nlocal_steps = 5\n'
            f'[model]\nname = "mlp"\nhidden = [{HIDDEN}]\n[graph]\nname = "ring"\n[data]\nlabel = "y"\n'
            f'features = {json.dumps(names)}\ntask = "classification"\nlabels = {labels}\nscale = "none"\n'
        )

    def start(self) -> None:
        """Start the server and all clients at the same time."""
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            address = f"{HOST}:{probe.getsockname()[1]}"
        commands = {"server": ["serve", "plan.toml", "--listen", address, "--folder", "server-run"]}
        for name in self.clients:
            commands[name] = ["client", "--name", name, "--data", f"{name}.csv", "--server", address]
        for name, words in commands.items():
            command = [sys.executable, "-m", "fedlap.cli", *words, "--keys", f"keys/{name}"]
            with (self.folder / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )

    def stop(self) -> None:
        """End the processes that still run."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            process.wait()

    def read_merges(self) -> list[float]:
        """Return the times at which rounds were merged, from the server's log."""
        path = self.folder / "server-run" / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [
            datetime.fromisoformat(json.loads(line)["time"]).timestamp()
            for line in lines
            if '"round-merged"' in line
        ]

    def check(self) -> None:
        """Raise RuntimeError with the log of a process that has failed."""
        for name, process in self.processes.items():
            if process.poll():
                log = (self.folder / f"{name}.log").read_text(encoding="utf-8")
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{log[-2000:]}")


def measure_fedlap(clients: int, rounds: int, algorithm: str = "fedavg") -> Measurement:
    """Measure a deployment; the first tenth of the rounds is not counted."""
    names, skipped, most = [f"client-{k}" for k in range(clients)], max(1, rounds // 10), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as until_end:
        federation = Federation(Path(folder), names)
        # Some rounds more, so that all processes still run when the last counted one is seen.
        federation.prepare(algorithm, rounds + skipped + max(20, rounds // 5))
        federation.start()
        until_end.callback(federation.stop)
        ids = {name: process.pid for name, process in federation.processes.items()}
        begin, merges = None, federation.read_merges()
        while len(merges) < skipped + rounds:
            time.sleep(PAUSE)
            federation.check()
            merges = federation.read_merges()
            if begin is None and len(merges) >= skipped:
                begin = len(merges), read_cpu_seconds(list(ids.values()))
            if begin is not None:
                for name, process in ids.items():
                    most[name] = max(most.get(name, 0.0), read_memory_mb(process))
        used = read_cpu_seconds(list(ids.values()))
        assert begin is not None
        cpu = (used - begin[1]) / max(1, len(federation.read_merges()) - begin[0])
    times = merges[skipped - 1 : skipped + rounds]
    seconds = [after - before for before, after in pairwise(times)]
    largest = max(names, key=most.__getitem__)
    processes = f"server: fedlap serve {most['server']:.0f}; {largest}: fedlap client {most[largest]:.0f}"
    label = {"fedavg": "FedAvg", "fedu": "FedU"}.get(algorithm, algorithm)
    return Measurement(
        f"fedlap over Zenoh, {label}", clients, seconds, cpu, most["server"], most[largest], processes
    )


def main() -> int:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", default="4,16")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--algorithms", default="fedavg,fedu")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    console, load, rows = Console(width=200), os.getloadavg()[0], []
    table = Table(*HEADERS)
    for algorithm in options.algorithms.split(","):
        for clients in map(int, options.clients.split(",")):
            rows.append(measure_fedlap(clients, options.rounds, algorithm).cells())
            table.add_row(*rows[-1])
    console.print(table)
    if options.results:
        about = (
            "79,510 parameters, 5 local steps, all clients in every round; processes on loopback with TLS, "
            f"{os.cpu_count()} cores, load by others before the start {load:.1f}; {options.rounds} rounds; "
            "memory is the largest PSS; `python -m benchmarks.fedlap_deployment`"
        )
        write_section(options.results, "deployments of fedlap", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
