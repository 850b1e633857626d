"""Measure the cost of checkpoints: 1,000 clients × 79,510 parameters, at the default interval.

    python -m benchmarks.saving [--seconds 120]

FedU trains for about this time with the default checkpoints. The time of all checkpoints, including the last,
is compared with the total.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared, prepare
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.session import ProgressCallbacks, ResumePlan

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


def count_rounds(out: Path, prepared: Prepared, seconds: float) -> int:
    """Return the number of rounds that take about this time."""
    return max(5, int(4 * seconds / train(out / "trial", prepared, 4).training))


@dataclass
class Spent:
    """Seconds of a run by purpose."""

    total: float = 0.0
    training: float = 0.0
    checkpoints: list[float] = field(default_factory=list)
    models: float = 0.0
    megabytes: float = 0.0

    @property
    def share(self) -> float:
        """Share of the total that checkpoints take."""
        return sum(self.checkpoints) / self.total


def train(out: Path, prepared: Prepared, rounds: int) -> Spent:
    """Train this number of rounds with the default checkpoints."""
    ready = replace(prepared, experiment=prepared.experiment.model_copy(update={"rounds": rounds}))
    plan, spent = ResumePlan.of(out, [ready], again=True), Spent()
    with (
        time_calls(RunFolder, "save_checkpoint", spent.checkpoints),
        time_calls(RunFolder, "save_models", models := []),
    ):
        began = time.perf_counter()
        ((_, scores),) = plan.train(plan.pack(), ProgressCallbacks())
        spent.total = time.perf_counter() - began
    spent.training, spent.models = scores[-1].seconds, sum(models)
    last = plan.runs[0].folder / "checkpoint" / f"round-{rounds:08d}" / "state.safetensors"
    spent.megabytes = last.stat().st_size / 1e6
    return spent


@contextmanager
def time_calls(owner: type, name: str, into: list[float]) -> Iterator[None]:
    """Append the seconds of every call of a method to a list."""
    method = getattr(owner, name)

    def wrapper(*arguments: object) -> object:
        began = time.perf_counter()
        output = method(*arguments)
        into.append(time.perf_counter() - began)
        return output

    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, method)


def main() -> int:
    """Measure, print, and return 1 if the requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (prepared,) = prepare([Experiment.of(DESCRIBED)])
        rounds = count_rounds(out, prepared, options.seconds)
        spent = train(out / "measured", prepared, rounds)
    met = spent.share < MUST
    print(
        f"{CLIENTS:,} clients, {spent.megabytes:.0f} MB per checkpoint, {torch.get_num_threads()} threads: "
        f"{rounds} rounds in {spent.total:.1f} s, {spent.training:.1f} of them training; "
        f"{len(spent.checkpoints)} checkpoints took {sum(spent.checkpoints):.1f} s, "
        f"{100 * spent.share:.1f} % of the total (required: below {100 * MUST:.0f} %): "
        f"{'met' if met else 'MISSED'}; writing the final models took {spent.models:.1f} s"
    )
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
