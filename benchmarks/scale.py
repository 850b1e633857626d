"""Measure the cost of clients that are not sampled: rounds with 1,000 of 1,000 and of 100,000 clients.

Every client has 20 rows of one shared store of images, a logistic model, and six neighbours. Rounds of both
federations alternate, without evaluation.

    python -m benchmarks.scale [--device cuda] [--keep host] [--repeats 7]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from scipy.sparse import coo_array

import fedlap as fl
from fedlap.data.client_rows import ClientRows
from fedlap.training.assemble import assemble
from fedlap.training.jobs import Job
from fedlap.training.loop import play_rounds
from fedlap.training.schedule import Schedule

FEW, MANY, SAMPLED = 1_000, 100_000, 1_000
STORED, FEATURES, LABELS, ROWS = 20_000, 784, 10, 20
NEIGHBOURS = (1, 7, 100)  # to the left and right, on a ring
MUST, AIM = 1.5, 1.1


def federation(clients: int) -> fl.Federation:
    """Build clients whose rows share one store."""
    generator = torch.Generator().manual_seed(0)
    store = torch.randint(0, 256, (STORED, FEATURES), dtype=torch.uint8, generator=generator)
    row = torch.randint(0, STORED, (clients * ROWS,), generator=generator)
    y = torch.randint(0, LABELS, (clients * ROWS,), generator=generator)
    none = torch.zeros(clients, dtype=torch.int64)
    train = ClientRows(store, row, y, torch.full((clients,), ROWS))
    test = ClientRows(store, row[:0], y[:0], none)
    names = tuple(str(k) for k in range(clients))
    return fl.Federation(names, train, test, tuple(str(k) for k in range(LABELS))).standardize("pooled")


def graph(clients: tuple[str, ...]) -> fl.Graph:
    """Build a graph with six neighbours per client."""
    index = np.arange(len(clients))
    pairs = [(index, (index + step) % len(index)) for step in NEIGHBOURS]
    k, other = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    half = coo_array((np.ones(len(k)), (k, other)), shape=(len(index), len(index)))
    return fl.Graph.from_matrix((half + half.T).tocsr(), clients)


def rounds(clients: int, device: str, keep: str) -> Iterator[float]:
    """Yield the seconds of one round after another."""
    data = federation(clients)
    method = fl.FedU(graph(data.clients), strength=0.01)
    schedule = Schedule(10_000, sample=SAMPLED / clients, device=device, keep=keep, evaluate_every=0)
    training = assemble([Job(method, data, fl.models.linear())], schedule)
    all_rounds = range(1, schedule.rounds + 1)
    began = time.perf_counter()
    for _ in play_rounds(training.method, training.engine, training.server, all_rounds):
        if device != "cpu":
            torch.cuda.synchronize()
        yield time.perf_counter() - began
        began = time.perf_counter()


@torch.no_grad()
def measure_rounds(device: str, keep: str, repeats: int) -> tuple[float, float, float]:
    """Return the median seconds of a round with few and with many clients, and their median ratio."""
    few, many = rounds(FEW, device, keep), rounds(MANY, device, keep)
    for _ in range(3):  # the first rounds warm up
        next(few), next(many)
    pairs = [(next(few), next(many)) for _ in range(3 * repeats)]
    one, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    return one, other, statistics.median(b / a for a, b in pairs)


def main_on(device: str, repeats: int, keep: str = "auto") -> bool:
    """Measure, print, and return whether the requirement is met."""
    few, many, ratio = measure_rounds(device, keep, repeats)
    verdict = "target met" if ratio <= AIM else "met" if ratio <= MUST else "MISSED"
    print(
        f"{SAMPLED:,} of {FEW:,} clients: {1000 * few:.1f} ms/round; of {MANY:,}: {1000 * many:.1f} ms; "
        f"{ratio:.2f}× ({device}, data on: {keep}; required {MUST}×, target {AIM}×): {verdict}"
    )
    return ratio <= MUST


def main() -> int:
    """Read options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", default="auto", choices=["auto", "device", "host"])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    return int(not main_on(options.device, options.repeats, options.keep))


if __name__ == "__main__":
    sys.exit(main())
