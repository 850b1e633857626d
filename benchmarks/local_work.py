"""A round of local work: the stacked engine against the ordinary way, interleaved in one run.

The ordinary way is what most code does: a Python loop over clients, each with an `nn.Module`, an SGD
optimiser and a shuffling DataLoader. Ours is a whole round of FedU: draws, local work and mixing.
Both do the same number of epochs and batches on rows of the same shape. Prints medians and their ratio, and
exits with 1 where a ratio is below what is promised.

    python benchmarks/local_work.py [--repeats 7] [--threads 2]
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

import fedlap as fl

CLIENTS, ROWS, FEATURES, LABELS = 30, (211, 307), 561, 6  # the shape of Human Activity's training rows
EPOCHS, BATCH, LR = 5, 20, 0.03
OUR_ROUNDS = 5  # rounds of ours between two of the other


@dataclass(frozen=True)
class Workload:
    """A model, and how much faster than the ordinary way its round has to be."""

    name: str
    model: fl.models.Architecture
    promised: float  # the least ratio


WORKLOADS = [
    Workload("logistic 561-6", fl.models.linear(), 10.0),
    Workload("MLP 561-100-6", fl.models.mlp((100,)), 4.0),
]


def arrays() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients of unequal size with normal features."""
    rng = np.random.default_rng(0)
    made = {}
    for k in range(CLIENTS):
        n = int(rng.integers(*ROWS))
        x = rng.normal(size=(n, FEATURES)).astype(np.float32)
        made[str(k)] = (x, rng.integers(0, LABELS, n))
    return made


def ordinary_round(loaders: list[DataLoader], modules: list[torch.nn.Module]) -> float:
    """Seconds for every client's local epochs, one client after another."""
    began = time.perf_counter()
    for loader, module in zip(loaders, modules, strict=True):
        optimiser = torch.optim.SGD(module.parameters(), lr=LR)
        for _ in range(EPOCHS):
            for x, y in loader:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(x), y).backward()
                optimiser.step()
    return time.perf_counter() - began


def stacked_round(workload: Workload, federation: fl.Federation, seed: int) -> float:
    """Seconds for one round of FedU, evaluation left out."""
    method = fl.FedU(fl.Graph.complete(federation.clients), strength=0.01, lr=LR, local_epochs=EPOCHS)
    result = fl.fit(
        method, federation, workload.model, rounds=OUR_ROUNDS, batch=BATCH, seed=seed, evaluate_every=0
    )
    return result.scores[-1].seconds / OUR_ROUNDS


def measure(workload: Workload, repeats: int) -> tuple[float, float, float]:
    """Median seconds of ours and of the other, and the median of their ratios."""
    data = arrays()
    federation = fl.Federation.from_arrays(data, test_share=0.0, labels=LABELS)
    sets = [TensorDataset(*federation.train.client(k)) for k in range(CLIENTS)]
    loaders = [DataLoader(rows, batch_size=BATCH, shuffle=True) for rows in sets]
    network = workload.model.build(federation.inputs, federation.outputs)
    modules = [network.module(network.start(0).float()) for _ in range(CLIENTS)]
    stacked_round(workload, federation, 0)  # warm both up
    ordinary_round(loaders[:1], modules[:1])
    ours, theirs = [], []
    for repeat in range(repeats):
        ours.append(stacked_round(workload, federation, repeat))
        theirs.append(ordinary_round(loaders, modules))
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


def main() -> int:
    """Measure every workload and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=100)
    console.print(
        f"{CLIENTS} clients × about {sum(ROWS) // 2} rows × {FEATURES} features, {EPOCHS} epochs of "
        f"batches of {BATCH}; {options.threads} threads, torch {torch.__version__}, "
        f"median of {options.repeats}"
    )
    table = Table("a round of", "ordinary way, ms", "stacked, ms", "ratio", "promised", "")
    failed = False
    for workload in WORKLOADS:
        own, other, ratio = measure(workload, options.repeats)
        met = ratio >= workload.promised
        failed |= not met
        table.add_row(
            workload.name, f"{1000 * other:.0f}", f"{1000 * own:.1f}", f"{ratio:.1f}×",
            f"{workload.promised:g}×", "met" if met else "MISSED",
        )  # fmt: skip
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
