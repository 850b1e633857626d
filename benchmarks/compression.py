"""Compare what peers reach by the bytes that they send, with each compression, on a ring.

Full batches, so that J falls without noise. The target is J of the run without compression after half of the
rounds. Nothing is timed. Data that cannot be loaded are left out; digits are embedded.

    python -m benchmarks.compression [--only digits,har] [--rounds 800] [--results benchmarks/RESULTS.md]
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fedlap as fl
from benchmarks.results import write_section
from fedlap.theory import LaplacianProblem, find_optimum

MESSAGES = ("none", "float16", "int8", "top-k:0.1", "top-k:0.01")
EVERY = 5  # rounds between scores
MODEL = fl.models.linear(l2=0.01)
HEADERS = (
    "data", "messages", "bytes per message", "share", "J − J* after 1/8 of the rounds", "half", "all",
    "J − J of none", "accuracy %, half", "all", "rounds to the target", "MB sent until then",
)  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """A data set and the settings of its runs."""

    name: str
    data: dict[str, Any]
    settings: dict[str, Any]

    def load(self) -> fl.Federation:
        """Load the clients of seed 0."""
        return fl.data.load(**self.data)


WORKLOADS = {
    "digits": Workload(
        "digits, 20 clients with 3 labels each",
        {"name": "digits", "partition": fl.partition.Labels(20, 3)},
        {"lr": 0.1, "strength": 0.1},
    ),
    "har": Workload("Human Activity, 30 people", {"name": "har", "scale": "pooled"}, {"lr": 0.03}),
}


def measure(work: Workload, rounds: int) -> list[list[str]]:
    """Return the rows of a workload, one per compression."""
    federation = work.load()
    plain = fl.DFedU(fl.Graph.ring(federation.clients), **work.settings)
    best = find_optimum(LaplacianProblem.of(plain, federation, MODEL, batch="all")).value
    schedule = {"rounds": rounds, "batch": "all", "evaluate_every": EVERY, "score_training": "always"}
    scores: dict[str, list[fl.Score]] = {}
    for name in MESSAGES:
        scores[name] = fl.fit(replace(plain, compression=name), federation, MODEL, **schedule).scores
        print(work.name, name, scores[name][-1], flush=True)
    return [describe(work, name, scores, best, plain.count_messages()) for name in MESSAGES]


def describe(
    work: Workload, name: str, scores: dict[str, list[fl.Score]], best: float, messages: int
) -> list[str]:
    """Return the cells of a row."""
    found, plain = scores[name], scores["none"]
    last, half, eighth = (found[len(found) // part - 1] for part in (1, 2, 8))
    size, full = (of[-1].bytes_up / of[-1].round / messages for of in (found, plain))
    target = get_objective(plain[len(plain) // 2 - 1])
    reached = next((score for score in found if get_objective(score) <= target), None)
    gaps = [get_objective(score) - best for score in (eighth, half, last)]
    return [
        work.name,
        name,
        f"{size:,.0f}",
        f"{100 * size / full:.1f} %",
        *(f"{gap:.3g}" for gap in gaps),
        "" if name == "none" else f"{get_objective(last) - get_objective(plain[-1]):+.1g}",
        *(f"{100 * float(score.accuracy or 0):.2f}" for score in (half, last)),
        f"more than {last.round}" if reached is None else f"{reached.round}",
        f"more than {last.bytes_up / 1e6:.3g}" if reached is None else f"{reached.bytes_up / 1e6:.3g}",
    ]


def get_objective(score: fl.Score) -> float:
    """Return J(W) of a scored round."""
    assert score.objective is not None
    return score.objective


def main() -> int:
    """Measure, print and, with --results, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, comma-separated")
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        try:
            rows += measure(WORKLOADS[name], options.rounds)
        except fl.InputError as error:
            print(f"{name} is left out: {error}")
    for row in rows:
        print(" | ".join(row))
    if options.results and rows:
        about = (
            f"dFedU on a ring, linear models with l2 = {MODEL.l2:g}, 5 local steps with all rows, float32, "
            f"{options.rounds} rounds; the target is J without compression after half of them; all bytes of "
            "all clients; `python -m benchmarks.compression`"
        )
        write_section(options.results, "compression", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
