"""What it costs to save a run: 1,000 clients × 79,510 parameters, at the default interval.

    python -m benchmarks.saving [--seconds 120]

A run of FedU is trained for about so long, saved as by default, and what saving took is held against all of
it: the time that is not training, since nothing is scored before the last round.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedlap.experiment import Experiment
from fedlap.keeping import Plan, Watch
from fedlap.sweeps import Prepared, prepared

MUST = 0.05
CLIENTS, HIDDEN = 1_000, 100
DESCRIBED = {
    "data": {
        "name": "synthetic",
        "clients": CLIENTS,
        "features": 784,
        "labels": 10,
        "rows": 30,
        "test_rows": 2,
    },
    "model": {"name": "mlp", "hidden": [HIDDEN]},
    "algorithm": {"name": "fedu", "local_steps": 5},
    "evaluate_every": 0,
}


def rounds_in(out: Path, made: Prepared, seconds: float) -> int:
    """How many rounds take so long."""
    _, training, _, _ = trained(out / "tried", made, 4)
    return max(5, int(4 * seconds / training))


def trained(out: Path, made: Prepared, rounds: int) -> tuple[float, float, int, int]:
    """Seconds of all and of training, how often it was saved, and bytes of a checkpoint."""
    ready = replace(made, experiment=made.experiment.model_copy(update={"rounds": rounds}))
    plan, saved = Plan.of(out, [ready], again=True), set()

    def on_round(places: object, done: int) -> None:
        saved.update(plan.runs[0].saved)

    began = time.perf_counter()
    ((_, result),) = plan.trained(plan.stacks(), Watch(on_round=on_round))
    total = time.perf_counter() - began
    saved.update(plan.runs[0].saved)
    size = sum(p.stat().st_size for p in (plan.runs[0].folder / "checkpoint").rglob("*") if p.is_file())
    return total, result.scores[-1].seconds, len(saved), size // len(plan.runs[0].saved)


def main() -> int:
    """Measure, print, and say whether what is promised is met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (made,) = prepared([Experiment.of(DESCRIBED)])
        rounds = rounds_in(out, made, options.seconds)
        total, training, times, size = trained(out / "measured", made, rounds)
    share = (total - training) / total
    print(
        f"{CLIENTS:,} clients, {size / 1e6:.0f} MB a checkpoint, {torch.get_num_threads()} threads: {rounds} "
        f"rounds in {total:.1f} s, saved {times} times and the models once: {100 * share:.1f} % of the time "
        f"is not training (must be below {100 * MUST:.0f} %): {'met' if share < MUST else 'MISSED'}"
    )
    return int(share >= MUST)


if __name__ == "__main__":
    sys.exit(main())
