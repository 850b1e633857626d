"""Compare the time of a round of every method with that of FedAvg.

Data have the shape of Human Activity: 30 clients, 561 features. Methods have their default settings, linear
models (FedPer and FedRep: a hidden layer of 100, also for FedAvg), the complete graph, and peers also a
ring with two neighbours on each side. A method and FedAvg are measured in turns; the table has the median of
their ratios, of which no one may be above 2.5 unless the paper of the method asks for more work. One thread
has its processor time measured, which is nearly the same on a busy machine.

With --large, methods with a server are measured on large sparse graphs instead: a tenth of the clients work
per round, with a hidden layer of 50 on 20 features. The time of a copy of all clients' models is a lower
bound of what it costs to move them all.

    python -m benchmarks.method_costs [--large] [--repeats 5] [--only fedamp,…]
        [--results benchmarks/RESULTS.md]
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import fedlap as fl
from benchmarks.compare_workloads import EPOCHS, LR, STEPS, Workload, build_activity
from benchmarks.names import check_names
from benchmarks.results import write_section
from fedlap.training import recorder

LARGEST_RATIO = 2.5  # to FedAvg's time, for methods that do FedAvg's local work
SPAN = 0.05  # seconds of a measurement
CONDITIONS: dict[str, tuple[Mapping[str, int], float]] = {
    "5 steps, S = 0.1 N": (STEPS, 0.1),
    "5 steps, S = N": (STEPS, 1.0),
    "5 epochs, S = 0.1 N": (EPOCHS, 0.1),
}
# The work per round beyond FedAvg's local steps that the papers ask for.
MORE_WORK = {
    "global": "steps on the rows of all clients, sampled or not",
    "afl": "the loss of the global model on all training rows",
    "scaffold": "a control variate per client, which doubles the messages",
    "mocha": "dual coordinate ascent, a step per row of the batch",
    "pfedme": "several gradient steps per batch for the personal model",
    "perfedavg": "two gradients per step",
    "ditto": "a second model per client, with its own steps",
    "apfl": "a second model per client, with its own steps, and gradients of the mixture",
    "l2gd": "a random number of steps, with exchanges between them",
    "fedrep": "two passes over the batches, for head and base",
    "ifca": "losses of all clusters' models on all training rows",
    "fedfomo": "losses of five other models on validation rows",
    "lasso": "distances of models along all edges",
    "fedu-learned": "learning the graph from all models at the server",
    "dfedu-learned": "learning the weight of every edge",
    "gtvmin": "a dual vector per edge",
    "cfl": "norms of all stored updates of a cluster, and their cosines before a split",
    "fedamp": "distances between sampled and all models",
    "pfedgraph": "a gradient of the cosine in every step, and cosines between models",
}
LARGE_METHODS = ("fedu", "fedu-passing")
LARGE_SIZES = (2_000, 10_000)
LARGE_FEATURES, LARGE_ROWS, LARGE_HIDDEN = 20, 25, 50
MOVES_ALL = {"fedu-passing": "moves the models of all clients"}
HEADERS = ("method", "ms/round of FedAvg and of it, 5 steps, S = N",
           *(f"ratio, {name}" for name in CONDITIONS), "more work by its paper", "")  # fmt: skip

LARGE_SECTION = "methods on large sparse graphs, processor time against FedAvg"
LARGE_HEADERS = ("method", "clients", "ms/round of FedAvg", "ms/round", "ratio",
                 "ms of a copy of all models", "why above 2.5")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A method with its model and, for methods on a graph, the name of the graph."""

    name: str
    model: Any
    graph: str = ""

    @property
    def label(self) -> str:
        """Name in the table."""
        return f"{self.name}, {self.graph}" if self.graph else self.name

    @property
    def has_server(self) -> bool:
        """True if the method has a server, so that clients may be sampled."""
        return hasattr(fl.ALGORITHMS[self.name], "send")

    def build_method(self, work: Mapping[str, int], federation: fl.Federation) -> Any:
        """Return the method with its default settings."""
        kind: Any = fl.ALGORITHMS[self.name]
        rate = {"lr": LR} if "lr" in {field.name for field in fields(kind)} else {}
        if not self.graph:
            return kind(**rate, **work)
        graph = build_graph(self.graph, federation.clients)
        return kind(graph, **rate, **work)


@cache
def build_graph(name: str, clients: tuple[str, ...]) -> fl.Graph:
    """Return the complete graph, a ring with two neighbours on each side, or a grid of squares."""
    if name == "complete":
        return fl.Graph.complete(clients)
    if name == "ring":
        return fl.Graph.ring(clients, 2)
    width, place = math.isqrt(len(clients)), range(len(clients))
    right = [(clients[k], clients[k + 1]) for k in place[:-1] if (k + 1) % width]
    return fl.Graph.from_edges([*right, *zip(clients, clients[width:], strict=False)], clients)


@cache
def build_clients(number: int) -> fl.Federation:
    """Return this many clients with a few rows each."""
    rng = np.random.default_rng(0)
    arrays = {
        str(client): (
            rng.normal(size=(LARGE_ROWS, LARGE_FEATURES)).astype(np.float32),
            rng.integers(0, 2, LARGE_ROWS),
        )
        for client in range(number)
    }
    return fl.Federation.from_arrays(arrays, labels=2)


def list_rows() -> list[Row]:
    """Return every registered method; peers and fedu-passing on two graphs."""
    rows = []
    for name, kind in fl.ALGORITHMS.items():
        model = fl.models.mlp((100,)) if name in ("fedper", "fedrep") else fl.models.linear()
        has_graph = "graph" in {field.name for field in fields(kind)}  # type: ignore[arg-type]
        graphs = ["complete"] if has_graph else [""]
        if has_graph and (name == "fedu-passing" or not hasattr(kind, "send")):
            graphs.append("ring")
        rows += [Row(name, model, graph) for graph in graphs]
    return rows


Build = Callable[[], fl.Federation]


def measure_round(
    row: Row, work: Mapping[str, int], sample: float, rounds: int, build: Build = build_activity
) -> float:
    """Return the milliseconds of processor time per round, without evaluation, after as many rounds."""
    workload = Workload(build, lambda data: row.build_method(work, data), row.model, rounds, sample)
    with patch.object(recorder, "time", SimpleNamespace(perf_counter=time.process_time)):
        return workload.measure("cpu")


def compare_with_fedavg(
    row: Row, work: Mapping[str, int], sample: float, repeats: int, build: Build = build_activity
) -> list[float]:
    """Return the median times of FedAvg and of the method, and the median of the ratios."""
    sides = [Row("fedavg", row.model), row]
    rounds = []
    for side in sides:
        measure_round(side, work, sample, 3, build)  # compiles kernels
        rounds.append(max(3, round(1000 * SPAN / measure_round(side, work, sample, 5, build))))
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for side, number, found in zip(sides, rounds, times, strict=True):
            found.append(measure_round(side, work, sample, number, build))
    ratios = [theirs / ours for ours, theirs in zip(*times, strict=True)]
    return [statistics.median(values) for values in (*times, ratios)]


def measure_row(row: Row, repeats: int) -> list[str]:
    """Return the cells of a method."""
    found = {
        name: compare_with_fedavg(row, work, sample, repeats)
        for name, (work, sample) in CONDITIONS.items()
        if row.has_server or sample == 1
    }
    ratios = [f"{found[name][2]:.2f}" if name in found else "–" for name in CONDITIONS]
    largest, reason = max(values[2] for values in found.values()), MORE_WORK.get(row.name, "")
    above = "more, as its paper asks" if reason else "MORE"
    verdict = f"at most {LARGEST_RATIO:g}" if largest <= LARGEST_RATIO else above
    full = found["5 steps, S = N"]
    return [row.label, f"{full[0]:.3g}, {full[1]:.3g}", *ratios, reason, verdict]


def measure_copy(clients: int, model: Any, repeats: int) -> float:
    """Return the median milliseconds of processor time of a copy of all clients' models."""
    size = fl.fit(fl.Local(), build_clients(clients), model, rounds=1).models.shape[1]
    stack, goal = torch.ones(clients, size), torch.zeros(clients, size)
    times = []
    for _ in range(max(10, repeats)):
        began = time.process_time()
        goal.copy_(stack)
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def measure_large_rows(only: Sequence[str], repeats: int) -> Iterator[list[str]]:
    """Yield a row per method, graph and number of clients."""
    model = fl.models.mlp((LARGE_HIDDEN,))
    for clients in LARGE_SIZES:
        copy = measure_copy(clients, model, repeats)
        for graph in ("ring", "grid"):
            for name in LARGE_METHODS:
                if name in only:
                    row = Row(name, model, graph)
                    build = partial(build_clients, clients)
                    ours, theirs, ratio = compare_with_fedavg(row, STEPS, 0.1, repeats, build)
                    reason = MOVES_ALL.get(name, "") if ratio > LARGEST_RATIO else ""
                    yield [row.label, f"{clients:,}", f"{ours:.3g}", f"{theirs:.3g}", f"{ratio:.2f}",
                           f"{copy:.3g}", reason]  # fmt: skip


def main() -> int:
    """Measure, print, write the table if asked to, and return 1 if a method is slow without a reason."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.method_costs", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements per ratio")
    parser.add_argument("--only", default="", help="methods, comma-separated; default: all")
    parser.add_argument("--large", action="store_true", help="measure large sparse graphs")
    parser.add_argument("--results", type=Path, help="Markdown file to write the table to")
    options = parser.parse_args()
    known = LARGE_METHODS if options.large else [name for name in fl.ALGORITHMS if name != "fedavg"]
    only = options.only.split(",") if options.only else known
    check_names("--only", only, known)
    torch.set_num_threads(1)
    lines = []
    if options.large:
        for line in measure_large_rows(only, options.repeats):
            lines.append(line)
            print(" | ".join(line), flush=True)
        if options.results:
            about = (
                f"1 thread, processor time; {LARGE_ROWS} rows per client, {LARGE_FEATURES} features, a "
                f"hidden layer of {LARGE_HIDDEN}, S = 0.1 N, 5 steps on batches of 20; ring with two "
                f"neighbours on each side, grid of squares; medians of {options.repeats}, in turns; "
                "`python -m benchmarks.method_costs --large`"
            )
            write_section(options.results, LARGE_SECTION, about, LARGE_HEADERS, lines)
        return int(any(float(line[4]) > LARGEST_RATIO and not line[-1] for line in lines))
    for row in list_rows():
        if row.name in only:
            lines.append(measure_row(row, options.repeats))
            print(" | ".join(lines[-1]), flush=True)
    if options.results:
        about = (
            "1 thread, processor time; 30 clients, 561 features, batches of 20; medians of "
            f"{options.repeats}, in turns; `python -m benchmarks.method_costs`"
        )
        write_section(options.results, "methods, processor time against FedAvg", about, HEADERS, lines)
    return int(any(line[-1] == "MORE" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
