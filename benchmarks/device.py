"""Measure rounds on a GPU and write them with date and versions into RESULTS.md.

Data are random bytes in the shape of the real sets, with clients of about the same sizes. A time is that of a
round replayed as a CUDA graph: the difference between two scores of one run, without evaluation. The minimum
of several runs is reported, since only launches vary.


    python -m benchmarks.device [--device cuda] [--repeats 3] [--results benchmarks/RESULTS.md]
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import fedlap as fl
from benchmarks import scale
from benchmarks.results import write_section
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

BATCH, LR = 20, 0.03


@dataclass(frozen=True)
class Row:
    """A workload: its measurement, the unit, and the required and the target value."""

    name: str
    measure: Callable[[str], float]
    unit: str
    must: float
    aim: float


def images(rows: int, shape: tuple[int, ...], clients: int, labels: int = 10) -> fl.Federation:
    """Return clients of unequal size with random images."""
    rng = np.random.default_rng(0)
    counts = np.maximum(rng.multinomial(rows, rng.dirichlet(np.full(clients, 20.0))), 2 * BATCH)
    arrays = {
        str(k): (rng.integers(0, 256, (int(n), *shape), dtype=np.uint8), rng.integers(0, labels, int(n)))
        for k, n in enumerate(counts)
    }
    return fl.Federation.from_arrays(arrays, labels=labels).standardize("pooled")


def round_of(federation: fl.Federation, model: fl.models.Architecture, rounds: int) -> Callable[[str], float]:
    """Return a function that measures the milliseconds of a FedU round with 5 steps and all clients."""

    def measure(device: str) -> float:
        method = fl.FedU(fl.Graph.complete(federation.clients), lr=LR)
        result = fl.fit(
            method, federation, model, rounds=2 * rounds, batch=BATCH, device=device, evaluate_every=rounds
        )
        first, second = (score.seconds for score in result.scores[-2:])
        return 1000 * (second - first) / rounds

    return measure


def sweep(federation: fl.Federation, seeds: int, strengths: list[float]) -> Callable[[str], float]:
    """Return a function that measures the seconds of 200 rounds for all seeds and strengths as one stack."""

    def measure(device: str) -> float:
        graph, model = fl.Graph.complete(federation.clients), fl.models.linear()
        trials = [
            Job(fl.FedU(graph, strength, LR), federation, model, seed)
            for seed in range(seeds)
            for strength in strengths
        ]
        schedule = Schedule(rounds=200, batch=BATCH, device=device, evaluate_every=0)
        began = time.perf_counter()
        fit_all(trials, schedule)
        return time.perf_counter() - began

    return measure


def rows() -> list[Row]:
    """Return all workloads."""
    mnist, cifar = images(61_866, (28, 28), 100), images(54_572, (3, 32, 32), 20)
    logistic, mlp, cnn = fl.models.linear(), fl.models.mlp((100, 100)), fl.models.cnn()
    strengths = [0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    return [
        Row("MNIST logistic, 100 clients, 5 steps", round_of(mnist, logistic, 500), "ms", 0.3, 0.15),
        Row("MNIST MLP 784-100-100-10, 100 clients, 5 steps", round_of(mnist, mlp, 200), "ms", 1.2, 0.6),
        Row("CIFAR-10 CNN, 20 clients, 5 steps", round_of(cifar, cnn, 50), "ms", 12, 5),
        Row(
            "10 seeds × 6 strengths of MNIST logistic, 100 clients, 200 rounds of 5 steps, one stack",
            sweep(mnist, 10, strengths), "s", 5, 1,
        ),
        Row(
            "1,000 of 100,000 clients per round vs. 1,000 of 1,000, sparse graph, "
            "data and models on the device",
            lambda device: scale.measure_rounds(device, "device", 7)[2], "×", scale.MUST, scale.AIM,
        ),
        Row(
            "the same workload, data and models on the host",
            lambda device: scale.measure_rounds(device, "host", 3)[2], "×", scale.MUST, scale.AIM,
        ),
    ]  # fmt: skip


def main() -> int:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", type=int, help="index of the only workload to run")
    options = parser.parse_args()
    cells, missed = [], False
    for row in rows() if options.only is None else rows()[options.only :][:1]:
        torch.cuda.reset_peak_memory_stats()
        took = min(row.measure(options.device) for _ in range(options.repeats))
        missed |= took > row.must
        verdict = "target met" if took <= row.aim else "met" if took <= row.must else "MISSED"
        memory = f"{torch.cuda.max_memory_allocated() / 1e9:.2f}"
        cells.append([row.name, f"{took:.3g} {row.unit}", f"{row.must:g}", f"{row.aim:g}", memory, verdict])
        print(" | ".join(cells[-1]), flush=True)
        if options.results:  # written row by row, so that an interrupted benchmark keeps its finished rows
            name = torch.cuda.get_device_name()
            about = f"one {name}, float32; minimum of {options.repeats}; `python -m benchmarks.device`"
            headers = ["workload", "fedlap", "required", "target", "peak GB", ""]
            write_section(options.results, name, about, headers, cells)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
