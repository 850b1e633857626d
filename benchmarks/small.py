"""Compare speed-ups over the ordinary way with the committed ones, for every change.

Fails if the median of seven interleaved ratios is below half the committed ratio; absolute times never fail.

    python -m benchmarks.small [--commit]
"""

import json
import statistics
import sys
from functools import cache
from pathlib import Path

import numpy as np

import fedlap as fl
from benchmarks.workloads import Workload

RATIOS = Path(__file__).with_name("ratios.json")
REPEATS = 7


@cache
def clients() -> fl.Federation:
    """Build twenty small clients."""
    rng = np.random.default_rng(0)
    arrays = {
        str(k): (rng.normal(size=(60 + k, 200)).astype(np.float32), rng.integers(0, 6, 60 + k))
        for k in range(20)
    }
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=6, scale="none")


WORKLOADS = [
    Workload("logistic, epochs", clients, fl.models.linear(), True, 0, 0),
    Workload("MLP, epochs", clients, fl.models.mlp((50,)), True, 0, 0),
    Workload("logistic, steps", clients, fl.models.linear(), False, 0, 0),
]


def ratio(workload: Workload) -> float:
    """Return the median speed-up of a round over the ordinary way."""
    theirs = workload.theirs()
    workload.ours(0), theirs()
    return statistics.median(theirs() / workload.ours(repeat) for repeat in range(REPEATS))


def main() -> int:
    """Measure and compare; with --commit, write the ratios first."""
    found = {workload.name: ratio(workload) for workload in WORKLOADS}
    if "--commit" in sys.argv[1:]:
        RATIOS.write_text(
            json.dumps({name: round(value, 2) for name, value in found.items()}, indent=1) + "\n"
        )
    committed = json.loads(RATIOS.read_text())
    failed = False
    for name, value in found.items():
        low = value < committed[name] / 2
        failed |= low
        verdict = "  TOO LOW" if low else ""
        print(f"{name}: {value:.1f}× the ordinary way; committed {committed[name]:.1f}×{verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
