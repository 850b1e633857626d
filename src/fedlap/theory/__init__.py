"""The paper's theory in numbers: constants of a problem, its minimiser, both theorems."""

from fedlap.theory.analysis import (
    RunAnalysis,
    analyze_run,
    compute_gradient_excess,
    estimate_rate,
    summarize_analysis,
)
from fedlap.theory.bounds import Constants, Theorem1, Theorem2, compute_lemma1_sigma2
from fedlap.theory.curvature import Curvature, bound_curvature, compute_curvature_at, estimate_curvature
from fedlap.theory.delays import DelayTheorem, compute_contraction
from fedlap.theory.optimum import Optimum, find_optimum
from fedlap.theory.passing import ExpectedStep, compute_expected_step
from fedlap.theory.problem import LaplacianProblem
from fedlap.theory.weighted_iterate import (
    WeightedIterate,
    average_iterates,
    compute_last_weight,
    replay_iterates,
)

__all__ = [
    "Constants",
    "Curvature",
    "DelayTheorem",
    "ExpectedStep",
    "LaplacianProblem",
    "Optimum",
    "RunAnalysis",
    "Theorem1",
    "Theorem2",
    "WeightedIterate",
    "analyze_run",
    "average_iterates",
    "bound_curvature",
    "compute_contraction",
    "compute_curvature_at",
    "compute_expected_step",
    "compute_gradient_excess",
    "compute_last_weight",
    "compute_lemma1_sigma2",
    "estimate_curvature",
    "estimate_rate",
    "find_optimum",
    "replay_iterates",
    "summarize_analysis",
]
