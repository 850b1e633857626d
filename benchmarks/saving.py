"""What it costs to save a run: 1,000 clients × 79,510 parameters, at the default interval.

    python -m benchmarks.saving [--seconds 120]

A run of FedU is trained for about so long, saved as by default, and what checkpoints took, the last one
included, is held against all of it.
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
from fedlap.experiments.session import ResumePlan, ProgressCallbacks

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


def list_checkpoint_rounds(out: Path, made: Prepared, seconds: float) -> int:
    """How many rounds take so long."""
    return max(5, int(4 * seconds / trained(out / "tried", made, 4).training))


@dataclass
class Spent:
    """Seconds of a run, by what they were spent on."""

    total: float = 0.0
    training: float = 0.0
    checkpoints: list[float] = field(default_factory=list)
    models: float = 0.0
    megabytes: float = 0.0

    @property
    def share(self) -> float:
        """Of checkpoints."""
        return sum(self.checkpoints) / self.total


def trained(out: Path, made: Prepared, rounds: int) -> Spent:
    """Train so many rounds, saved as by default."""
    ready = replace(made, experiment=made.experiment.model_copy(update={"rounds": rounds}))
    plan, spent = ResumePlan.of(out, [ready], again=True), Spent()
    with timed(RunFolder, "save", spent.checkpoints), timed(RunFolder, "save_models", models := []):
        began = time.perf_counter()
        ((_, scores),) = plan.train(plan.pack(), ProgressCallbacks())
        spent.total = time.perf_counter() - began
    spent.training, spent.models = scores[-1].seconds, sum(models)
    last = plan.runs[0].folder / "checkpoint" / f"round-{rounds:08d}" / "state.safetensors"
    spent.megabytes = last.stat().st_size / 1e6
    return spent


@contextmanager
def timed(owner: type, name: str, into: list[float]) -> Iterator[None]:
    """Note how long each call of a method takes."""
    method = getattr(owner, name)

    def noted(*given: object) -> object:
        began = time.perf_counter()
        made = method(*given)
        into.append(time.perf_counter() - began)
        return made

    setattr(owner, name, noted)
    try:
        yield
    finally:
        setattr(owner, name, method)


def main() -> int:
    """Measure, print, and say whether what is promised is met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (made,) = prepare([Experiment.of(DESCRIBED)])
        rounds = list_checkpoint_rounds(out, made, options.seconds)
        spent = trained(out / "measured", made, rounds)
    met = spent.share < MUST
    print(
        f"{CLIENTS:,} clients, {spent.megabytes:.0f} MB a checkpoint, {torch.get_num_threads()} threads: "
        f"{rounds} rounds in {spent.total:.1f} s, {spent.training:.1f} of them training; "
        f"{len(spent.checkpoints)} checkpoints took {sum(spent.checkpoints):.1f} s, "
        f"{100 * spent.share:.1f} % of all (must be below {100 * MUST:.0f} %): {'met' if met else 'MISSED'}; "
        f"to keep the models at the end took {spent.models:.1f} s"
    )
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
