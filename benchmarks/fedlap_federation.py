"""Federations of fedlap: a server and clients, or peers; processes on loopback with TLS and random rows.

Every client has 79,510 parameters: 784 features, 100 hidden units, 10 classes.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from fedlap.deploy.keys import (
    create_authority,
    create_server_keys,
    install_certificate,
    request_certificate,
    sign_certificate,
)

HOST = "127.0.0.1"
FEATURES, HIDDEN, LABELS, ROWS = 784, 100, 10, 125


@dataclass
class FedlapFederation:
    """A folder with rows, keys and a plan, and the processes of a server and clients that use them."""

    folder: Path
    clients: list[str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> "FedlapFederation":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def prepare(self, algorithm: str, rounds: int) -> None:
        """Write random rows, keys and a plan."""
        keys = self.folder / "keys"
        create_authority(keys / "authority", "benchmark", timedelta(days=2))
        create_server_keys(keys / "server", keys / "authority", [HOST], timedelta(days=1))
        for name in self.clients:
            sign_keys(keys, name)
        write_rows(self.folder, self.clients)
        write_plan(self.folder, self.clients, rounds, f'name = "{algorithm}"')

    def start(self) -> None:
        """Start the server and all clients at the same time."""
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            address = f"{HOST}:{probe.getsockname()[1]}"
        commands = {"server": ["serve", "plan.toml", "--listen", address, "--folder", "server-run"]}
        for name in self.clients:
            commands[name] = ["client", "--name", name, "--data", f"{name}.csv", "--server", address]
        self.run(commands)

    def run(self, commands: dict[str, list[str]]) -> None:
        """Start processes with their keys."""
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

    def read_rounds(self) -> list[float]:
        """Return the times at which rounds ended, from the server's log."""
        return read_times_of("round-merged", self.folder / "server-run")

    def check(self) -> None:
        """Raise RuntimeError with the log of a process that has failed."""
        for name, process in self.processes.items():
            if process.poll():
                raise RuntimeError(f"{name} ended with {process.returncode}\n{self.read_logs()}")

    def read_logs(self) -> str:
        """Return the ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.stem}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)


@dataclass
class PeerFederation(FedlapFederation):
    """A folder with rows, keys and a plan, and the processes of peers that use them."""

    def prepare(self, algorithm: str, rounds: int) -> None:
        """Write random rows, keys and a plan; `algorithm` has the settings of dFedU."""
        keys = self.folder / "keys"
        create_authority(keys / "authority", "benchmark", timedelta(days=2))
        for name in self.clients:
            sign_keys(keys, name, [HOST])
        write_rows(self.folder, self.clients)
        addresses = [
            f'"{name}" = "{HOST}:{port}"'
            for name, port in zip(self.clients, find_ports(self.clients), strict=True)
        ]
        peers = "\n".join(["[peers]", "staleness = 0", "[peers.addresses]", *addresses, ""])
        write_plan(self.folder, self.clients, rounds, algorithm, peers)

    def start(self) -> None:
        """Start all peers at the same time."""
        self.run(
            {name: ["peer", "plan.toml", "--name", name, "--data", f"{name}.csv"] for name in self.clients}
        )

    def read_rounds(self) -> list[float]:
        """Return the times at which the first peer finished its rounds."""
        return read_times_of("round-finished", self.folder / f"fedlap-{self.clients[0]}")


def sign_keys(keys: Path, name: str, hosts: Sequence[str] = ()) -> None:
    """Create the keys of a client, or those of a peer with hosts."""
    request = request_certificate(keys / name, name, hosts)
    signed, _ = sign_certificate(keys / "authority", request, timedelta(days=1))
    install_certificate(keys / name, signed)


def write_rows(folder: Path, clients: Sequence[str]) -> None:
    """Write a file of random rows per client."""
    rng = np.random.default_rng(0)
    header = ",".join([*(f"x{k}" for k in range(FEATURES)), "y"])
    for name in clients:
        rows = np.column_stack([rng.integers(-9, 10, (ROWS, FEATURES)), rng.integers(0, LABELS, ROWS)])
        np.savetxt(folder / f"{name}.csv", rows, "%d", ",", header=header, comments="")


def write_plan(folder: Path, clients: Sequence[str], rounds: int, algorithm: str, peers: str = "") -> None:
    """Write a plan on a ring."""
    labels = json.dumps([str(label) for label in range(LABELS)])
    features = json.dumps([f"x{k}" for k in range(FEATURES)])
    (folder / "plan.toml").write_text(
        f'name = "benchmark"\nclients = {json.dumps(list(clients))}\nrounds = {rounds}\nbatch = 20\n'
        f"evaluate_every = 0\n[algorithm]\n{algorithm}\nlr = 0.001\nlocal_steps = 5\n"
        f'[model]\nname = "mlp"\nhidden = [{HIDDEN}]\n[graph]\nname = "ring"\n{peers}[data]\nlabel = "y"\n'
        f'features = {features}\ntask = "classification"\nlabels = {labels}\nscale = "none"\n'
    )


def find_ports(clients: Sequence[str]) -> list[int]:
    """Return a free port per client, which another process may take in the meantime."""
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in clients]
        for free in found:
            free.bind((HOST, 0))
        return [int(free.getsockname()[1]) for free in found]


def read_times_of(event: str, folder: Path) -> list[float]:
    """Return the times of an event in the log of a folder."""
    path = folder / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        datetime.fromisoformat(json.loads(line)["time"]).timestamp()
        for line in lines
        if f'"event": "{event}"' in line
    ]
