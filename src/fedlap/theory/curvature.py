"""Curvature of the clients' losses: α ≤ ∇²F_k ≤ β."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from fedlap.errors import InputError
from fedlap.randomness import draws
from fedlap.theory.problem import DoubleStack, LaplacianProblem

# Böhning, Annals of the Institute of Statistical Mathematics 44 (1992): diag(p) − ppᵀ ≤ ½ for every p.
SOFTMAX_CURVATURE = 0.5
LARGEST_DECOMPOSITION = 5_000  # rows or features with bias, whichever are fewer, of a decomposed covariance
LARGEST_HESSIANS = 60_000_000  # values of all clients' Hessians that fit into memory together (480 MB)
POWER_ITERATIONS = 200
POWER_TOLERANCE = 1e-6  # relative change that ends power iteration

CurvatureSource = Literal["exact", "bound", "at a point", "estimate"]


@dataclass(frozen=True)
class Curvature:
    """α and β of all F_k, and their origin.

    exact: a quadratic loss, whose curvature is constant. bound: the logistic loss over all W; α is l2, since
    the loss without it flattens far out. at a point: extreme eigenvalues of the Hessians there. estimate: β
    by power iteration at some points, if nothing better is known; α is then None.
    """

    alpha: float | None
    beta: float
    origin: CurvatureSource


def bound_curvature(problem: LaplacianProblem) -> Curvature:
    """Compute α and β of a linear model over all W."""
    if not problem.is_linear:
        raise InputError("theory: the curvature of this model has no known bound; use a linear model")
    least, most = float("inf"), 0.0
    for client in range(problem.size):
        low, high = _compute_extreme_eigenvalues(problem, client)
        least, most = min(least, low), max(most, high)
    l2 = problem.model.l2
    if problem.is_classifier:
        return Curvature(l2, SOFTMAX_CURVATURE * most + l2, "bound")
    return Curvature(least + l2, most + l2, "exact")


def compute_curvature_at(problem: LaplacianProblem, W: DoubleStack) -> Curvature:
    """Compute the extreme eigenvalues of the Hessians at W.

    Adding a constant to the scores of all classes changes nothing, so a classifier's Hessian is l2 along
    these directions; α is the smallest eigenvalue along the others. If the Hessians do not fit into memory, β
    is an estimate.
    """
    size = problem.model.size
    if problem.size * size**2 > LARGEST_HESSIANS:
        return estimate_curvature(problem, [W])
    unit = torch.eye(size, dtype=W.dtype)
    hessian = torch.stack(
        [problem.loss_hessian_product(W, row.expand_as(W).contiguous()) for row in unit], -1
    )
    values = torch.linalg.eigvalsh((hessian + hessian.mT) / 2)
    invariant = size // problem.model.network.outputs if problem.is_linear and problem.is_classifier else 0
    return Curvature(float(values[:, invariant].min()), float(values.abs().max()), "at a point")


def estimate_curvature(problem: LaplacianProblem, points: list[DoubleStack]) -> Curvature:
    """Estimate the largest curvature by power iteration at these points, for all clients at once."""
    beta = max(float(_run_power_iteration(problem, W).max()) for W in points)
    return Curvature(None, beta, "estimate")


def _compute_extreme_eigenvalues(problem: LaplacianProblem, client: int) -> tuple[float, float]:
    """Compute extreme eigenvalues of a client's weighted mean of x̃x̃ᵀ, where x̃ is x with a 1 for the bias."""
    x = problem.client_rows(client)[0].flatten(1)
    features = torch.cat([x, x.new_ones(len(x), 1)], 1) * problem.client_weights(client).sqrt().unsqueeze(1)
    rows, width = features.shape
    if min(rows, width) > LARGEST_DECOMPOSITION:
        raise InputError(
            f"theory: client {client} has {rows} rows with {width - 1} features; expected at most "
            f"{LARGEST_DECOMPOSITION} of either; use smaller clients or fewer features"
        )
    gram = features.mT @ features if width <= rows else features @ features.mT
    values = torch.linalg.eigvalsh(gram) / rows
    return (max(0.0, float(values[0])) if width <= rows else 0.0), float(values[-1])


def _run_power_iteration(problem: LaplacianProblem, W: DoubleStack) -> Float64[Tensor, "client"]:
    """Return the largest absolute curvature of each client's loss at its row of W."""
    V = draws(0, "start").normals(torch.arange(len(W)), 0, W.shape[1])
    norms = torch.zeros(len(W), dtype=W.dtype)
    for _ in range(POWER_ITERATIONS):
        V = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
        V = problem.loss_hessian_product(W, V)
        previous, norms = norms, V.norm(dim=1)
        if bool(((norms - previous).abs() <= POWER_TOLERANCE * norms).all()):
            break
    return norms
