"""The weighted iterate W̃ of Theorem 1, and a replay of all iterates of a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fedlap.errors import DivergedError
from fedlap.theory.problem import DoubleStack, LaplacianProblem
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.recorder import RoundEnd
from fedlap.training.schedule import Schedule


def compute_last_weight(contraction: float, rounds: int) -> float:
    """Return θ(T − 1)/Θ_T, the weight of the last of T iterates in their weighted mean.

    With θ(t) = (1 − a)^−(t + 1), a = μ̃τα/4, it is a / (1 − (1 − a)^T): 1/T for a → 0. From a = 1 on the
    weights are not defined; the result is 1, so that the mean is the last iterate.
    """
    if contraction >= 1:
        return 1.0
    return contraction / -math.expm1(rounds * math.log1p(-contraction)) if contraction > 0 else 1 / rounds


def average_iterates(contraction: float, values: list[float]) -> list[float]:
    """Return the running means Σ_t θ(t) v(t) / Θ_T after each value, v(0) first."""
    mean, means = 0.0, []
    for rounds, value in enumerate(values, 1):
        mean += compute_last_weight(contraction, rounds) * (value - mean)
        means.append(mean)
    return means


@dataclass(eq=False)
class WeightedIterate:
    """W̃, the weighted mean of the iterates added so far, W(0) first."""

    contraction: float
    rounds: int = 0
    mean: DoubleStack | None = None

    def add(self, W: DoubleStack) -> None:
        """Add one iterate."""
        self.rounds += 1
        mean = torch.zeros_like(W) if self.mean is None else self.mean
        self.mean = mean + compute_last_weight(self.contraction, self.rounds) * (W - mean)


def replay_iterates(
    problem: LaplacianProblem, job: Job, schedule: Schedule, visit: Callable[[int, DoubleStack], None]
) -> None:
    """Repeat the training and call `visit` with W(0), W(1), …, W(T) in double precision.

    The numbers are those of the first training.
    """
    visit(0, problem.initial_models(job.seed))

    def on_round(round_end: RoundEnd) -> None:
        (progress,) = round_end.collect_progress()
        if progress is not None:
            visit(
                round_end.round,
                problem.algorithm.personal_models(progress.server, progress.private, problem.size)
                .double()
                .cpu(),
            )

    (result,) = fit_all([job], replace(schedule, evaluate_every=0), on_round=on_round)
    if isinstance(result, DivergedError):
        raise result
