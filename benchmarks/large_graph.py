"""Measure seconds and memory of a graph of 100,000 clients with 10 neighbours each.

Each row is measured in a separate process, whose peak memory includes Python, PyTorch and the inputs built
before the clock starts. The graph connects every client to its 10 nearest clients at random positions; models
have 1,000 parameters (0.4 GB in all); implicit mixing has strength μ̃ηρ = 10. Exits with 1 if a row takes half
a minute.


    python -m benchmarks.large_graph [--threads 2] [--results benchmarks/RESULTS.md]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fedlap as fl
from benchmarks.results import write_section
from benchmarks.scale import federation
from fedlap.graph import erdos_renyi, from_file, nearest, to_file, watts_strogatz
from fedlap.graph.implicit import mix_implicitly
from fedlap.graph.spectrum import compute_rho

CLIENTS, NEIGHBOURS, PARAMS, EDGES = 100_000, 10, 1_000, 1_000_000
COUPLING = 10.0  # μ̃ηρ of implicit mixing; explicit mixing takes 1
MOST_SECONDS = 30.0
HEADERS = ("100,000 clients", "edges", "seconds", "peak MB", "result")

Timed = Callable[[], str | fl.Graph]  # the timed call; it returns a result as text, or a graph


def places(folder: Path, columns: int = 2) -> tuple[fl.Federation, str]:
    """Return clients, and a file with their positions."""
    clients, file = federation(CLIENTS), folder / "places.csv"
    positions = np.random.default_rng(0).uniform(size=(CLIENTS, columns)).tolist()
    lines = [
        ",".join([name, *map(str, position)])
        for name, position in zip(clients.clients, positions, strict=True)
    ]
    header = ",".join(["client", *(f"axis {k}" for k in range(columns))])
    file.write_text("\n".join([header, *lines]), encoding="utf-8")
    return clients, str(file)


def neighbours(folder: Path) -> fl.Graph:
    """Return the measured graph."""
    return nearest(*_by_places(folder), neighbours=NEIGHBOURS)


def _by_places(folder: Path) -> tuple[fl.Federation, str, str]:
    clients, file = places(folder)
    return clients, "metadata", file


def nearest_by_places(folder: Path) -> Timed:
    """Time the nearest neighbours by two columns of a file."""
    arguments = _by_places(folder)
    return lambda: nearest(*arguments, neighbours=NEIGHBOURS)


def nearest_by_labels(_: Path) -> Timed:
    """Time the nearest neighbours by label shares of alike clients, the hardest case for a tree."""
    clients = federation(CLIENTS)
    return lambda: nearest(clients, "labels", neighbours=NEIGHBOURS)


def small_world(_: Path) -> Timed:
    """Time a Watts–Strogatz graph."""
    names = federation(CLIENTS).clients
    return lambda: watts_strogatz(names, NEIGHBOURS)


def rho(folder: Path) -> Timed:
    """Time the largest eigenvalue of L."""
    graph = neighbours(folder)
    return lambda: f"ρ = {compute_rho(graph.weights):.3f}"


def lambda2(folder: Path) -> Timed:
    """Time the second smallest eigenvalue of L and the components."""
    graph = neighbours(folder)
    return lambda: f"λ₂ = {graph.lambda2:.2e}, {graph.components} component(s)"


def mixing_explicit(folder: Path) -> Timed:
    """W ← W − s L W."""
    graph, W = _to_mix(folder)
    return lambda: f"‖W‖ = {float(graph.mix_(W, 1 / graph.rho).norm()):.0f}"


def mixing_implicit(folder: Path) -> Timed:
    """W ← (I + sL)⁻¹ W."""
    graph, W = _to_mix(folder)
    return lambda: f"‖W‖ = {float(mix_implicitly(graph, W, COUPLING / graph.rho).norm()):.0f}"


def _to_mix(folder: Path) -> tuple[fl.Graph, torch.Tensor]:
    graph = neighbours(folder)
    W = torch.randn(CLIENTS, PARAMS, generator=torch.Generator().manual_seed(0))
    graph.mix_(W[:, :1].clone(), 1 / graph.rho)  # the first call caches neighbour lists and ρ
    return graph, W


def from_csv(folder: Path) -> Timed:
    """Time reading a million weighted edges from CSV."""
    return _time_reading(folder / "edges.csv")


def from_npz(folder: Path) -> Timed:
    """Time reading a million edges from a sparse matrix with names."""
    return _time_reading(folder / "edges.npz")


def from_mtx(folder: Path) -> Timed:
    """Time reading a million edges in the Matrix Market format."""
    return _time_reading(folder / "edges.mtx")


def _time_reading(file: Path) -> Timed:
    names = federation(CLIENTS).clients
    graph = erdos_renyi(names, 2 * EDGES / (CLIENTS * (CLIENTS - 1)), weight=1 / 3)
    to_file(graph, file)
    return lambda: from_file(names, str(file))


MEASURED: dict[str, Callable[[Path], Timed]] = {
    "nearest by 2 columns of metadata": nearest_by_places,
    "nearest by shares of 10 labels, all clients alike": nearest_by_labels,
    "watts-strogatz": small_world,
    "ρ": rho,
    "λ₂ and components": lambda2,
    "one mixing step, 1,000 parameters, explicit": mixing_explicit,
    "one mixing step, 1,000 parameters, implicit": mixing_implicit,
    "a million edges from .csv": from_csv,
    "a million edges from .npz": from_npz,
    "a million edges from .mtx": from_mtx,
}


@torch.no_grad()
def measure(name: str) -> list[str]:
    """Measure one row in this process and return its cells."""
    with tempfile.TemporaryDirectory() as folder:
        timed = MEASURED[name](Path(folder))
        began = time.perf_counter()
        output = timed()
        seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    edges, found = (f"{output.edges:,}", "") if isinstance(output, fl.Graph) else ("", output)
    return [name, edges, f"{seconds:.2f}", f"{peak / 1000:.0f}", found]


def main() -> int:
    """Measure, print, and return 1 if a row takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", choices=list(MEASURED), help="measure only this row and print it as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only:
        print(json.dumps(measure(options.only)))
        return 0
    table, rows = Table(*HEADERS), []
    for name in MEASURED:
        words = ["-m", "benchmarks.large_graph", "--threads", str(options.threads), "--only", name]
        done = subprocess.run([sys.executable, *words], capture_output=True, check=True)
        rows.append(json.loads(done.stdout))
        table.add_row(*rows[-1])
    Console(width=120).print(table)
    if options.results:
        about = f"{options.threads} threads; `python -m benchmarks.large_graph`"
        write_section(options.results, "large graphs", about, HEADERS, rows)
    return int(any(float(row[2]) >= MOST_SECONDS for row in rows))


if __name__ == "__main__":
    sys.exit(main())
