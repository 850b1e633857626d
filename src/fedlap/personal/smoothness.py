"""Variances of true models' differences on a graph, estimated from the rows and not from trained models.

Near W, the rows of client k give b_k = A_k w_k + e_k, with A_k = ∇²F_k, b_k = A_k W_k − ∇F_k(W_k) and
S_k = Cov(e_k). This holds for every W, so that the strength of training has no part in it. In a connected
component, parameter p of the true models is m_p + u_p with u_p ~ N(0, t_p L⁺). With R = S^{-1/2} A and
z = S^{-1/2} b,

    z ~ N(R(1 ⊗ m), V),   V = I + Σ_p t_p K_p,   K_p = R (L⁺ ⊗ E_p) Rᵀ

and t follows by restricted maximum likelihood (Patterson & Thompson 1971), with P = V⁻¹ without the means:

    Σ_q tr(P K_p P K_q) t_q = zᵀP K_p P z − tr(P K_p P),   t ≥ 0,   repeated with P of the new t

The mode of a wide and skewed likelihood is often far too small, also zero, and intervals from it are too
short. Errors therefore use the whole likelihood of t_p. In the directions of the graph, it is close to that
of ν squares with mean s and variance τ = t_p + v, where v is the variance of the noise: τ^{-ν/2} exp(−νs/2τ),
with ν = tr(P K_p)²/tr(P K_p P K_p) and τ = tr(P K_p)/tr(P K_p P K_p) at the maximum. With a prior that is
uniform in √τ (Gelman 2006), τ ≥ v has a truncated inverse gamma distribution (Morris 1983).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from scipy.optimize import nnls
from scipy.special import gammainc, gammainccinv, gammaincinv
from torch import Tensor

Vector = Float64[Tensor, "param"]
MAX_UPDATES = 8
TOLERANCE = 0.02  # of an update, relative to τ; far below the uncertainty of t
SIGNIFICANCE = 0.05  # of the test for true models that are equal
MIN_SHAPE = 0.25  # of the inverse gamma distribution; the shape of one square, between two clients, is 0
NODES = 8  # values of t_p that stand for its distribution; with 32, coverage differs by about 0.3 points
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
        spread, factor = self._factorise(t)
        moved = torch.einsum("kl,p,lp->kp", self.root, t.sqrt(), self.score).reshape(total, 1)
        solved = torch.linalg.solve_triangular(factor, torch.cat([spread, moved], 1), upper=False)
        matrix = -(solved[:, :total].mT @ solved)
        full, vector = matrix[:, :total].view(members, size, members, size), matrix[:, total]
        full[place, :, place, :] += self.precision
        vector = vector.view(members, size) + self.score
        # The means m are free: project them out.
        means = full.sum(2)  # (member, param, param)
        inverse = torch.linalg.pinv(means.sum(0), rtol=SINGULAR, hermitian=True)
        full = full - torch.einsum("kpa,ab,lqb->kplq", means, inverse, means)
        return full, vector - torch.einsum("kpa,ab,b->kp", means, inverse, vector.sum(0))

    def compute_posterior(self, t: Vector) -> Float64[Tensor, "member param param"]:
        """Return the covariance of each client's true model, given the rows of all clients and t."""
        members, size = self.score.shape
        total = members * size
        spread, factor = self._factorise(t)
        # With known means, Cov = Q½ C⁻¹ Q½; the means are known by their own precision.
        root = torch.einsum("kl,pq->kplq", self.root, t.sqrt().diag()).reshape(total, total)
        moved = spread.view(total, members, size).sum(1)  # Q½B(1 ⊗ I)
        solved = torch.linalg.solve_triangular(factor, torch.cat([root, moved], 1), upper=False)
        half, means = solved[:, :total], solved[:, total:]
        direct = torch.eye(size, dtype=torch.float64) - (half.mT @ means).view(members, size, size)
        inverse = torch.linalg.pinv(self.precision.sum(0) - means.mT @ means, rtol=SINGULAR, hermitian=True)
        half = half.view(total, members, size)
        covariance: Tensor = torch.einsum("nkp,nkq->kpq", half, half) + direct @ inverse @ direct.mT
        return covariance

    def _factorise(self, t: Vector) -> tuple[Float64[Tensor, "total total"], Float64[Tensor, "total total"]]:
        """Return Q½B and the Cholesky factor of C = I + Q½BQ½, with Q = L⁺ ⊗ diag(t) and B = RᵀR."""
        total = self.score.numel()
        # RᵀV⁻¹R = B − BQ½ C⁻¹ Q½B
        spread = torch.einsum("kl,p,lpq->kplq", self.root, t.sqrt(), self.precision)
        inner = torch.einsum("kplq,lm,q->kpmq", spread, self.root, t.sqrt()).reshape(total, total)
        factor = torch.linalg.cholesky(inner + torch.eye(total, dtype=torch.float64))
        return spread.reshape(total, total), factor


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

    def weigh(self) -> "VarianceNodes":
        """Return the distribution of each variance under its likelihood; zero where the rows say nothing."""
        known = self.traces > 0
        freedom = (self.traces.square() / self.products.diagonal()).where(known, torch.inf)  # ν
        noise = (self.total - self.t).clamp_min(0).where(known, 0)  # v
        squares = (self.squares * self.total.square()).where(known, 0)  # νs
        # νs/τ has a χ² distribution with ν − 1 degrees of freedom, truncated at νs/v.
        levels = (torch.arange(NODES, dtype=torch.float64) + 0.5) / NODES
        number = freedom.where(known, 1)
        shape = ((number - 1) / 2).clamp_min(MIN_SHAPE)
        limit = (squares / (2 * noise)).nan_to_num(1.0).clamp_min(torch.finfo(torch.float64).tiny)
        below = gammainc(shape.numpy(), limit.numpy())
        half = torch.from_numpy(gammaincinv(shape.numpy(), levels.unsqueeze(1).numpy() * below))
        t = (squares / (2 * half) - noise).clamp_min(0).where(known, 0)
        equal = known & (limit <= torch.from_numpy(gammainccinv(number.numpy() / 2, SIGNIFICANCE)))
        return VarianceNodes(t, (2 * half / number).where(known, 1), freedom, equal)


@dataclass(frozen=True, eq=False)
class VarianceNodes:
    """Equally likely values of t, and what the rows say of the models' differences at each value.

    ratio: the mean square of the differences that the rows show, s, relative to its mean at this t, τ.
    freedom: ν, the number of squares; infinite if the rows say nothing.
    is_zero_possible: whether the rows do not show that t_p is positive, by the χ² test of νs/v.
    """

    t: Float64[Tensor, "node param"]
    ratio: Float64[Tensor, "node param"]
    freedom: Vector
    is_zero_possible: Bool[Tensor, "param"]


def estimate_variances(parts: Sequence[RowsOnGraph], size: int) -> VarianceNodes:
    """Estimate t for the `size` parameters of a client's model."""
    if not parts:
        return fix_variances(torch.zeros(size, dtype=torch.float64))
    t = _choose_start(parts)
    for _ in range(MAX_UPDATES):
        moments = LikelihoodMoments.of(parts, t)
        t = moments.update()
        if bool(((t - moments.t).abs() <= TOLERANCE * moments.total).all()):
            break
    return LikelihoodMoments.of(parts, t).weigh()


def fix_variances(t: Vector) -> VarianceNodes:
    """Return the distribution of variances that are known."""
    one, known = torch.ones_like(t).unsqueeze(0), torch.zeros(len(t), dtype=torch.bool)
    return VarianceNodes(t.unsqueeze(0), one, torch.full_like(t, torch.inf), known)


def _choose_start(parts: Sequence[RowsOnGraph]) -> Vector:
    """Return variances with which differences between clients are as large as the noise."""
    noise = [torch.linalg.pinv(part.precision.mean(0), hermitian=True).diagonal() for part in parts]
    spread = [part.inverse.diagonal().mean() for part in parts]
    return torch.stack([one / other for one, other in zip(noise, spread, strict=True)]).mean(0).clamp_min(0)
