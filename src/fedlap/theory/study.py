"""What the theorems say of one run, and what was measured of it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedlap.algorithms import FedU
from fedlap.theory.bounds import Constants, Theorem1, Theorem2, lemma1
from fedlap.theory.curvature import Curvature, along, at_point, everywhere
from fedlap.theory.optimum import Optimum, optimum
from fedlap.theory.problem import Problem, Stack

SHARP = 3.0  # a gap within this factor of the least one is the floor, and tells nothing of the rate


@dataclass(frozen=True, eq=False)
class Study:
    """A run's problem with its constants, its minimiser where there is one, and both theorems.

    sigma1: the root of the variance of mini-batch gradients at each place; the largest is used.
    first: J(W⁰). distance: Δ⁰ = ‖W⁰ − W*‖². lemma: the paper's σ₂.
    """

    problem: Problem
    curvature: Curvature
    local: Curvature | None
    optimum: Optimum | None
    sigma1: dict[str, float]
    first: float
    distance: float | None
    lemma: float | None
    theorem1: Theorem1 | None
    theorem2: Theorem2

    @property
    def constants(self) -> Constants:
        """Those of Theorem 2, which every run has."""
        return self.theorem2.constants

    @property
    def fall(self) -> float:
        """Δ_J = J(W⁰) − J*, or J(W⁰) where J* is not known, since no loss is negative."""
        return self.first - (self.optimum.value if self.optimum else 0.0)

    def outside(self) -> list[str]:
        """Why this run is not what the theorems are about, whatever its step size."""
        problem, algorithm = self.problem, self.problem.algorithm
        found = []
        if problem.work.epochs and not problem.full:
            found.append("it makes passes over rows, whose mini-batches are not independent")
        if isinstance(algorithm, FedU) and algorithm.neighbours != "all" and problem.share < 1:
            found.append("unsampled neighbours are left out of its mixing")
        if algorithm.mixing != "explicit":
            found.append("it mixes implicitly, and the theorems are about explicit mixing")
        if problem.coupling == 0:
            found.append("nothing couples its models, and the constants divide by ηρ")
        return found


def study(problem: Problem, start: Stack, visited: dict[str, Stack]) -> Study:
    """Constants of a run from its start and other models that it visited, by name."""
    curvature = everywhere(problem) if problem.linear else along(problem, [start, *visited.values()])
    best = optimum(problem) if curvature.alpha else None
    points = {"start": start, **({"optimum": best.W} if best else {}), **visited}
    sigma1 = {name: math.sqrt(problem.variance(W)) for name, W in points.items()}
    common = Constants(
        alpha=curvature.alpha,
        beta=curvature.beta,
        coupling=problem.coupling,
        share=problem.share,
        repeats=problem.work.repeats,
        sigma1=max(sigma1.values()),
        sigma2=math.sqrt(max(0.0, *(excess(problem, W) for W in points.values()))),
    )
    theorem1 = None
    if best is not None:
        sigma2 = float(problem.loss_gradient(best.W).norm())
        theorem1 = Theorem1(replace(common, sigma2=sigma2))
    slope = float(problem.loss_gradient(0 * start).norm())
    return Study(
        problem=problem,
        curvature=curvature,
        local=at_point(problem, best.W) if best else None,
        optimum=best,
        sigma1=sigma1,
        first=problem.objective(start),
        distance=float((start - best.W).square().sum()) if best else None,
        lemma=lemma1(slope, curvature.beta, problem.coupling),
        theorem1=theorem1,
        theorem2=Theorem2(common),
    )


def excess(problem: Problem, W: Stack) -> float:
    """‖∇F(W)‖² − ‖∇J(W)‖², of which σ₂² is the largest value."""
    return float(problem.loss_gradient(W).square().sum() - problem.gradient(W).square().sum())


def rate(rounds: Sequence[int], gaps: Sequence[float]) -> float | None:
    """How fast the gap falls, per round and as the exponent of e, until it nears its floor."""
    values = np.array(gaps)
    low = np.flatnonzero(values <= SHARP * max(values.min(), 0.0))
    falling = slice(0, int(low[0]) + 1 if len(low) else None)
    at, height = np.array(rounds)[falling], values[falling]
    if len(at) < 3 or (height <= 0).any():
        return None
    return -float(np.polyfit(at, np.log(height), 1)[0])


def described(made: Study) -> dict[str, Any]:
    """The same as plain values."""
    problem, one, two = made.problem, made.theorem1, made.theorem2
    best = made.optimum
    return {
        "clients": problem.size,
        "sampled": problem.sampled,
        "local_steps": None if problem.work.epochs else problem.work.repeats,
        "local_epochs": problem.work.repeats if problem.work.epochs else None,
        "lr": problem.algorithm.lr,
        "strength": problem.strength,
        "step": problem.step,
        "rho": problem.graph.rho,
        "lambda2": problem.graph.lambda2,
        "curvature": asdict(made.curvature),
        "curvature_at_optimum": asdict(made.local) if made.local else None,
        "beta_j": made.constants.beta_j,
        "condition": made.constants.condition,
        "sigma1": made.sigma1,
        "sigma2": one.constants.sigma2 if one else None,
        "sigma2_of_lemma1": made.lemma,
        "sigma2_along_run": two.constants.sigma2,
        "outside": made.outside(),
        "optimum": {"value": best.value, "residual": best.residual} if best else None,
        "theorem1": None if one is None else _of_first(one, problem.step),
        "theorem2": {
            **{name: getattr(two, name) for name in ("u", "v", "c3", "c4", "largest_step")},
            "times_too_large": _times(problem.step, two.largest_step),
        },
    }


def _of_first(theorem: Theorem1, step: float) -> dict[str, Any]:
    names = ("p", "q", "c1", "c2", "largest_step", "least_rounds")
    return {
        **{name: getattr(theorem, name) for name in names},
        "times_too_large": _times(step, theorem.largest_step),
    }


def _times(step: float, largest: float) -> float | None:
    """How many times too large a step is; at most 1 where it is not, None where no step is small enough."""
    return step / largest if largest else None
