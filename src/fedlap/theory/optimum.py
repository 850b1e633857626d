"""W*, the minimiser of J, to high precision."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float64
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from fedlap.errors import InputError
from fedlap.theory.problem import DoubleStack, LaplacianProblem

GRADIENT_TOLERANCE = 1e-11  # ‖∇J(W*)‖ relative to ‖∇J(0)‖
NEWTON_STEPS, STEP_HALVINGS = 60, 40
LEAST_CG_RESIDUAL = 1e-12  # relative residual of a linear system; a quadratic loss needs one system only
FIRST_CG_RESIDUAL = 0.1  # relative residual of the first system otherwise; it falls with ‖∇J‖
MOST_CG_ITERATIONS = 20_000  # products with the Hessian per system


@dataclass(frozen=True, eq=False)
class Optimum:
    """The minimiser of J, the value of J there, and ‖∇J‖ there relative to ‖∇J(0)‖."""

    W: DoubleStack
    value: float
    residual: float


def find_optimum(problem: LaplacianProblem) -> Optimum:
    """Find W* of a linear model by Newton's method from zero, each step by conjugate gradients."""
    if not problem.is_linear:
        raise InputError("theory: J of this model has many minima; use a linear model, whose J is convex")
    W = torch.zeros(problem.size, problem.model.size, dtype=torch.float64)
    gradient = problem.gradient(W)
    initial_norm = float(gradient.norm())
    for _ in range(NEWTON_STEPS):
        if float(gradient.norm()) <= GRADIENT_TOLERANCE * initial_norm:
            break
        tolerance = (
            FIRST_CG_RESIDUAL * float(gradient.norm()) / initial_norm if problem.is_classifier else 0.0
        )
        step = _solve_newton_system(problem, W, gradient, max(LEAST_CG_RESIDUAL, tolerance))
        W, gradient, improved = _search_line(problem, W, gradient, step)
        if not improved:
            break
    residual = float(gradient.norm()) / initial_norm if initial_norm else 0.0
    if residual > 1e-9:
        raise InputError(
            f"theory: the minimiser of J was not found (‖∇J‖ fell to {residual:.2g} of its value at zero); "
            "set a larger l2"
        )
    return Optimum(W, problem.objective(W), residual)


def _solve_newton_system(
    problem: LaplacianProblem, W: DoubleStack, gradient: DoubleStack, tolerance: float
) -> DoubleStack:
    """Solve for ∇²J(W)⁻¹ ∇J(W)."""
    system = LinearOperator((W.numel(),) * 2, partial(_multiply_hessian, problem, W), dtype=np.float64)
    found, _ = cg(system, gradient.flatten().numpy(), rtol=tolerance, atol=0.0, maxiter=MOST_CG_ITERATIONS)
    return torch.from_numpy(found).view_as(W)


def _multiply_hessian(
    problem: LaplacianProblem, W: DoubleStack, vector: Float64[np.ndarray, "..."]
) -> Float64[np.ndarray, "value"]:
    return problem.hessian_product(W, torch.from_numpy(vector).view_as(W)).flatten().numpy()


def _search_line(
    problem: LaplacianProblem, W: DoubleStack, gradient: DoubleStack, step: DoubleStack
) -> tuple[DoubleStack, Tensor, bool]:
    """Halve the step until it lowers ‖∇J‖, or J by enough; return models, gradient and success."""
    value, decrease = problem.objective(W), float((gradient * step).sum())
    length = 1.0
    for _ in range(STEP_HALVINGS):
        candidate = W - length * step
        new_gradient = problem.gradient(candidate)
        if (
            float(new_gradient.norm()) < float(gradient.norm())
            or problem.objective(candidate) < value - 1e-4 * length * decrease
        ):
            return candidate, new_gradient, True
        length /= 2
    return W, gradient, False
