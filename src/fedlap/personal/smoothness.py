"""Variances of true models' differences on a graph, estimated from the rows and not from trained models.

Near W, the rows of client k give b_k = A_k w_k + e_k, with A_k = ∇²F_k, b_k = A_k W_k − ∇F_k(W_k) and
S_k = Cov(e_k). This holds for every W, so that the strength of training has no part in it. In a connected
component, parameter p of the true models is m_p + u_p with u_p ~ N(0, t_p L⁺). With R = S^{-1/2} A and
z = S^{-1/2} b,

    z ~ N(R(1 ⊗ m), V),   V = I + Σ_p t_p K_p,   K_p = R (L⁺ ⊗ E_p) Rᵀ

and t follows by restricted maximum likelihood (Patterson & Thompson 1971), with P = V⁻¹ without the means:

    Σ_q tr(P K_p P K_q) t_q = zᵀP K_p P z − tr(P K_p P),   t ≥ 0,   repeated with P of the new t

The mode of a wide and skewed likelihood is often far too small, also zero, and intervals from it are too
short. Errors therefore use the mean of t_p under its likelihood. In the directions of the graph, this
likelihood is close to that of ν squares with mean s and variance τ = t_p + v, where v is the variance of the
noise: τ^{-ν/2} exp(−νs/2τ), with ν = tr(P K_p)²/tr(P K_p P K_p) and τ = tr(P K_p)/tr(P K_p P K_p) at the
maximum. With the prior 1/τ, the mean of τ ≥ v is that of a truncated inverse gamma distribution (Morris
1983).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from scipy.optimize import nnls
from scipy.special import gammainc
from torch import Tensor

Vector = Float64[Tensor, "param"]
MAX_UPDATES = 8
TOLERANCE = 0.02  # of an update, relative to τ; far below the uncertainty of t
MIN_SHAPE = 1.5  # of the inverse gamma distribution; its mean is infinite at 1, which is two squares
SINGULAR = 1e-10  # smallest eigenvalue, relative to the largest, that can still be inverted


@dataclass(frozen=True, eq=False)
class RowsOnGraph:
    """The evidence of a connected component: RᵀR of each client, Rᵀz, and L⁺ with its root."""

    precision: Float64[Tensor, "member param param"]
    score: Float64[Tensor, "member param"]
    inverse: Float64[Tensor, "member member"]
    root: Float64[Tensor, "member member"]

    @staticmethod
    def of(
        hessian: Float64[Tensor, "member param param"],
        response: Float64[Tensor, "member param"],
        noise: Float64[Tensor, "member param param"],
        laplacian: Float64[Tensor, "member member"],
    ) -> "RowsOnGraph":
        """Build the evidence from A_k, b_k and S_k, without directions that no row of a client has."""
        weighted = hessian @ torch.linalg.pinv(noise, rtol=SINGULAR, hermitian=True)
        value, vector = torch.linalg.eigh(laplacian)
        known = value > SINGULAR * value[-1]
        scaled = vector[:, known] / value[known].sqrt()
        return RowsOnGraph(
            weighted @ hessian,
            torch.einsum("kpq,kq->kp", weighted, response),
            scaled @ scaled.mT,
            scaled @ vector[:, known].mT,
        )

    def project(
        self, t: Vector
    ) -> tuple[Float64[Tensor, "member param member param"], Float64[Tensor, "member param"]]:
        """Return RᵀPR and RᵀPz at these variances."""
        members, size = self.score.shape
        total, place = members * size, torch.arange(members)
        # With Q = L⁺ ⊗ diag(t):  RᵀV⁻¹R = B − BQ½ (I + Q½BQ½)⁻¹ Q½B,  B = RᵀR
        spread = torch.einsum("kl,p,lpq->kplq", self.root, t.sqrt(), self.precision)  # Q½B
        inner = torch.einsum("kplq,lm,q->kpmq", spread, self.root, t.sqrt()).reshape(total, total)
        factor = torch.linalg.cholesky(inner + torch.eye(total, dtype=torch.float64))
        moved = torch.einsum("kl,p,lp->kp", self.root, t.sqrt(), self.score).reshape(total, 1)
        solved = torch.linalg.solve_triangular(
            factor, torch.cat([spread.reshape(total, total), moved], 1), upper=False
        )
        matrix = -(solved[:, :total].mT @ solved)
        full, vector = matrix[:, :total].view(members, size, members, size), matrix[:, total]
        full[place, :, place, :] += self.precision
        vector = vector.view(members, size) + self.score
        # The means m are free: project them out.
        means = full.sum(2)  # (member, param, param)
        inverse = torch.linalg.pinv(means.sum(0), rtol=SINGULAR, hermitian=True)
        full = full - torch.einsum("kpa,ab,lqb->kplq", means, inverse, means)
        return full, vector - torch.einsum("kpa,ab,b->kp", means, inverse, vector.sum(0))


@dataclass(frozen=True, eq=False)
class LikelihoodMoments:
    """tr(P K_p P K_q), tr(P K_p) and zᵀP K_p P z at variances t, summed over components."""

    t: Vector
    products: Float64[Tensor, "param param"]
    traces: Vector
    squares: Vector

    @staticmethod
    def of(parts: Sequence[RowsOnGraph], t: Vector) -> "LikelihoodMoments":
        """Compute the moments."""
        size = len(t)
        products = torch.zeros(size, size, dtype=torch.float64)
        traces, squares = torch.zeros_like(t), torch.zeros_like(t)
        for part in parts:
            full, vector = part.project(t)
            moved = part.inverse @ full.permute(1, 3, 0, 2)  # L⁺(RᵀPR) by parameters, then clients
            products += torch.einsum("pqkl,qplk->pq", moved, moved)
            traces += torch.einsum("ppkk->p", moved)
            squares += (vector * (part.inverse @ vector)).sum(0)
        return LikelihoodMoments(t, products, traces, squares)

    @property
    def total(self) -> Vector:
        """τ of each parameter; infinite for one of which the rows say nothing."""
        return self.traces / self.products.diagonal()

    def update(self) -> Vector:
        """Return the variances that solve the equations with this P."""
        seen = self.squares - self.traces + self.products @ self.t
        scale = self.products.diagonal().clamp_min(torch.finfo(torch.float64).tiny)
        found, _ = nnls((self.products / scale.unsqueeze(1)).numpy(), (seen / scale).numpy())
        return torch.from_numpy(found)

    def average(self) -> Vector:
        """Return the mean of each variance under its likelihood; zero where the rows say nothing."""
        number = self.traces.square() / self.products.diagonal()  # ν
        noise = (self.total - self.t).clamp_min(0)  # v
        scale = self.squares * self.total.square() / 2  # νs/2
        shape = (number / 2).clamp_min(MIN_SHAPE)
        limit = (scale / noise).numpy()
        below = gammainc((shape - 1).numpy(), limit) / gammainc(shape.numpy(), limit)
        mean = scale / (shape - 1) * torch.from_numpy(below) - noise
        return torch.where(self.traces > 0, mean, 0).nan_to_num(0.0)


def estimate_variances(parts: Sequence[RowsOnGraph], size: int) -> Vector:
    """Estimate t for the `size` parameters of a client's model."""
    if not parts:
        return torch.zeros(size, dtype=torch.float64)
    t = _choose_start(parts)
    for _ in range(MAX_UPDATES):
        moments = LikelihoodMoments.of(parts, t)
        t = moments.update()
        if bool(((t - moments.t).abs() <= TOLERANCE * moments.total).all()):
            break
    return LikelihoodMoments.of(parts, t).average()


def _choose_start(parts: Sequence[RowsOnGraph]) -> Vector:
    """Return variances with which differences between clients are as large as the noise."""
    noise = [torch.linalg.pinv(part.precision.mean(0), hermitian=True).diagonal() for part in parts]
    spread = [part.inverse.diagonal().mean() for part in parts]
    return torch.stack([one / other for one, other in zip(noise, spread, strict=True)]).mean(0).clamp_min(0)
