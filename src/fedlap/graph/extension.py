"""Extension of values from some vertices to all others along the edges of a graph (kriging).

The values x are taken as one draw of a Gaussian field with unit variances. Its covariance R is K⁻¹, scaled to
a unit diagonal, with K = L + D/(N − 1) for N vertices, and K_kk = 1 for vertices without edges. Given the
values x_S, the expected other ones are x_U = R_US R_SS⁻¹ x_S = −Δ_U⁻¹ K_UU⁻¹ L_US Δ_S x_S, with Δ² the
diagonal of K⁻¹. Without D/(N − 1), the leak, one known value would be that of every vertex of its component.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import SuperLU
from torch import Tensor

from fedlap.graph.description import label_components
from fedlap.graph.factorisation import SparseFactor, bound_entries, compute_inverse_diagonal, factorise
from fedlap.graph.graph import Graph
from fedlap.graph.sparse_weights import AllModels, ChosenModels, VertexIds
from fedlap.graph.weights import CompleteWeights, DenseWeights, Weights

PerVertex = Float64[Tensor, "vertex 1"]

EXTENSION_BLOCK = 2_000_000  # values per block of parameters on a CPU (8 MB in float32), when iterating
DIRECT_BLOCK = 5_000_000  # … with a factorisation, which takes its time per level and block
FACTORISE_FROM = 1_000  # vertices; of smaller graphs, R is faster on a CPU as well
# Entries per vertex of K's factor, measured with 1,152 parameters and a tenth of the vertices known:
DENSE_ENTRIES = 0.008  # … times the number of vertices; with more, a product with R is faster
FEW_ENTRIES = 60  # with more, conjugate gradients are faster than a factorisation per extension
MOST_ENTRIES = 200  # with more, K is not even factorised once for the diagonal of K⁻¹
MOST_BOUND = 1_000  # … in the order of Cuthill and McKee, known before K is factorised
INVERT_UP_TO = 4_000  # vertices of a full inverse, which takes seconds and 256 MB
PRECISION = {torch.float64: 1e-12, torch.float32: 1e-6}  # relative residuals of conjugate gradients


@runtime_checkable
class Extension(Protocol):
    """Values of all vertices from those of some."""

    def extend(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Return the expected value of every vertex, given those of `ids`."""
        ...


def build_extension(graph: Graph) -> Extension:
    """Return the extension along a graph that suits its weights."""
    return _build_extension(graph.weights)  # type: ignore[arg-type]  # every form of weights is hashable


@lru_cache(maxsize=1)  # runs of a stack, and candidates of a search, share one graph
def _build_extension(weights: Weights) -> Extension:
    if isinstance(weights, CompleteWeights):
        return CompleteExtension(weights)
    if isinstance(weights, DenseWeights):
        return DenseExtension(weights)
    return SparseExtension(weights)


@dataclass(frozen=True, eq=False)
class CompleteExtension:
    """The closed form on the complete graph: every other vertex gets Σ x_S / (S + 1)."""

    weights: CompleteWeights

    def extend(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Return the expected value of every vertex, given those of `ids`."""
        common = self.sum_share(values).expand(self.weights.size, -1)
        return common.index_copy(0, ids, values)

    def sum_share(self, values: ChosenModels) -> Float[Tensor, "1 param"]:
        """Return the value of every vertex without a known value: Σ x_S / (S + 1)."""
        share = 1 / (len(values) + 1) if self.weights.weight else 0.0
        return share * values.sum(0, keepdim=True)


@dataclass(frozen=True, eq=False)
class DenseExtension:
    """A small graph: R is computed once, and each extension factorises R_SS in double precision.

    From FACTORISE_FROM vertices on, a CPU factorises K_UU instead if K's factor has few entries.
    """

    weights: DenseWeights
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def correlation(self) -> Float64[Tensor, "vertex vertex"]:
        """R, on the host."""
        a = self.weights.array.cpu().double()
        covariance = torch.linalg.inv(compute_diagonal(self.weights).diag() - a)
        scale = covariance.diagonal().rsqrt()
        correlation: Tensor = scale.unsqueeze(1) * covariance * scale
        return correlation

    def extend(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Return the expected value of every vertex, given those of `ids`."""
        if values.device.type == "cpu" and self._sparse is not None:
            return self._sparse.extend(ids, values)
        known = self._copy_to(values.device)[ids]  # R_SV
        factor = torch.linalg.cholesky_ex(known[:, ids])[0]
        shares = torch.cholesky_solve(known, factor).mT.to(values)  # R_VS R_SS⁻¹
        return (shares @ values).index_copy(0, ids, values)

    @cached_property
    def _sparse(self) -> "SparseExtension | None":
        """The extension by a factorisation, if that is faster."""
        lists, size = self.weights.lists, self.weights.size
        if lists is None or size < FACTORISE_FROM:
            return None
        found = SparseExtension(lists)
        return found if found.count_entries() <= DENSE_ENTRIES * size else None

    def _copy_to(self, device: torch.device) -> Float64[Tensor, "vertex vertex"]:
        """Return R on a device; the graph never changes, so copies are cached."""
        if device not in self._copies:
            self._copies[device] = self.correlation.to(device)
        return self._copies[device]


@dataclass(frozen=True, eq=False)
class SparseExtension:
    """A large graph: K_UU y = −L_US Δ_S x_S is solved by a sparse factorisation, or iteratively.

    On a CPU each extension factorises K_UU if K's factor has few entries, as for rings and graphs in the
    plane. On a GPU, and for other graphs, conjugate gradients are preconditioned by K's diagonal. They solve
    for x_U or for the shares R_US R_SS⁻¹, whichever has fewer columns, until the residual of each column is
    below PRECISION times that of zero. A GPU's host waits for this number in every iteration.

    Δ², the diagonal of K⁻¹, is exact if K's factor has up to MOST_ENTRIES entries per vertex, or K up to
    INVERT_UP_TO vertices. For others it is approximated: see `approximate_variances`.
    """

    weights: Weights

    def extend(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Return the expected value of every vertex, given those of `ids`."""
        if values.device.type == "cpu" and self.count_entries() <= FEW_ENTRIES:
            return self._extend_directly(ids, values)
        if len(ids) < values.shape[1]:
            shares = self._extend_iteratively(ids, torch.eye(len(ids)).to(values))
            return (shares @ values).index_copy_(0, ids, values)
        return self._extend_iteratively(ids, values)

    def _extend_directly(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Factorise ΔKΔ at the vertices without a known value."""
        precision, edges = self._scaled
        found = values.new_empty(self.weights.size, values.shape[1]).index_copy_(0, ids, values)
        known = ids.numpy()
        others = np.delete(np.arange(self.weights.size), known)
        if len(others):
            factor = SparseFactor.of(csc_array(precision[others][:, others]))
            near, places = edges[others][:, known], torch.from_numpy(others)[factor.order]
            columns = max(1, DIRECT_BLOCK // self.weights.size)
            for part, goal in zip(values.split(columns, 1), found.split(columns, 1), strict=True):
                goal.index_copy_(0, places, factor.solve(near, part.contiguous()))
        return found

    def _extend_iteratively(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Run conjugate gradients on blocks of columns, which fit the cache of a CPU for all iterations."""
        if values.device.type != "cpu":
            return self._extend_block(ids, values)
        columns = max(1, EXTENSION_BLOCK // self.weights.size)
        blocks = values.split(columns, 1)
        return torch.cat([self._extend_block(ids, block.contiguous()) for block in blocks], 1)

    def _extend_block(self, ids: VertexIds, values: ChosenModels) -> AllModels:
        """Solve in y/√(K's diagonal), with rows of zeros at `ids`."""
        scale, root = (part.to(values) for part in self._scales)
        outside = torch.ones_like(root).index_fill_(0, ids, 0.0)
        known = torch.zeros(self.weights.size, values.shape[1]).to(values).index_copy_(0, ids, values)
        b = outside * root * self.weights.multiply(known * scale)

        def multiply(x: AllModels) -> AllModels:
            return outside * (x - root * self.weights.multiply(root * x))

        y = solve_by_conjugate_gradients(multiply, b, PRECISION[values.dtype])
        return (root * y / scale).index_copy_(0, ids, values)

    @cached_property
    def _precision(self) -> csc_array:
        """K."""
        return csc_array(diags_array(compute_diagonal(self.weights).numpy()) - self.weights.matrix())

    @cached_property
    def _scaled(self) -> tuple[csr_array, csr_array]:
        """ΔKΔ and ΔAΔ."""
        scale = diags_array(self._scales[0].squeeze(1).numpy())
        return csr_array(scale @ self._precision @ scale), csr_array(scale @ self.weights.matrix() @ scale)

    @cached_property
    def _scales(self) -> tuple[PerVertex, PerVertex]:
        """Δ, and 1/√(K's diagonal), which is zero without edges so that nothing reaches such vertices."""
        diagonal = compute_diagonal(self.weights)
        linked = self.weights.degrees(diagonal).flatten() > 0
        scale = torch.where(linked, self._variances.sqrt(), 1.0)
        return scale.unsqueeze(1), torch.where(linked, diagonal.rsqrt(), 0.0).unsqueeze(1)

    @cached_property
    def _factor(self) -> SuperLU | None:
        """K's factors, or None if they have or may have too many entries."""
        if bound_entries(csr_array(self._precision)) > MOST_BOUND * self.weights.size:
            return None
        factor = factorise(self._precision)
        return factor if factor.nnz <= 2 * MOST_ENTRIES * self.weights.size else None

    def count_entries(self) -> float:
        """Return the number of entries of K's factor per vertex, or infinity if it has too many."""
        return math.inf if self._factor is None else self._factor.nnz / 2 / self.weights.size

    @cached_property
    def _variances(self) -> Float64[Tensor, "vertex"]:
        """Δ²."""
        if self._factor is not None:
            return torch.from_numpy(compute_inverse_diagonal(self._factor))
        if self.weights.size <= INVERT_UP_TO:
            inverse: Tensor = torch.linalg.inv(torch.from_numpy(self._precision.toarray()))
            return inverse.diagonal()
        return approximate_variances(self.weights)


def approximate_variances(weights: Weights) -> Float64[Tensor, "vertex"]:
    """Return 1/d_k + N/Σd over the component of each vertex k, about the diagonal of K⁻¹.

    A random walk from k that stops with probability 1/N is at k at the start and, in the long run, for the
    share d_k/Σd of its time. Returns before that are left out, so the value is too small where few edges have
    most of the weight.
    """
    degrees = weights.degrees(torch.zeros(1, dtype=torch.float64)).flatten()
    labels = torch.from_numpy(label_components(weights))
    sums = torch.zeros_like(degrees).scatter_add_(0, labels, degrees)[labels]
    return 1 / degrees + len(degrees) / sums


def compute_diagonal(weights: Weights) -> Float64[Tensor, "vertex"]:
    """Return the diagonal of K = L + D/(N − 1), with ones for vertices without edges."""
    degrees = weights.degrees(torch.zeros(1, dtype=torch.float64)).flatten()
    return torch.where(degrees > 0, degrees * (1 + 1 / max(weights.size - 1, 1)), 1.0)


def solve_by_conjugate_gradients(
    multiply: Callable[[AllModels], AllModels], b: AllModels, precision: float
) -> AllModels:
    """Return x with multiply(x) = b, column by column, from zero, until all residuals are small."""
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    square = residual.square().sum(0)
    goal = precision**2 * square
    for _ in range(len(b)):
        if not bool((square > goal).any()):
            break
        image = multiply(direction)
        curvature = (direction * image).sum(0)
        # A column that is solved, or zero, stays as it is.
        length = torch.where(square > goal, square / curvature.clamp_min(1e-300), 0.0)
        x.addcmul_(direction, length.unsqueeze(0))
        residual.addcmul_(image, length.unsqueeze(0), value=-1)
        new_square = residual.square().sum(0)
        share = torch.where(square > goal, new_square / square.clamp_min(1e-300), 0.0)
        direction = residual + share * direction
        square = torch.where(square > goal, new_square, square)
    return x
