"""Implicit mixing: (I + sL)⁻¹ W, the proximal step of the graph term, which is stable for every s.

Disagreement never grows: along an eigenvector of L with eigenvalue λ it shrinks by 1/(1 + sλ).
"""

import itertools
import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.graph.graph import Graph
from fedlap.graph.sparse_weights import AllModels, ChosenModels, VertexIds
from fedlap.graph.weights import CompleteWeights, DenseWeights

ChebyshevSteps = list[tuple[float, float]]

IMPLICIT_BLOCK = 2_000_000  # values per block on a CPU (8 MB in float32)


def mix_implicitly(
    graph: Graph,
    w: ChosenModels,
    step: float,
    ids: VertexIds | None = None,
    others: AllModels | None = None,
) -> ChosenModels:
    """Solve w⁺_k + step Σ_ℓ a_kℓ (w⁺_k − w⁺_ℓ) = w_k for each vertex k in `ids`, by default for all.

    The sum runs over all neighbours ℓ; models of neighbours outside `ids` are read from `others`, which has
    one row per vertex. Without `others`, it runs over neighbours in `ids` only. The linear system is
    (I + sL_SS) w⁺_S = w_S − sL_SU w_U.
    """
    weights = graph.weights
    everyone = ids is None or len(ids) == graph.size
    if isinstance(weights, CompleteWeights):
        return _solve_complete(weights, w, step, ids, None if everyone else others)
    if everyone and isinstance(weights, DenseWeights):
        values, vectors = weights.eigendecomposition(w)
        basis = vectors if ids is None else vectors[ids]
        return basis @ ((basis.mT @ w) / (1 + step * values))
    if ids is not None and isinstance(weights, DenseWeights):
        return solve_by_cholesky(weights, w, step, ids, others)
    if w.device.type != "cpu":
        return _solve_iteratively(graph, w, step, ids, None if everyone else others)
    # A block of parameters fits the cache for all iterations, and its memory is reused between them.
    columns = max(1, IMPLICIT_BLOCK // len(w))
    other_blocks: Iterable[Tensor | None] = (
        itertools.repeat(None) if everyone or others is None else others.split(columns, 1)
    )
    solved = [
        _solve_iteratively(
            graph,
            block.contiguous(),
            step,
            ids,
            other_block if other_block is None else other_block.contiguous(),
        )
        for block, other_block in zip(w.split(columns, 1), other_blocks, strict=False)
    ]
    return torch.cat(solved, 1)


def _solve_iteratively(
    graph: Graph, w: ChosenModels, step: float, ids: VertexIds | None, others: AllModels | None
) -> ChosenModels:
    """Solve by Chebyshev iteration to rounding accuracy; the number of iterations does not depend on w."""
    weights = graph.weights
    steps = compute_chebyshev_steps(
        step * graph.rho, count_exchanges(step * graph.rho, torch.finfo(w.dtype).eps)
    )
    if ids is None:
        return run_chebyshev(steps, w, w, lambda x: step * graph.apply_laplacian(x))
    if others is None:
        return run_chebyshev(steps, w, w, lambda x: step * graph.pull(ids, x))
    degrees, sums = weights.sum_neighbours(ids, w, others)
    outside = sums - weights.sum_neighbours(ids, w, None)[1]
    return run_chebyshev(
        steps, w, w + step * outside, lambda x: step * (degrees * x - weights.sum_neighbours(ids, x, None)[1])
    )


def solve_by_cholesky(
    weights: DenseWeights, w: ChosenModels, step: float, ids: VertexIds, others: AllModels | None
) -> ChosenModels:
    """Solve the system of `mix_implicitly` on a small graph by a Cholesky factorisation of I + sL_SS."""
    degrees, sums = weights.sum_neighbours(ids, w, others)
    inside = weights.sum_neighbours(ids, torch.eye(len(ids), dtype=w.dtype, device=w.device), None)[1]
    factor = torch.linalg.cholesky_ex(torch.diag_embed(1 + step * degrees.squeeze(1)) - step * inside)[0]
    return torch.cholesky_solve(w + step * (sums - inside @ w), factor)


def _solve_complete(
    weights: CompleteWeights, w: ChosenModels, step: float, ids: VertexIds | None, others: AllModels | None
) -> ChosenModels:
    """Solve in closed form: L = a(N·I − 11ᵀ), so the inverse of I + sL is again of the form cI + d·11ᵀ."""
    pull = step * weights.weight
    if ids is None or others is None:
        share = pull * len(w)
        return torch.lerp(w, w.mean(0, keepdim=True), share / (1 + share))
    rest = others.sum(0, keepdim=True) - others[ids].sum(0, keepdim=True)
    return mix_complete(weights, w, step, rest, implicitly=True)


def mix_complete(
    weights: CompleteWeights,
    w: ChosenModels,
    step: float,
    rest: Float[Tensor, "1 param"],
    *,
    implicitly: bool,
) -> ChosenModels:
    """Mix chosen vertices of a complete graph, as `Graph.mix_` or `mix_implicitly`.

    rest: the sum of the models of all other vertices.
    """
    pull = step * weights.weight
    if not implicitly:
        mean = (rest + w.sum(0, keepdim=True)) / weights.size
        return torch.lerp(w, mean, pull * weights.size)
    diagonal = 1 + pull * weights.size
    b = w + pull * rest
    return (b + pull / (diagonal - pull * len(w)) * b.sum(0)) / diagonal


def count_exchanges(coupling: float, error: float) -> int:
    """Return the exchanges until `run_chebyshev` reduces the error by this factor, for sρ = coupling."""
    root = math.sqrt(1 + coupling)
    if root - 1 < error:
        return 1
    return math.ceil(math.log(2 / error) / math.log((root + 1) / (root - 1)))


def compute_chebyshev_steps(coupling: float, exchanges: int) -> ChebyshevSteps:
    """Compute α and β of each step of Chebyshev iteration for I + sL, whose spectrum is in [1, 1 + sρ]."""
    centre, half = 1 + coupling / 2, coupling / 2
    steps = [(1 / centre, 0.0)]
    while len(steps) < exchanges:
        alpha = steps[-1][0]
        beta = (half * alpha) ** 2 / (2 if len(steps) == 1 else 4)
        steps.append((1 / (centre - beta / alpha), beta))
    return steps


def run_chebyshev(
    steps: ChebyshevSteps, w: ChosenModels, b: ChosenModels, pull: Callable[[Tensor], Tensor]
) -> ChosenModels:
    """Take these steps from w towards the x with x + pull(x) = b.

    For b = w the result is p(L) w with a polynomial p of degree len(steps), p(0) = 1 and |p| ≤ 1 on L's
    spectrum: p(λ) = 1/(1 + sλ) + c·sλ/(1 + sλ) with |c| ≤ 1.
    """
    x, direction = w, torch.zeros_like(w)
    for step in steps:
        x, direction = take_chebyshev_step(step, x, direction, b, pull(x))
    return x


def take_chebyshev_step(
    step: tuple[float, float],
    x: ChosenModels,
    direction: ChosenModels,
    b: ChosenModels,
    pull_at_x: ChosenModels,
) -> tuple[ChosenModels, ChosenModels]:
    """Take one Chebyshev step from x, with `pull_at_x` = pull(x); return the new x and search direction."""
    alpha, beta = step
    direction = b - x - pull_at_x + beta * direction
    return x + alpha * direction, direction
