"""Covariance of the errors of linear models that minimise J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW).

Near the minimiser Ŵ, with A = ∇²F(Ŵ), H = A + ηL ⊗ I and the true models W,

    Ŵ − W ≈ H⁻¹ (e − η(L ⊗ I)W)                         e: noise of the gradient, which the rows cause
    Cov(Ŵ − W) ≈ H⁻¹ (S + η² L ⊗ T) H⁻¹                  S = Cov(e);  the second term is the squared bias

The pull between neighbours makes Ŵ biased, and an interval that ignores the bias is too narrow. The bias is
known on average if the true models are smooth on the graph: the differences of parameter p have the
covariance t_p L⁺, T = diag(t). `smoothness` estimates t from the rows, independently of the strength η.

If η = σ²/(n t) at every client, the covariance is σ²/n · H⁻¹, that of the Gaussian posterior.

The estimate of t is not independent of the error: if true models differ much by chance, both are large.
Given t and the rows, the error has a mean, whose covariance is Cov(Ŵ − W) − Cov(W | rows), and around it the
covariance Cov(W | rows). `intervals` therefore takes the error given the differences that the rows show.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.personal.intervals import ErrorNodes, scale_covariance
from fedlap.personal.smoothness import SINGULAR, RowsOnGraph, VarianceNodes, estimate_variances

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
        """Yield the inverse Hessian of each component."""
        for number in self.component.unique().tolist():
            ids = (self.component == number).nonzero().flatten()
            laplacian = self.laplacian[ids][:, ids]
            yield ComponentInverse(
                ids, laplacian, *_invert_hessian(self.hessian[ids], laplacian, self.strength)
            )


@dataclass(frozen=True, eq=False)
class ComponentInverse:
    """Clients of a component, their Laplacian, and H⁻¹ with the axes (client, param, client, param).

    If H is singular, H⁻¹ is its pseudoinverse, and `null` the directions that neither rows nor neighbours
    determine: an orthonormal basis per client, with zeros where a client has fewer.
    """

    ids: Int64[Tensor, "member"]
    laplacian: Float64[Tensor, "member member"]
    inverse: Float64[Tensor, "member param member param"]
    null: Float64[Tensor, "member param direction"]

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

    def spread_differences(self) -> Float64[Tensor, "variance member param param"]:
        """Return the diagonal blocks of H⁻¹ (L ⊗ E_r) H⁻¹ for each parameter r."""
        right = torch.einsum("kl,lpmq->kpmq", self.laplacian, self.inverse)
        return torch.einsum("kplr,lrkq->rkpq", self.inverse, right)


@dataclass(frozen=True, eq=False)
class ErrorEstimate:
    """Errors of trained models.

    covariance: Cov(ŵ_k − w_k) of each client, scaled for the interval of each parameter; NaN for clients
        whose rows and neighbours do not determine a model.
    of_forms: Cov(ŵ_k − w_k) for linear forms of several parameters, such as predictions. It is not scaled
        parameter by parameter: errors that cancel in a form would then not cancel any more.
    null: directions of each client's model that are not determined, padded with zeros.
    newton_step: the distance of the models from the minimiser of J, to second order.
    excess: the part of a standard error, in the median, that is superfluous if the true models are equal; it
        counts parameters of which the rows do not show that they differ between clients.
    """

    covariance: Blocks
    of_forms: Blocks
    null: Float64[Tensor, "client param direction"]
    newton_step: Float64[Tensor, "client param"]
    excess: float


def leave_unknown(clients: int, size: int) -> ErrorEstimate:
    """Return errors that are not known."""
    blocks = torch.full((clients, size, size), torch.nan, dtype=torch.float64)
    null = torch.zeros(clients, size, 0, dtype=torch.float64)
    return ErrorEstimate(blocks, blocks, null, blocks[:, 0], 0.0)


def estimate_errors(problem: QuadraticProblem, estimate_noise: Callable[[Blocks], Blocks]) -> ErrorEstimate:
    """Estimate the errors of the models of a problem.

    estimate_noise: returns Cov(e) of each client, given the diagonal blocks of H⁻¹, from which the degrees of
        freedom of the fit follow.
    """
    clients, size = problem.W.shape
    components = list(problem.split())
    diagonal = torch.full((clients, size, size), torch.nan, dtype=torch.float64)
    null = torch.zeros(clients, size, max(part.null.shape[2] for part in components), dtype=torch.float64)
    for part in components:
        diagonal[part.ids] = part.diagonal_blocks()
        null[part.ids, :, : part.null.shape[2]] = part.null
    noise = estimate_noise(diagonal)
    evidence = _collect_evidence(problem, components, noise)
    nodes = _estimate_variances(evidence, size)
    covariance, of_forms = torch.full_like(diagonal, torch.nan), torch.full_like(diagonal, torch.nan)
    least, step = torch.full_like(problem.W, torch.nan), torch.full_like(problem.W, torch.nan)
    for part, rows in zip(components, evidence, strict=True):
        place = torch.arange(len(part.ids))
        caused = part.spread(noise[part.ids])[place, :, place, :]
        step[part.ids] = torch.einsum("kplq,lq->kp", part.inverse, problem.gradient[part.ids])
        of_forms[part.ids] = covariance[part.ids] = caused
        least[part.ids] = caused.diagonal(dim1=1, dim2=2)
        if rows is not None:
            differences = problem.strength**2 * part.spread_differences()
            bias = torch.einsum("nr,rkpq->nkpq", nodes.t, differences)
            rest = torch.stack([rows.compute_posterior(t) for t in nodes.t])
            errors = ErrorNodes(caused, bias, rest, nodes.ratio, nodes.freedom)
            covariance[part.ids] = scale_covariance(errors)
            shown = (nodes.t * nodes.ratio).mean(0)
            of_forms[part.ids] = caused + torch.einsum("r,rkpq->kpq", shown, differences)
    covariance[null.any(1).any(1)] = torch.nan
    doubtful = covariance.diagonal(dim1=1, dim2=2)[:, nodes.is_zero_possible]
    ratio = (least[:, nodes.is_zero_possible] / doubtful)[doubtful > 0].sqrt()
    return ErrorEstimate(covariance, of_forms, null, step, 1 - float(ratio.median()) if len(ratio) else 0.0)


def _invert_hessian(
    hessian: Float64[Tensor, "member param param"],
    laplacian: Float64[Tensor, "member member"],
    strength: float,
) -> tuple[Float64[Tensor, "member param member param"], Float64[Tensor, "member param direction"]]:
    """Return H⁻¹ of a component, or the pseudoinverse if H is singular, and the directions without it."""
    members, size = hessian.shape[:2]
    H = strength * torch.einsum("kl,pq->kplq", laplacian, torch.eye(size, dtype=torch.float64))
    place = torch.arange(members)
    H[place, :, place, :] += hessian
    values, vectors = torch.linalg.eigh(H.reshape(members * size, members * size))
    known = values > SINGULAR * values[-1]
    inverse = (vectors[:, known] / values[known]) @ vectors[:, known].mT
    # Neighbours pull models together, so that a direction without rows is the same for all clients.
    null = vectors[:, ~known].view(members, size, -1) * members**0.5
    return inverse.view(members, size, members, size), null


def _collect_evidence(
    problem: QuadraticProblem, components: list[ComponentInverse], noise: Blocks
) -> list[RowsOnGraph | None]:
    """Return the evidence of each component, or None if its noise is not known or it has no bias.

    A single client has no bias, nor has any client without a pull.
    """
    slope = problem.gradient - problem.strength * problem.laplacian @ problem.W  # ∇F
    response = torch.einsum("kpq,kq->kp", problem.hessian, problem.W) - slope
    return [
        RowsOnGraph.of(problem.hessian[part.ids], response[part.ids], noise[part.ids], part.laplacian)
        if problem.strength and len(part.ids) > 1 and bool(noise[part.ids].isfinite().all())
        else None
        for part in components
    ]


def _estimate_variances(evidence: list[RowsOnGraph | None], size: int) -> VarianceNodes:
    """Estimate t, the variances of the true models' differences, from the components with evidence."""
    return estimate_variances([rows for rows in evidence if rows is not None], size)
