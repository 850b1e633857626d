"""What a graph of 100,000 clients with 10 neighbours each takes: seconds, and the memory of the process.

Each line is measured in a process of its own, whose peak memory includes Python, PyTorch and what was made
before the clock began. The graph joins everybody to the 10 nearest of clients at random places; models are of
1,000 parameters (0.4 GB in all); implicit mixing is of strength μ̃ηρ = 10. Exits with 1 where a line takes
half a minute.

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
HEADERS = ("100,000 clients", "edges", "seconds", "peak MB", "found")

Timed = Callable[[], str | fl.Graph]  # what is timed; it gives a number that was found, or a graph


def places(folder: Path, columns: int = 2) -> tuple[fl.Federation, str]:
    """Clients, and a file that says where they are."""
    clients, file = federation(CLIENTS), folder / "places.csv"
    at = np.random.default_rng(0).uniform(size=(CLIENTS, columns)).tolist()
    lines = [",".join([name, *map(str, own)]) for name, own in zip(clients.clients, at, strict=True)]
    header = ",".join(["client", *(f"axis {k}" for k in range(columns))])
    file.write_text("\n".join([header, *lines]), encoding="utf-8")
    return clients, str(file)


def neighbours(folder: Path) -> fl.Graph:
    """The graph that is measured."""
    return nearest(*_by_places(folder), neighbours=NEIGHBOURS)


def _by_places(folder: Path) -> tuple[fl.Federation, str, str]:
    clients, file = places(folder)
    return clients, "metadata", file


def nearest_by_places(folder: Path) -> Timed:
    """Two columns of a file."""
    given = _by_places(folder)
    return lambda: nearest(*given, neighbours=NEIGHBOURS)


def nearest_by_labels(_: Path) -> Timed:
    """Ten shares of labels, of clients who all draw from the same ones: the hardest case for a tree."""
    clients = federation(CLIENTS)
    return lambda: nearest(clients, "labels", neighbours=NEIGHBOURS)


def small_world(_: Path) -> Timed:
    """Of Watts and Strogatz."""
    names = federation(CLIENTS).clients
    return lambda: watts_strogatz(names, NEIGHBOURS)


def rho(folder: Path) -> Timed:
    """The largest eigenvalue of L."""
    graph = neighbours(folder)
    return lambda: f"ρ = {compute_rho(graph.weights):.3f}"


def lambda2(folder: Path) -> Timed:
    """The second smallest."""
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
    graph.mix_(W[:, :1].clone(), 1 / graph.rho)  # lists of neighbours are placed once, ρ is found once
    return graph, W


def from_csv(folder: Path) -> Timed:
    """A million edges with weights."""
    return _loaded(folder / "edges.csv")


def from_npz(folder: Path) -> Timed:
    """The same, as a sparse matrix and names."""
    return _loaded(folder / "edges.npz")


def from_mtx(folder: Path) -> Timed:
    """The same, in the Matrix Market's format."""
    return _loaded(folder / "edges.mtx")


def _loaded(file: Path) -> Timed:
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
    "one mixing of 1,000 parameters, explicit": mixing_explicit,
    "one mixing of 1,000 parameters, implicit": mixing_implicit,
    "a million edges from .csv": from_csv,
    "a million edges from .npz": from_npz,
    "a million edges from .mtx": from_mtx,
}


@torch.no_grad()
def measure(name: str) -> list[str]:
    """One line's cells, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        timed = MEASURED[name](Path(folder))
        began = time.perf_counter()
        made = timed()
        seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    edges, found = (f"{made.edges:,}", "") if isinstance(made, fl.Graph) else ("", made)
    return [name, edges, f"{seconds:.2f}", f"{peak / 1000:.0f}", found]


def main() -> int:
    """Measure, print, and say whether anything takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", choices=list(MEASURED), help="print this one as JSON")
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
