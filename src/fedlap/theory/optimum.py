"""W*, the minimiser of J, to high precision."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float64
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from fedlap.errors import InputError
from fedlap.theory.problem import Problem, Stack

EXACT = 1e-11  # ‖∇J(W*)‖ relative to ‖∇J(0)‖
STEPS, HALVINGS = 60, 40  # of Newton's method
INNER = 1e-12  # the least relative residual of a linear system; of a quadratic, one system is all
ROUGH = 0.1  # the residual of the first ones otherwise, which falls with ‖∇J‖
MOST = 20_000  # products with the Hessian that one system may take


@dataclass(frozen=True, eq=False)
class Optimum:
    """The minimiser of J, J there, and how nearly ∇J is zero, relative to where all parameters are."""

    W: Stack
    value: float
    residual: float


def optimum(problem: Problem) -> Optimum:
    """Newton's method from zero, each step by conjugate gradients; for convex, linear models."""
    if not problem.linear:
        raise InputError("theory: J of this model has many minima; W* is computed for linear models alone")
    W = torch.zeros(problem.size, problem.model.size, dtype=torch.float64)
    slope = problem.gradient(W)
    first = float(slope.norm())
    for _ in range(STEPS):
        if float(slope.norm()) <= EXACT * first:
            break
        precise = ROUGH * float(slope.norm()) / first if problem.classifies else 0.0
        step = _solved(problem, W, slope, max(INNER, precise))
        W, slope, moved = _descended(problem, W, slope, step)
        if not moved:
            break
    residual = float(slope.norm()) / first if first else 0.0
    if residual > 1e-9:
        raise InputError(
            f"theory: the minimiser of J was not found (‖∇J‖ fell to {residual:.2g} of that at zero); "
            "give the model a larger l2"
        )
    return Optimum(W, problem.objective(W), residual)


def _solved(problem: Problem, W: Stack, slope: Stack, precise: float) -> Stack:
    """∇²J(W)⁻¹ ∇J(W)."""
    system = LinearOperator((W.numel(),) * 2, partial(_times, problem, W), dtype=np.float64)
    found, _ = cg(system, slope.flatten().numpy(), rtol=precise, atol=0.0, maxiter=MOST)
    return torch.from_numpy(found).view_as(W)


def _times(problem: Problem, W: Stack, flat: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "value"]:
    return problem.curvature(W, torch.from_numpy(flat).view_as(W)).flatten().numpy()


def _descended(problem: Problem, W: Stack, slope: Stack, step: Stack) -> tuple[Stack, Tensor, bool]:
    """The longest of the step and its halves that lowers ‖∇J‖, or J by enough."""
    now, gain = problem.objective(W), float((slope * step).sum())
    length = 1.0
    for _ in range(HALVINGS):
        there = W - length * step
        anew = problem.gradient(there)
        if float(anew.norm()) < float(slope.norm()) or problem.objective(there) < now - 1e-4 * length * gain:
            return there, anew, True
        length /= 2
    return W, slope, False
