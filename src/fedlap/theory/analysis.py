"""Analysis of one run: its constants, both theorems, and measured rates."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedlap.algorithms import Passing, PeerAlgorithm
from fedlap.graph.weights import DENSE_UP_TO
from fedlap.theory.bounds import Constants, Theorem1, Theorem2, compute_lemma1_sigma2
from fedlap.theory.curvature import Curvature, bound_curvature, compute_curvature_at, estimate_curvature
from fedlap.theory.delays import DelayTheorem, compute_contraction
from fedlap.theory.optimum import Optimum, find_optimum
from fedlap.theory.passing import ExpectedStep, compute_expected_step
from fedlap.theory.problem import DoubleStack, LaplacianProblem

FLOOR_FACTOR = 3.0  # gaps within this factor of the smallest are the floor, and excluded from the rate
AGES = (0, 1, 5)  # of late models, in rounds, for which a rate is reported
LOSSES = (0.3, 0.5)  # shares of lost messages for which a rate is reported


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """A run's problem with its constants, its minimiser if there is one, and both theorems.

    sigma1: the square root of the variance of mini-batch gradients at each point; the largest is used.
    start_objective: J(W⁰). distance: Δ⁰ = ‖W⁰ − W*‖². lemma1_sigma2: the σ₂ of the paper's Lemma 1.
    """

    problem: LaplacianProblem
    curvature: Curvature
    curvature_at_optimum: Curvature | None
    optimum: Optimum | None
    sigma1: dict[str, float]
    start_objective: float
    distance: float | None
    lemma1_sigma2: float | None
    theorem1: Theorem1 | None
    theorem2: Theorem2

    @property
    def constants(self) -> Constants:
        """The constants of Theorem 2, which every run has."""
        return self.theorem2.constants

    @property
    def objective_gap(self) -> float:
        """Δ_J = J(W⁰) − J*, or J(W⁰) if J* is unknown, since no loss is negative."""
        return self.start_objective - (self.optimum.value if self.optimum else 0.0)

    @property
    def delays(self) -> DelayTheorem | None:
        """The theorem on late models; None without peers, explicit mixing or strong convexity."""
        problem = self.problem
        coupling = problem.algorithm.coupling
        if not (isinstance(problem.algorithm, PeerAlgorithm) and self.curvature.alpha):
            return None
        if coupling.mixing != "explicit":
            return None
        least = int(problem.clients.train.count.min())
        steps = problem.local_work.count_steps(least, problem.clients.batch)
        q = compute_contraction(self.curvature.alpha, self.curvature.beta, problem.algorithm.lr, steps)
        return DelayTheorem(q, coupling.delay_product)

    @cached_property
    def passing(self) -> ExpectedStep | None:
        """The expected step of a method that moves unsampled clients; None for others and large graphs."""
        problem, algorithm = self.problem, self.problem.algorithm
        if not isinstance(algorithm, Passing) or problem.size > DENSE_UP_TO:
            return None
        return compute_expected_step(algorithm.extension, problem.size, problem.sampled)

    def list_violations(self) -> list[str]:
        """Return the assumptions of both theorems that this run violates, whatever its step size."""
        problem, algorithm = self.problem, self.problem.algorithm
        violations = []
        if problem.local_work.epochs and not problem.is_full_batch:
            violations.append("it trains in local epochs, whose mini-batches are not independent")
        violations += algorithm.list_departures(problem.share)
        if algorithm.coupling.mixing != "explicit":
            violations.append("it mixes implicitly, but the theorems assume explicit mixing")
        if problem.coupling == 0:
            violations.append("nothing couples its models, but the constants divide by ηρ")
        return violations


def analyze_run(
    problem: LaplacianProblem, start: DoubleStack, visited: dict[str, DoubleStack]
) -> RunAnalysis:
    """Compute the constants of a run from its initial models and other models that it visited, by name."""
    curvature = (
        bound_curvature(problem)
        if problem.is_linear
        else estimate_curvature(problem, [start, *visited.values()])
    )
    best = find_optimum(problem) if curvature.alpha else None
    points = {"start": start, **({"optimum": best.W} if best else {}), **visited}
    sigma1 = {name: math.sqrt(problem.gradient_variance(W)) for name, W in points.items()}
    common = Constants(
        alpha=curvature.alpha,
        beta=curvature.beta,
        coupling=problem.coupling,
        share=problem.share,
        repeats=problem.local_work.repeats,
        sigma1=max(sigma1.values()),
        sigma2=math.sqrt(max(0.0, *(compute_gradient_excess(problem, W) for W in points.values()))),
    )
    theorem1 = None
    if best is not None:
        sigma2 = float(problem.loss_gradient(best.W).norm())
        theorem1 = Theorem1(replace(common, sigma2=sigma2))
    gradient_at_zero = float(problem.loss_gradient(0 * start).norm())
    return RunAnalysis(
        problem=problem,
        curvature=curvature,
        curvature_at_optimum=compute_curvature_at(problem, best.W) if best else None,
        optimum=best,
        sigma1=sigma1,
        start_objective=problem.objective(start),
        distance=float((start - best.W).square().sum()) if best else None,
        lemma1_sigma2=compute_lemma1_sigma2(gradient_at_zero, curvature.beta, problem.coupling),
        theorem1=theorem1,
        theorem2=Theorem2(common),
    )


def compute_gradient_excess(problem: LaplacianProblem, W: DoubleStack) -> float:
    """Compute ‖∇F(W)‖² − ‖∇J(W)‖², whose largest value along the run is σ₂²."""
    return float(problem.loss_gradient(W).square().sum() - problem.gradient(W).square().sum())


def estimate_rate(rounds: Sequence[int], gaps: Sequence[float]) -> float | None:
    """Estimate the rate r per round at which the gap falls as exp(−r t), until it nears its floor."""
    values = np.array(gaps)
    low = np.flatnonzero(values <= FLOOR_FACTOR * max(values.min(), 0.0))
    falling = slice(0, int(low[0]) + 1 if len(low) else None)
    falling_rounds, falling_gaps = np.array(rounds)[falling], values[falling]
    if len(falling_rounds) < 3 or (falling_gaps <= 0).any():
        return None
    return -float(np.polyfit(falling_rounds, np.log(falling_gaps), 1)[0])


def summarize_analysis(analysis: RunAnalysis) -> dict[str, Any]:
    """Return the analysis as a dictionary of plain values."""
    problem, one, two = analysis.problem, analysis.theorem1, analysis.theorem2
    best = analysis.optimum
    return {
        "clients": problem.size,
        "sampled": problem.sampled,
        "local_steps": None if problem.local_work.epochs else problem.local_work.repeats,
        "local_epochs": problem.local_work.repeats if problem.local_work.epochs else None,
        "lr": problem.algorithm.lr,
        "strength": problem.strength,
        "step": problem.step,
        "rho": problem.graph.rho,
        "lambda2": problem.graph.lambda2,
        "curvature": asdict(analysis.curvature),
        "curvature_at_optimum": asdict(analysis.curvature_at_optimum)
        if analysis.curvature_at_optimum
        else None,
        "beta_j": analysis.constants.beta_j,
        "condition": analysis.constants.condition,
        "sigma1": analysis.sigma1,
        "sigma2": one.constants.sigma2 if one else None,
        "sigma2_of_lemma1": analysis.lemma1_sigma2,
        "sigma2_along_run": two.constants.sigma2,
        "outside": analysis.list_violations(),
        "optimum": {"value": best.value, "residual": best.residual} if best else None,
        "theorem1": None if one is None else _summarize_theorem1(one, problem.step),
        "theorem2": {
            **{name: getattr(two, name) for name in ("u", "v", "c3", "c4", "largest_step")},
            "times_too_large": _compare_step(problem.step, two.largest_step),
        },
        "delays": _summarize_delays(analysis),
        "passing": _summarize_passing(analysis),
    }


def _summarize_theorem1(theorem: Theorem1, step: float) -> dict[str, Any]:
    names = ("p", "q", "c1", "c2", "largest_step", "least_rounds")
    return {
        **{name: getattr(theorem, name) for name in names},
        "times_too_large": _compare_step(step, theorem.largest_step),
    }


def _summarize_delays(analysis: RunAnalysis) -> dict[str, Any] | None:
    """Return the theorem on late models as plain values; None for a method with a server."""
    coupling, theorem = analysis.problem.algorithm.coupling, analysis.delays
    if not isinstance(analysis.problem.algorithm, PeerAlgorithm):
        return None
    facts = {
        "largest_degree": coupling.graph.largest_degree,
        "product": coupling.delay_product,
        "tolerated": coupling.tolerates_delays,
    }
    if theorem is None:
        return {**facts, "holds": False}
    return {
        **facts,
        "holds": theorem.holds,
        "contraction": theorem.contraction,
        "largest_product": theorem.largest_product,
        "rates": {str(age): theorem.compute_rate(age) for age in AGES},
        "rates_at_losses": {str(share): theorem.compute_rate_at_losses(share) for share in LOSSES},
    }


def _summarize_passing(analysis: RunAnalysis) -> dict[str, Any] | None:
    """Return the expected step of a method that moves unsampled clients as plain values."""
    passing, beta_j = analysis.passing, analysis.constants.beta_j
    if passing is None:
        return None
    return {
        "least": passing.least,
        "largest": float(passing.symmetric_eigenvalues[-1]),
        "common": passing.common,
        "spread": passing.spread,
        "largest_step": passing.find_largest_step(beta_j),
        "times_too_large": _compare_step(analysis.problem.step, passing.find_largest_step(beta_j)),
        "cohorts_drawn": passing.draws,
    }


def _compare_step(step: float, largest: float) -> float | None:
    """Return the step relative to the largest admissible one; None if no step is small enough."""
    return step / largest if largest else None
