"""Covariance of the errors of linear models that minimise J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW).

Near the minimiser Ŵ, with A = ∇²F(Ŵ), H = A + ηL ⊗ I and the true models W,

    Ŵ − W ≈ H⁻¹ (e − η(L ⊗ I)W)                         e: noise of the gradient, which the rows cause
    Cov(Ŵ − W) ≈ H⁻¹ (S + η² L ⊗ T) H⁻¹                  S = Cov(e);  the second term is the squared bias

The pull between neighbours makes Ŵ biased, and an interval that ignores the bias is too narrow. The bias is
known on average if the true models are smooth on the graph: the differences of parameter p have the
covariance t_p L⁺, T = diag(t). `smoothness` estimates t from the rows, independently of the strength η.

If η = σ²/(n t) at every client, the covariance is σ²/n · H⁻¹, that of the Gaussian posterior.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.personal.smoothness import SINGULAR, RowsOnGraph, estimate_variances

Blocks = Float64[Tensor, "client param param"]


@dataclass(frozen=True, eq=False)
class QuadraticProblem:
    """The second-order approximation of J at the models W, and the noise of its gradient.

    hessian: ∇²F_k of each client, including the L2 term.
    gradient: ∇J at W.
    component: the connected component of each client; components are computed separately.
    """

    W: Float64[Tensor, "client param"]
    hessian: Blocks
    gradient: Float64[Tensor, "client param"]
    laplacian: Float64[Tensor, "client client"]
    component: Int64[Tensor, "client"]
    strength: float

    def split(self) -> Iterator["ComponentInverse"]:
        """Yield the inverse Hessian of each component in which it exists."""
        for number in self.component.unique().tolist():
            ids = (self.component == number).nonzero().flatten()
            laplacian = self.laplacian[ids][:, ids]
            inverse = _invert_hessian(self.hessian[ids], laplacian, self.strength)
            if inverse is not None:
                yield ComponentInverse(ids, laplacian, inverse)


@dataclass(frozen=True, eq=False)
class ComponentInverse:
    """Clients of a component, their Laplacian, and H⁻¹ with the axes (client, param, client, param)."""

    ids: Int64[Tensor, "member"]
    laplacian: Float64[Tensor, "member member"]
    inverse: Float64[Tensor, "member param member param"]

    def diagonal_blocks(self) -> Float64[Tensor, "member param param"]:
        """Return the block of each client."""
        place = torch.arange(len(self.ids))
        return self.inverse[place, :, place, :]

    def spread(
        self, middle: Float64[Tensor, "member param param"]
    ) -> Float64[Tensor, "member param member param"]:
        """Return H⁻¹ M H⁻¹ of a block-diagonal M."""
        left = torch.einsum("kplq,lqr->kplr", self.inverse, middle)
        size = self.inverse.shape[0] * self.inverse.shape[1]
        return (left.reshape(size, size) @ self.inverse.reshape(size, size)).view_as(self.inverse)


@dataclass(frozen=True, eq=False)
class ErrorEstimate:
    """Errors of trained models; NaN for clients whose rows and neighbours do not determine a model.

    covariance: Cov(ŵ_k − w_k) of each client.
    newton_step: the distance of the models from the minimiser of J, to second order.
    """

    covariance: Blocks
    newton_step: Float64[Tensor, "client param"]


def estimate_errors(problem: QuadraticProblem, estimate_noise: Callable[[Blocks], Blocks]) -> ErrorEstimate:
    """Estimate the errors of the models of a problem.

    estimate_noise: returns Cov(e) of each client, given the diagonal blocks of H⁻¹, from which the degrees of
        freedom of the fit follow.
    """
    clients, size = problem.W.shape
    components = list(problem.split())
    diagonal = torch.full((clients, size, size), torch.nan, dtype=torch.float64)
    for part in components:
        diagonal[part.ids] = part.diagonal_blocks()
    noise = estimate_noise(diagonal)
    variances = _estimate_variances(problem, components, noise)
    covariance, step = torch.full_like(diagonal, torch.nan), torch.full_like(problem.W, torch.nan)
    for part in components:
        place = torch.arange(len(part.ids))
        covariance[part.ids] = part.spread(noise[part.ids])[place, :, place, :]
        step[part.ids] = torch.einsum("kplq,lq->kp", part.inverse, problem.gradient[part.ids])
        if problem.strength:
            # H⁻¹ (L ⊗ T) H⁻¹, of which only the blocks of each client are needed.
            right = torch.einsum("kl,lpmq->kpmq", part.laplacian, part.inverse)
            bias = torch.einsum("kplr,r,lrkq->kpq", part.inverse, variances, right)
            covariance[part.ids] += problem.strength**2 * bias
    return ErrorEstimate(covariance, step)


def _invert_hessian(
    hessian: Float64[Tensor, "member param param"],
    laplacian: Float64[Tensor, "member member"],
    strength: float,
) -> Float64[Tensor, "member param member param"] | None:
    """Return H⁻¹ of a component; None if H is singular."""
    members, size = hessian.shape[:2]
    H = strength * torch.einsum("kl,pq->kplq", laplacian, torch.eye(size, dtype=torch.float64))
    place = torch.arange(members)
    H[place, :, place, :] += hessian
    values, vectors = torch.linalg.eigh(H.reshape(members * size, members * size))
    if not float(values[0]) > SINGULAR * float(values[-1]):
        return None
    inverse: Tensor = (vectors / values) @ vectors.mT
    return inverse.view(members, size, members, size)


def _estimate_variances(
    problem: QuadraticProblem, components: list[ComponentInverse], noise: Blocks
) -> Float64[Tensor, "param"]:
    """Estimate t, the variances of the true models' differences; NaN if the noise is not known."""
    size = problem.W.shape[1]
    if not problem.strength:
        return torch.zeros(size, dtype=torch.float64)
    if any(not bool(noise[part.ids].isfinite().all()) for part in components):
        return torch.full((size,), torch.nan, dtype=torch.float64)
    slope = problem.gradient - problem.strength * problem.laplacian @ problem.W  # ∇F
    response = torch.einsum("kpq,kq->kp", problem.hessian, problem.W) - slope
    parts = [
        RowsOnGraph.of(problem.hessian[part.ids], response[part.ids], noise[part.ids], part.laplacian)
        for part in components
        if len(part.ids) > 1
    ]
    return estimate_variances(parts, size)
