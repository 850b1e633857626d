"""How bent the clients' losses are: α ≤ ∇²F_k ≤ β."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from fedlap.errors import InputError
from fedlap.randomness import draws
from fedlap.theory.problem import Problem, Stack

# Böhning, Annals of the Institute of Statistical Mathematics 44 (1992): diag(p) − ppᵀ ≤ ½ for every p.
SOFTMAX = 0.5
WIDEST = 5_000  # features, bias included, or rows where these are fewer, whose covariance is decomposed
HELD = 60_000_000  # values of all clients' Hessians that are held at once (480 MB)
TURNS, SETTLED = 200, 1e-6  # of power iteration: at most, and the relative change that ends it

Origin = Literal["exact", "bound", "at a point", "estimate"]


@dataclass(frozen=True)
class Curvature:
    """α and β of all F_k, and what they are.

    exact: of a quadratic, the same everywhere. bound: of the logistic loss, over all W; α is l2, since it has
    no curvature of its own far out. at a point: extreme eigenvalues of the Hessians there. estimate: by power
    iteration at some points, where nothing better is known; α is then not.
    """

    alpha: float | None
    beta: float
    origin: Origin


def everywhere(problem: Problem) -> Curvature:
    """α and β over all W, of a linear model."""
    if not problem.linear:
        raise InputError("theory: the curvature of this model has no bound; only linear models have one")
    least, most = float("inf"), 0.0
    for client in range(problem.size):
        low, high = _extremes(problem, client)
        least, most = min(least, low), max(most, high)
    l2 = problem.model.l2
    if problem.classifies:
        return Curvature(l2, SOFTMAX * most + l2, "bound")
    return Curvature(least + l2, most + l2, "exact")


def at_point(problem: Problem, W: Stack) -> Curvature:
    """Extreme eigenvalues of the Hessians at W.

    To add the same to the scores of all classes changes nothing, so a classifier's Hessian is l2 along these
    directions; α is the least along the others. Where Hessians are too large to be held, β is an estimate.
    """
    size = problem.model.size
    if problem.size * size**2 > HELD:
        return along(problem, [W])
    unit = torch.eye(size, dtype=W.dtype)
    hessian = torch.stack([problem.loss_curvature(W, row.expand_as(W).contiguous()) for row in unit], -1)
    values = torch.linalg.eigvalsh((hessian + hessian.mT) / 2)
    idle = size // problem.model.network.outputs if problem.linear and problem.classifies else 0
    return Curvature(float(values[:, idle].min()), float(values.abs().max()), "at a point")


def along(problem: Problem, points: list[Stack]) -> Curvature:
    """The largest curvature found by power iteration at these points, all clients at once."""
    beta = max(float(_power(problem, W).max()) for W in points)
    return Curvature(None, beta, "estimate")


def _extremes(problem: Problem, client: int) -> tuple[float, float]:
    """Extreme eigenvalues of the mean of x̃x̃ᵀ over a client's rows, x̃ with the one of the bias."""
    x = problem.rows(client)[0].flatten(1)
    seen = torch.cat([x, x.new_ones(len(x), 1)], 1)
    rows, width = seen.shape
    if min(rows, width) > WIDEST:
        raise InputError(
            f"theory: client {client} has {rows} rows of {width - 1} features, too many to decompose; the "
            f"exact curvature is computed up to {WIDEST} of either"
        )
    small = seen.mT @ seen if width <= rows else seen @ seen.mT
    values = torch.linalg.eigvalsh(small) / rows
    return (max(0.0, float(values[0])) if width <= rows else 0.0), float(values[-1])


def _power(problem: Problem, W: Stack) -> Float64[Tensor, "client"]:
    """The largest curvature of each client's loss at its row of W, of either sign."""
    V = draws(0, "start").normals(torch.arange(len(W)), 0, W.shape[1])
    found = torch.zeros(len(W), dtype=W.dtype)
    for _ in range(TURNS):
        V = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
        V = problem.loss_curvature(W, V)
        last, found = found, V.norm(dim=1)
        if bool(((found - last).abs() <= SETTLED * found).all()):
            break
    return found
