"""MOCHA: linear models, pulled together along a graph and trained in the dual, row by row."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedlap.algorithms.conjugates import CONJUGATES, DualProblem
from fedlap.algorithms.coupling import Strength, check_strength, require_number
from fedlap.algorithms.interface import (
    Traits,
    check_equal_weights,
    check_idle_probability,
    check_no_server_vertex,
    check_share,
)
from fedlap.algorithms.local_updates import dual_coordinate_ascent
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import ClientTable, Ids
from fedlap.algorithms.task import ClientScalars, DualVariables, Task
from fedlap.data.roster import Roster
from fedlap.errors import UnsuitedError, check_integer, check_number, unknown_name_error
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.randomness import draws
from fedlap.summaries import summarise_fields

SHRINKAGE = 1e-3  # λ₂ if the model's l2 is zero
EPSILON = 1e-6  # ε of a learned Ω

VertexMatrix = Float64[Tensor, "vertex vertex"]


class MochaServer(NamedTuple):
    """V, A⁻¹, σ′ and the number of rounds so far."""

    sums: ClientTable
    inverse: VertexMatrix
    safety: Float64[Tensor, ""]
    rounds: Float[Tensor, ""]

    @property
    def models(self) -> Float64[Tensor, "vertex param"]:
        """W = VA⁻¹."""
        return self.inverse @ self.sums.values.double()


class MochaBroadcast(NamedTuple):
    """A client's model w_k, its σ′q_k, and the share of its rows to use."""

    model: Stack
    step: ClientScalars
    share: ClientScalars


@dataclass(frozen=True)
class Mocha:
    """MOCHA (Smith et al. 2017, Algorithm 1): dual coordinate ascent for linear models related by a graph.

    It maximises D, the dual of P:

    P(W) = Σ_k 1/n_k Σ_i ℓ(w_k·x_i, y_i) + λ₁ tr(WΩWᵀ) + λ₂‖W‖²      with Ω = L, the Laplacian
    D(α) = −Σ_k 1/n_k Σ_i ℓ*(−α_i) − ½ tr(VA⁻¹Vᵀ)                    v_k = 1/n_k Σ_i α_i x_i, W = VA⁻¹

    α_i ← argmin ℓ*(−α_i) + n_k (w_k·u_k + σ′q_k/2 ‖u_k‖²)           row by row, at each sampled client k
    α ← α + γΔα there, v_k ← v_k + γu_k at the server                u_k = 1/n_k Σ_i Δα_i x_i

    with A = 2(λ₁Ω + λ₂I) and q_k = (A⁻¹)_kk. The paper's losses are sums, without 1/n_k.

    Rows of x end in a one, for the bias. For classes there is an α and a y = ±1 per label (one against the
    rest); scores still report the cross-entropy. Training starts at α = 0, hence at W = 0 for any start.
    With the squared loss and λ₂ = l2/2, P is FedU's J(W).

    The clients of a round move simultaneously, and σ′ bounds their joint step. Over the sampled clients, with
    Q the diagonal of A⁻¹, γ λ_max(Q^−½ A⁻¹ Q^−½) is the smallest σ′ for which D gains at least γ times the
    gain of their subproblems, so that D never falls; the paper bounds it by row sums over all clients.

    Ω may be learned (Zhang and Yeung 2010): Ω⁻¹ ← (WᵀW + εI)^½ / tr((WᵀW + εI)^½), ε = 1e-6, minimises
    tr(WΩWᵀ) + ε tr Ω subject to tr Ω⁻¹ = 1. The dual's constraints do not contain Ω, so α and V stay
    unchanged, and W = VA⁻¹ is recomputed.

    graph: the weights between clients; the paper's Ω = (I − 11ᵀ/N)² is the complete graph of weight 1/N.
    strength: η = 2λ₁, of the pull (0.01); "auto" chooses it by cross-validation on training rows.
    shrinkage: λ₂; by default l2/2, or 1e-3 (not from the paper) if the model's l2 is zero: L alone is
        singular.
    loss: "squared", "logistic" or "hinge" (smoothed, with smoothing 1; the paper's is not); "auto" is the
        squared loss for real targets and the logistic loss for classes.
    aggregation: γ, the share of each client's change that is applied (1, as in the paper).
    safety: σ′; by default the smallest safe value, as above.
    drop: the probability that a sampled client does nothing in a round (Δα = 0; the paper's θ = 1).
    least_work: each client uses a share, drawn between this and 1, of each mini-batch's rows, rounded up.
    work_seed: seed of both draws, which do not depend on the seed of training.
    learn_every: rounds between learnings of Ω, which is L until the first; 0 never learns it.
    local_steps: R mini-batches of rows per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows; more of either solves the subproblem better (smaller θ).
    """

    graph: Graph
    strength: Strength = 0.01
    shrinkage: float | None = None
    loss: Literal["auto", "squared", "logistic", "hinge"] = "auto"
    aggregation: float = 1.0
    safety: float | None = None
    drop: float = 0.0
    least_work: float = 1.0
    work_seed: int = 0
    learn_every: int = 0
    local_steps: int | None = None
    local_epochs: int | None = None
    _problem: Any = field(default=None, repr=False)  # a DualProblem, set by `bind`, like …
    _roster: Any = field(default=None, repr=False, compare=False)  # … the Roster and …
    _l2: float = field(default=0.0, repr=False)  # … the model's l2

    traits: ClassVar[Traits] = Traits("multi-task", static="local", has_lr=False)
    citation: ClassVar[str] = (
        "V. Smith, C.-K. Chiang, M. Sanjabi and A. Talwalkar. Federated Multi-Task Learning. NIPS, 2017."
    )

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        LocalWork.of(self.local_steps, self.local_epochs)
        if self.loss not in ("auto", *CONJUGATES):
            raise unknown_name_error("loss of mocha", self.loss, ("auto", *CONJUGATES), field="loss")
        check_strength("mocha", self.strength)
        for name in ("shrinkage", "safety"):
            if (value := getattr(self, name)) is not None:
                check_number(name, value, zero=False, scope="mocha")
        check_share("aggregation", self.aggregation, zero=False, scope="mocha")
        check_share("least_work", self.least_work, zero=True, scope="mocha")
        check_idle_probability("drop", self.drop, zero=True, scope="mocha")
        check_integer("work_seed", self.work_seed, scope="mocha")
        check_integer("learn_every", self.learn_every, 0, scope="mocha")

    @property
    def lr(self) -> Any:
        """γ, as local steps have no length; one number per client in a stack of several runs."""
        return self.aggregation

    def bind(self, roster: Roster, model: Model) -> "Mocha":
        """Return the method for these clients and this linear model, with its graph in their order."""
        check_equal_weights(roster, "mocha")
        problem = DualProblem.of(model, roster.labels is not None, self.loss, "mocha")
        check_no_server_vertex(
            self.graph, "which has no dual; use a graph of clients", "mocha", UnsuitedError
        )
        graph = self.graph.align(roster.clients)
        return replace(self, graph=graph, _problem=problem, _roster=roster, _l2=model.l2)

    @property
    def _shrinkage(self) -> float:
        """λ₂: the setting, else half of the model's l2, else a small number."""
        return (self._l2 / 2 or SHRINKAGE) if self.shrinkage is None else self.shrinkage

    def init_server(self, start: Stack) -> MochaServer:
        """Start with V = 0 and A⁻¹."""
        unit = torch.eye(len(start), dtype=torch.float64, device=start.device)
        laplacian = self.graph.apply_laplacian(unit)
        inverse = torch.linalg.inv(require_number(self.strength) * laplacian + 2 * self._shrinkage * unit)
        rounds = torch.zeros((), dtype=start.dtype)  # on the host, where Python reads it
        return MochaServer(
            ClientTable(torch.zeros_like(start)), inverse, self._compute_safety(inverse), rounds
        )

    def init_clients(self, start: Stack, counts: Tensor) -> DualVariables:
        """Start with α = 0."""
        return start.new_zeros(len(start), int(counts.max()), self._problem.network.widths[-1])

    def send(self, server: MochaServer, ids: Ids) -> MochaBroadcast:
        """Send each sampled client its model, σ′q_k and its share of rows to use."""
        table, inverse, safety, rounds = server
        V, rows = table.values, inverse[ids]
        safety = safety if len(ids) == len(V) else self._compute_safety(rows[:, ids])
        step = (safety * inverse.diagonal()[ids]).unsqueeze(1)
        share = self._draw_shares(ids, int(rounds) + 1)
        return MochaBroadcast((rows @ V.double()).to(V), step.to(V), share.to(V))

    def local(
        self, private: DualVariables, received: MochaBroadcast, task: Task
    ) -> tuple[DualVariables, Stack]:
        """Run dual coordinate ascent; store α, send γu."""
        w, step, share = received
        values = {"alpha": private, "scale": step / task.count, "share": share, "problem": self._problem}
        reached, alpha = task.run(dual_coordinate_ascent, w, **values)  # w + σ′q u, and α + Δα
        alpha = torch.lerp(private.flatten(1), alpha.flatten(1), self.lr).view_as(private)
        return alpha, self.lr * (reached - w) / step

    def merge(self, server: MochaServer, ids: Ids, change: Stack) -> MochaServer:
        """Add the changes to V, and learn Ω every `learn_every` rounds."""
        table, inverse, safety, rounds = server
        sums = table.values[ids] + change
        if not self.learn_every or int(rounds + 1) % self.learn_every:
            return MochaServer(table.with_rows(ids, sums), inverse, safety, rounds + 1)
        V = table.values.index_copy(0, ids, sums)
        inverse = learn_inverse(inverse @ V.double(), require_number(self.strength), self._shrinkage)
        return MochaServer(ClientTable(V), inverse, self._compute_safety(inverse), rounds + 1)

    def penalty(self, server: MochaServer, alpha: DualVariables) -> Float[Tensor, ""]:
        """Return λ₁ tr(WΩWᵀ) + λ₂‖W‖², minus the part that the model's l2 already counts."""
        W = server.models
        return (server.sums.values * W).sum() / 2 - self._l2 / 2 * W.square().sum()

    def gap(self, alpha: DualVariables, w: Stack, task: Task) -> ClientScalars:
        """Return each client's part of P(W) − D(α), which is never negative."""
        gap: ClientScalars = self._problem.gap(alpha, w, task)
        return gap

    def personal_models(self, server: MochaServer, alpha: DualVariables, clients: int) -> Stack:
        """Return W = VA⁻¹."""
        return server.models.to(server.sums.values)

    def _compute_safety(self, inverse: VertexMatrix) -> Float64[Tensor, ""]:
        """Return σ′: the setting, or the smallest value for which D cannot fall."""
        if self.safety is not None:
            return inverse.new_tensor(self.safety)
        return self.aggregation * find_safe_factor(inverse)

    def _draw_shares(self, ids: Ids, round: int) -> ClientScalars:
        """Draw the share of rows that each client uses in a round; zero if it drops out."""
        if self.drop == 0 and self.least_work == 1:
            return torch.ones(len(ids), 1, dtype=torch.float64, device=ids.device)
        chance, extra = draw_pairs(self.work_seed, round, self._roster.digests.to(ids.device)[ids])
        return torch.where(chance < self.drop, 0.0, self.least_work + (1 - self.least_work) * extra)


def find_safe_factor(inverse: VertexMatrix) -> Float64[Tensor, ""]:
    """Return λ_max(Q^−½ A⁻¹ Q^−½), with Q the diagonal of A⁻¹."""
    root = inverse.diagonal().rsqrt()
    values: Tensor = torch.linalg.eigvalsh(inverse * root * root.unsqueeze(1))
    return values[-1]


def learn_inverse(W: Float64[Tensor, "vertex param"], strength: float, shrinkage: float) -> VertexMatrix:
    """Return A⁻¹ with the Ω that minimises tr(WΩWᵀ) + ε tr Ω subject to tr Ω⁻¹ = 1."""
    values, vectors = torch.linalg.eigh(W @ W.mT)
    root = (values.clamp_min(0) + EPSILON).sqrt()
    spectrum = strength * root.sum() / root + 2 * shrinkage
    return torch.mm(vectors / spectrum, vectors.mT)


def draw_pairs(seed: int, round: int, digests: Ids) -> tuple[ClientScalars, ...]:
    """Draw two uniform numbers per client and round."""
    words = draws(seed, "heterogeneity", round).words(digests, 0, 2)
    pair: tuple[ClientScalars, ...] = ((words.double() + 0.5) / 2**32).split(1, dim=1)
    return pair
