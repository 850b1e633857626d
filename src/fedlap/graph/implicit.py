"""Implicit mixing: (I + sL)⁻¹ W, the proximal step of the graph's term, which is stable for every s.

With x = (I + sL)⁻¹ w no disagreement grows: along an eigenvector of L to λ it shrinks by 1/(1 + sλ).
"""

import itertools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fedlap.graph.graph import Graph
from fedlap.graph.sparse_weights import Chosen, Ids, Models
from fedlap.graph.weights import CompleteWeights, DenseWeights

Steps = list[tuple[float, float]]

BLOCK = 2_000_000  # values that are mixed together on a CPU (8 MB in float32)


def implicit(
    graph: Graph, w: Chosen, step: float, ids: Ids | None = None, elsewhere: Models | None = None
) -> Chosen:
    """The w⁺ with w⁺_k + step Σ_ℓ a_kℓ (w⁺_k − w⁺_ℓ) = w_k for each vertex k in `ids`; without them, for all.

    Over all neighbours ℓ, with those outside `ids` at their row of `elsewhere`; or, without it, over the
    neighbours in `ids` alone. So (I + sL_SS) w⁺_S = w_S − sL_SU w_U.
    """
    weights = graph.weights
    everyone = ids is None or len(ids) == graph.size
    if isinstance(weights, CompleteWeights):
        return _complete(weights, w, step, ids, None if everyone else elsewhere)
    if everyone and isinstance(weights, DenseWeights):
        values, vectors = weights.waves(w)
        own = vectors if ids is None else vectors[ids]
        return own @ ((own.mT @ w) / (1 + step * values))
    if ids is not None and isinstance(weights, DenseWeights):
        return by_factors(weights, w, step, ids, elsewhere)
    if w.device.type != "cpu":
        return _iterated(graph, w, step, ids, None if everyone else elsewhere)
    # Some parameters at a time: many steps in memory that a cache holds, and that is not given back between.
    columns = max(1, BLOCK // len(w))
    others: Iterable[Tensor | None] = (
        itertools.repeat(None) if everyone or elsewhere is None else elsewhere.split(columns, 1)
    )
    parts = [
        _iterated(graph, some.contiguous(), step, ids, other if other is None else other.contiguous())
        for some, other in zip(w.split(columns, 1), others, strict=False)
    ]
    return torch.cat(parts, 1)


def _iterated(graph: Graph, w: Chosen, step: float, ids: Ids | None, elsewhere: Models | None) -> Chosen:
    """By products with the graph, as many as rounding is worth: it depends on no number in w how many."""
    weights = graph.weights
    steps = chebyshev(step * graph.rho, enough(step * graph.rho, torch.finfo(w.dtype).eps))
    if ids is None:
        return iterated(steps, w, w, lambda x: step * graph.laplacian_times(x))
    if elsewhere is None:
        return iterated(steps, w, w, lambda x: step * graph.pull(ids, x))
    degrees, near = weights.near(ids, w, elsewhere)
    outside = near - weights.near(ids, w, None)[1]
    return iterated(
        steps, w, w + step * outside, lambda x: step * (degrees * x - weights.near(ids, x, None)[1])
    )


def by_factors(weights: DenseWeights, w: Chosen, step: float, ids: Ids, elsewhere: Models | None) -> Chosen:
    """The same on a small graph by Cholesky's factors of I + sL_SS."""
    degrees, near = weights.near(ids, w, elsewhere)
    among = weights.near(ids, torch.eye(len(ids), dtype=w.dtype, device=w.device), None)[1]
    factor = torch.linalg.cholesky_ex(torch.diag_embed(1 + step * degrees.squeeze(1)) - step * among)[0]
    return torch.cholesky_solve(w + step * (near - among @ w), factor)


def _complete(
    weights: CompleteWeights, w: Chosen, step: float, ids: Ids | None, elsewhere: Models | None
) -> Chosen:
    """In closed form: L = a(N·I − 11ᵀ), and the inverse of a sum of such two is again one."""
    pull = step * weights.weight
    if ids is None or elsewhere is None:
        share = pull * len(w)
        return torch.lerp(w, w.mean(0, keepdim=True), share / (1 + share))
    own = 1 + pull * weights.size
    b = w + pull * (elsewhere.sum(0) - elsewhere[ids].sum(0))
    return (b + pull / (own - pull * len(ids)) * b.sum(0)) / own


def enough(coupling: float, error: float) -> int:
    """Exchanges after which `iterated` has made the error so much smaller, for s·ρ = coupling."""
    root = math.sqrt(1 + coupling)
    if root - 1 < error:
        return 1
    return math.ceil(math.log(2 / error) / math.log((root + 1) / (root - 1)))


def chebyshev(coupling: float, exchanges: int) -> Steps:
    """Lengths α and β of so many steps of Chebyshev's iteration for I + sL, its spectrum in [1, 1 + sρ]."""
    centre, half = 1 + coupling / 2, coupling / 2
    steps = [(1 / centre, 0.0)]
    while len(steps) < exchanges:
        alpha = steps[-1][0]
        beta = (half * alpha) ** 2 / (2 if len(steps) == 1 else 4)
        steps.append((1 / (centre - beta / alpha), beta))
    return steps


def iterated(steps: Steps, w: Chosen, b: Chosen, pull: Callable[[Tensor], Tensor]) -> Chosen:
    """From w, so many steps towards the x with x + pull(x) = b.

    For b = w this is p(L) w with a polynomial p of as many degrees, p(0) = 1, and |p| ≤ 1 on L's spectrum:
    1/(1 + sλ), but for the share sλ/(1 + sλ) of a number between −1 and 1.
    """
    x, along = w, torch.zeros_like(w)
    for step in steps:
        x, along = advanced(step, x, along, b, pull(x))
    return x


def advanced(
    step: tuple[float, float], x: Chosen, along: Chosen, b: Chosen, pulled: Chosen
) -> tuple[Chosen, Chosen]:
    """One of these steps, from where x is pulled."""
    alpha, beta = step
    along = b - x - pulled + beta * along
    return x + alpha * along, along
