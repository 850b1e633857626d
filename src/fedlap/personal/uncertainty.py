"""Covariance of the errors of linear models that minimise J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW).

Near the minimiser Ŵ, with A = ∇²F(Ŵ), H = A + ηL ⊗ I and the true models W,

    Ŵ − W ≈ H⁻¹ (e − η(L ⊗ I)W)                         e: noise of the gradient, which the rows cause
    Cov(Ŵ − W) ≈ H⁻¹ (S + η² L ⊗ T) H⁻¹                  S = Cov(e);  the second term is the squared bias

The pull between neighbours makes Ŵ biased, and an interval that ignores the bias is too narrow. The bias is
known on average if the true models are smooth on the graph: the differences of parameter p have the
covariance t_p L⁺, T = diag(t). The variances t follow from the smoothness of Ŵ itself, by moments:

    E ŵ_pᵀLŵ_p = tr(L ⊗ E_p · H⁻¹SH⁻¹) + Σ_r t_r tr(L ⊗ E_p · H⁻¹A (L⁺ ⊗ E_r) AH⁻¹),   t ≥ 0

If η = σ²/(n t) at every client, the covariance is σ²/n · H⁻¹, that of the Gaussian posterior.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.optimize import nnls
from torch import Tensor

Blocks = Float64[Tensor, "client param param"]
SINGULAR = 1e-10  # smallest eigenvalue of a Hessian, relative to its largest, that can still be inverted


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
    """Estimate t, the variances of the true models' differences, by the moments of the trained models."""
    size = problem.W.shape[1]
    if not problem.strength or not components:
        return torch.zeros(size, dtype=torch.float64)
    seen, expected = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    system = torch.zeros(size, size, dtype=torch.float64)
    for part in components:
        W, L = problem.W[part.ids], part.laplacian
        seen += (W * (L @ W)).sum(0)
        expected += torch.einsum("kl,lpkp->p", L, part.spread(noise[part.ids]))
        # H⁻¹A = I − ηH⁻¹(L ⊗ I)
        response = -problem.strength * torch.einsum("kplq,lm->kpmq", part.inverse, L)
        place = torch.arange(len(part.ids))
        response[place, :, place, :] += torch.eye(size, dtype=torch.float64)
        by_parameters = response.permute(1, 3, 0, 2)  # (param, param, client, client)
        system += torch.einsum(
            "pqkl,pqkl->pq", L @ by_parameters, by_parameters @ torch.linalg.pinv(L, hermitian=True)
        )
    scale = system.diagonal().clamp_min(torch.finfo(torch.float64).tiny)
    found, _ = nnls((system / scale.unsqueeze(1)).numpy(), np.asarray(((seen - expected) / scale).numpy()))
    return torch.from_numpy(found)
