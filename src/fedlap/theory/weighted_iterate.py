"""The weighted iterate W̃ that Theorem 1 is about, and the path of a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fedlap.errors import DivergedError
from fedlap.theory.problem import Problem, Stack
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.loop import RoundEnd
from fedlap.training.schedule import Schedule


def weight(contraction: float, rounds: int) -> float:
    """θ(T − 1)/Θ_T, the share of the last of T iterates in their weighted mean.

    With θ(t) = (1 − a)^−(t + 1), a = μ̃τα/4, it is a / (1 − (1 − a)^T): 1/T for a → 0, and 1 from a = 1 on,
    where the weights have no meaning any more and the last iterate is all.
    """
    if contraction >= 1:
        return 1.0
    return contraction / -math.expm1(rounds * math.log1p(-contraction)) if contraction > 0 else 1 / rounds


def weighted(contraction: float, values: list[float]) -> list[float]:
    """Σ_t θ(t) v(t) / Θ_T after each of the values, v(0) first."""
    mean, made = 0.0, []
    for rounds, value in enumerate(values, 1):
        mean += weight(contraction, rounds) * (value - mean)
        made.append(mean)
    return made


@dataclass(eq=False)
class Weighted:
    """W̃ of the iterates that it was given so far, W(0) first."""

    contraction: float
    rounds: int = 0
    mean: Stack | None = None

    def add(self, W: Stack) -> None:
        """One more iterate."""
        self.rounds += 1
        mean = torch.zeros_like(W) if self.mean is None else self.mean
        self.mean = mean + weight(self.contraction, self.rounds) * (W - mean)


def walk(problem: Problem, trial: Job, schedule: Schedule, visit: Callable[[int, Stack], None]) -> None:
    """Train again and visit W(0), W(1), …, W(T), in double precision; the same numbers as the first time."""
    visit(0, problem.start(trial.seed))

    def on_round(moment: RoundEnd) -> None:
        (now,) = moment.progress()
        if now is not None:
            visit(
                moment.round, problem.algorithm.personal(now.server, now.private, problem.size).double().cpu()
            )

    (made,) = fit_all([trial], replace(schedule, evaluate_every=0), on_round=on_round)
    if isinstance(made, DivergedError):
        raise made
