"""Test whether numbers repeat under different rounding.

Orders: two runs in float64 from the same start on the same batches, one with its clients in another order, so
that sums are rounded differently. Where training is stable, the difference stays at the size of rounding
errors. At large rates it grows from round to round, as it does between a CPU and a GPU, or two engines.

Machines (--again FOLDER): rows of results/ against the same rows in FOLDER, computed on another device by
`fedlap reproduce RECIPE --methods … --out FOLDER`, seed by seed.

    python -m benchmarks.repeats [--threads 1] [--again FOLDER] [--results benchmarks/RESULTS.md]
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import fedlap as fl
from benchmarks.results import write_section

RATES, ROUNDS, SAMPLE, SEED = (0.03, 0.1, 0.3, 1.0), (20, 200), 0.1, 0
ORDERS = ("method", "rate", *(f"after {rounds} rounds" for rounds in ROUNDS))
MACHINES = ("cell", "method", "devices", "seeds with equal accuracy", "largest difference, points")


def methods(graph: fl.Graph, lr: float) -> dict[str, object]:
    """Return methods with a few local steps at this rate."""
    return {
        "fedu": fl.FedU(graph, strength=0.001, lr=lr),
        "fedavg": fl.FedAvg(lr=lr),
        "fedprox": fl.FedProx(lr=lr, proximal=0.01),
        "scaffold": fl.Scaffold(lr=lr),
    }


def difference(name: str, lr: float, rounds: int) -> str:
    """Return the largest difference of a parameter between two orders of clients."""
    federation = fl.data.load("har", seed=SEED).scarce(seed=SEED)
    other = federation.reorder(federation.clients[::-1])
    models = []
    for ordered in (federation, other):
        method = methods(fl.Graph.complete(ordered.clients), lr)[name]
        try:
            result = fl.fit(
                method, ordered, fl.models.linear(l2=0.001), rounds=rounds, sample=SAMPLE, seed=SEED,
                dtype="float64", evaluate_every=0,
            )  # fmt: skip
        except fl.DivergedError:
            return "diverged"
        models.append(result.models)
    return f"{float((models[0] - models[1].flip(0)).abs().max()):.1e}"


def orders() -> list[list[str]]:
    """Compare two orders of clients, by method and rate."""
    return [
        [name, f"{lr:g}", *(difference(name, lr, rounds) for rounds in ROUNDS)]
        for name in methods(fl.Graph.complete(["a", "b"]), 0.01)
        for lr in RATES
    ]


def machines(stored: Path, again: Path) -> Iterator[list[str]]:
    """Compare rows in both folders: seeds with equal accuracy, and the largest difference in points."""
    for file in sorted(again.glob("*/*.json")):
        cell = file.relative_to(again)
        before, after = (json.loads((folder / cell).read_bytes())["rows"] for folder in (stored, again))
        for name in (name for name in after if name in before):
            old, new = before[name], after[name]
            apart = {
                seed: 100 * abs(old["last"][old["seeds"].index(seed)]["accuracy"] - last["accuracy"])
                for seed, last in zip(new["seeds"], new["last"], strict=True)
            }
            equal, worst = sum(gap == 0 for gap in apart.values()), max(apart, key=apart.__getitem__)
            rate = old["choices"][str(worst)]["values"].get("lr", "")
            devices = " and ".join(row["environment"]["device"] for row in (old, new))
            largest = f"{apart[worst]:.2f} (seed {worst}, rate {rate:g})" if apart[worst] else "0"
            yield [str(cell.with_suffix("")), name, devices, f"{equal} of {len(apart)}", largest]


def show(
    headers: Sequence[str], rows: Sequence[Sequence[str]], path: Path | None, kind: str, about: str
) -> None:
    """Print a table, and write it if a path is given."""
    table = Table(*headers)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if path is not None:
        write_section(path, kind, about, headers, rows)


def main() -> None:
    """Measure, print and, with --results, write a section."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", type=Path, help="results of another device, instead of two orders")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.again is not None:
        rows = list(machines(Path("results"), options.again))
        about = "accuracy after the last round, two devices; `python -m benchmarks.repeats --again FOLDER`"
        show(MACHINES, rows, options.results, "repeats: machines", about)
        return
    about = (
        "Human Activity, scarce, logistic model, 5 steps, S = 0.1 N, float64, seed 0: the largest difference "
        "of a parameter between two orders of clients; `python -m benchmarks.repeats`"
    )
    show(ORDERS, orders(), options.results, "repeats: orders", about)


if __name__ == "__main__":
    main()
