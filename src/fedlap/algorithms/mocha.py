"""MOCHA: linear models, pulled together along a graph and trained in the dual, row by row."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from fedlap.algorithms.conjugates import CONJUGATES, Conjugate
from fedlap.algorithms.interface import Ids, Kind, RowUpdate, Steadiness, VertexModels
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.per_run import take_first_rows
from fedlap.algorithms.task import ClientScalars, DualVariables, Task
from fedlap.data.federation import Federation
from fedlap.errors import InputError, UnsuitedError, check_integer, check_number, unknown_name_error
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.dense import DenseNetwork
from fedlap.models.model import Stack
from fedlap.models.parameters import view_parameters
from fedlap.randomness import draws

ROWS_PER_GRAM_BLOCK = 32  # rows of a mini-batch whose inner products are computed together
SHRINKAGE = 1e-3  # λ₂ if the model's l2 is zero
EPSILON = 1e-6  # ε of a learned Ω

MochaBroadcast = tuple[Stack, ClientScalars, ClientScalars]  # w_k, σ′q_k, and the share of rows to use
VertexMatrix = Float64[Tensor, "vertex vertex"]
# V, A⁻¹, σ′ and the number of rounds so far
MochaServer = tuple[VertexModels, VertexMatrix, Float64[Tensor, ""], Float[Tensor, ""]]


@dataclass(frozen=True)
class MochaProblem:
    """The part of a problem that clients need: the linear network and the loss."""

    network: DenseNetwork
    loss: Conjugate
    classes: bool
    l2: float  # of the model


@dataclass(frozen=True, eq=False)
class ClientFacts:
    """The part of a problem that the server needs: digests, the largest row count and λ₂."""

    digests: Int64[Tensor, "vertex"]
    rows: int  # of the largest client
    shrinkage: float  # λ₂


@dataclass(frozen=True)
class Mocha:
    """MOCHA (Smith et al. 2017, Algorithm 1): block coordinate ascent on the dual of

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
    strength: η = 2λ₁, of the pull (0.01 as for FedU).
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
    strength: float = 0.01
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
    problem: MochaProblem = field(init=False, repr=False, compare=False)  # set by `bind`, like …
    clientele: ClientFacts = field(init=False, repr=False, compare=False)

    kind: ClassVar[Kind] = "multi-task"
    steady: ClassVar[Steadiness] = "local"
    citation: ClassVar[str] = (
        "V. Smith, C.-K. Chiang, M. Sanjabi and A. Talwalkar. Federated Multi-Task Learning. NIPS, 2017."
    )

    def __post_init__(self) -> None:
        LocalWork.of(self.local_steps, self.local_epochs)
        if self.loss not in ("auto", *CONJUGATES):
            raise unknown_name_error("loss of mocha", self.loss, ("auto", *CONJUGATES), field="loss")
        check_number("strength", self.strength, zero=True, scope="mocha")
        for name in ("shrinkage", "safety"):
            if (value := getattr(self, name)) is not None:
                check_number(name, value, zero=False, scope="mocha")
        for name, zero in (("aggregation", False), ("least_work", True)):
            if check_number(name, value := getattr(self, name), zero=zero, scope="mocha") > 1:
                raise InputError(
                    f"{name} = {value}; expected a number of at most 1", field=name, scope="mocha"
                )
        if check_number("drop", self.drop, zero=True, scope="mocha") >= 1:
            raise InputError(
                f"drop = {self.drop}; expected a number below 1 (at 1 no client trains)",
                field="drop",
                scope="mocha",
            )
        check_integer("work_seed", self.work_seed, scope="mocha")
        check_integer("learn_every", self.learn_every, 0, scope="mocha")

    @property
    def lr(self) -> Any:
        """γ, as local steps have no length; a PerRun in a stack of several runs."""
        return self.aggregation

    def bind(self, federation: Federation, model: Model) -> "Mocha":
        """Return the method for these clients and this linear model, with its graph in their order."""
        network, classes = model.network, federation.labels is not None
        if not isinstance(network, DenseNetwork) or len(network.widths) != 2:
            raise UnsuitedError(
                "the dual exists for linear models only; use the model 'linear'", scope="mocha"
            )
        if self.graph.server:
            raise UnsuitedError(
                "the graph has a server vertex, which has no dual; use a graph of clients", scope="mocha"
            )
        if not classes and self.loss not in ("auto", "squared"):
            raise UnsuitedError(
                f"loss = {self.loss!r} is for classes; use 'squared' for real targets",
                field="loss",
                scope="mocha",
            )
        loss = CONJUGATES[("logistic" if classes else "squared") if self.loss == "auto" else self.loss]
        shrinkage = (model.l2 / 2 or SHRINKAGE) if self.shrinkage is None else self.shrinkage
        rows = int(federation.train.count.max())
        bound = replace(self, graph=self.graph.align(federation.clients))
        bound.__dict__["problem"] = MochaProblem(network, loss, classes, model.l2)
        bound.__dict__["clientele"] = ClientFacts(federation.digests, rows, shrinkage)
        return bound

    def init(self, start: Stack) -> tuple[MochaServer, DualVariables]:
        """Start with V = 0 and A⁻¹ at the server, and α = 0 at the clients."""
        unit = torch.eye(len(start), dtype=torch.float64, device=start.device)
        laplacian = self.graph.apply_laplacian(unit)
        inverse = torch.linalg.inv(self.strength * laplacian + 2 * self.clientele.shrinkage * unit)
        a = start.new_zeros(len(start), self.clientele.rows, self.problem.network.widths[-1])
        rounds = torch.zeros((), dtype=start.dtype)  # on the host, where Python reads it
        return (torch.zeros_like(start), inverse, self._compute_safety(inverse), rounds), a

    def send(self, server: MochaServer, ids: Ids) -> MochaBroadcast:
        """Send each sampled client its model, σ′q_k and its share of rows to use."""
        V, inverse, safety, rounds = server
        rows = inverse[ids]
        safety = safety if len(ids) == len(V) else self._compute_safety(rows[:, ids])
        step = (safety * inverse.diagonal()[ids]).unsqueeze(1)
        return (rows @ V.double()).to(V), step.to(V), self._draw_shares(ids, int(rounds) + 1).to(V)

    def local(
        self, private: DualVariables, received: MochaBroadcast, task: Task
    ) -> tuple[DualVariables, Stack]:
        """Run dual coordinate ascent; store α, send γu."""
        w, step, share = received
        reached, a = w.clone(), private.clone()  # w + σ′q u, and α + Δα
        scale, loss = step / task.count, self.problem.loss
        if not self.problem.classes or not task.dual_coordinate_ascent(reached, a, scale, share, loss):
            self._ascend(reached, a, scale.unsqueeze(2), share, task)
        gamma = take_first_rows(self.aggregation, len(w))
        alpha = torch.lerp(private, a, gamma.unsqueeze(2) if isinstance(gamma, Tensor) else gamma)
        return alpha, gamma * (reached - w) / step

    def _ascend(
        self, reached: Stack, a: DualVariables, factor: Tensor, share: ClientScalars, task: Task
    ) -> None:
        """Run dual coordinate ascent row by row, in place, without a kernel."""
        loss = self.problem.loss
        for x, y, number, used in self._split_blocks(task, share):
            active, scale = len(x), factor[: len(x)]
            weight, bias = view_parameters(reached[:active], self.problem.network.shapes)
            z = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
            gram = (torch.bmm(x, x.mT) + 1) * scale  # effect of one row's Δα on another row's score
            old = a[:active].gather(1, number)
            change = torch.empty_like(old)
            # Rows are unbound once, since creating a view in Python takes as long as a small product.
            per_row = (old, z, y, torch.diagonal(gram, dim1=1, dim2=2).unsqueeze(2), change, used)
            effects = gram.unsqueeze(3).unbind(2), change.unsqueeze(1).unbind(2)
            rows = zip(*(tensor.unbind(1) for tensor in per_row), *effects, strict=True)
            for before, score, target, curvature, delta, is_used, column, by in rows:
                torch.sub(loss.minimise(before, score, target, curvature), before, out=delta).mul_(is_used)
                z.addcmul_(column, by)
            a[:active].scatter_add_(1, number, change)
            change *= scale
            weight.baddbmm_(change.mT, x)
            bias.add_(change.sum(1))

    def merge(
        self, server: MochaServer, ids: Ids, ups: Stack
    ) -> tuple[RowUpdate | Tensor, Tensor, Tensor, Tensor]:
        """Add the changes to V, and learn Ω every `learn_every` rounds."""
        V, inverse, safety, rounds = server
        update = RowUpdate(ids, V[ids] + ups)
        if not self.learn_every or int(rounds + 1) % self.learn_every:
            return update, inverse, safety, rounds + 1
        V = V.index_copy(0, ids, update.values)
        inverse = self._learn_inverse(inverse @ V.double())
        return V, inverse, self._compute_safety(inverse), rounds + 1

    def penalty(self, server: MochaServer, a: DualVariables) -> Float[Tensor, ""]:
        """Return λ₁ tr(WΩWᵀ) + λ₂‖W‖², minus the part that the model's l2 already counts."""
        V, inverse, _, _ = server
        W: Tensor = inverse @ V.double()
        return (V * W).sum() / 2 - self.problem.l2 / 2 * W.square().sum()

    def gap(self, a: DualVariables, w: Stack, task: Task) -> ClientScalars:
        """Return each client's part of P(W) − D(α), which is never negative.

        1/n_k Σ_i ℓ(w_k·x_i) + ℓ*(−α_i) + α_i w_k·x_i
        """
        total = w.new_zeros(len(w), 1)
        for batch, number in task.rows():
            active, loss = len(batch.x), self.problem.loss
            z, y = self.problem.network.scores(w[:active], batch.x), self._encode_targets(batch.y, w)
            alpha = a[:active].gather(1, number.unsqueeze(2).expand_as(z))
            gap = loss.value(z, y) + loss.conjugate(alpha, y) + alpha * z
            total[:active] += (gap.sum(2) * batch.weight).sum(1, keepdim=True)
        return total

    def personal_models(self, server: MochaServer, a: DualVariables, clients: int) -> Stack:
        """Return W = VA⁻¹."""
        return (server[1] @ server[0].double()).to(server[0])

    def _compute_safety(self, inverse: VertexMatrix) -> Float64[Tensor, ""]:
        """Return σ′: the setting, or the smallest value for which D cannot fall."""
        if self.safety is not None:
            return inverse.new_tensor(self.safety)
        root = inverse.diagonal().rsqrt()
        values: Tensor = torch.linalg.eigvalsh(inverse * root * root.unsqueeze(1))
        return self.aggregation * values[-1]

    def _draw_shares(self, ids: Ids, round: int) -> ClientScalars:
        """Draw the share of rows that each client uses in a round; zero if it drops out."""
        if self.drop == 0 and self.least_work == 1:
            return torch.ones(len(ids), 1, dtype=torch.float64, device=ids.device)
        stream = draws(self.work_seed, "heterogeneity", round)
        words = stream.words(self.clientele.digests.to(ids.device)[ids], 0, 2)
        chance, extra = ((words.double() + 0.5) / 2**32).split(1, dim=1)
        return torch.where(chance < self.drop, 0.0, self.least_work + (1 - self.least_work) * extra)

    def _learn_inverse(self, W: Float64[Tensor, "vertex param"]) -> VertexMatrix:
        """Return A⁻¹ with the Ω that minimises tr(WΩWᵀ) + ε tr Ω subject to tr Ω⁻¹ = 1."""
        values, vectors = torch.linalg.eigh(W @ W.mT)
        root = (values.clamp_min(0) + EPSILON).sqrt()
        spectrum = self.strength * root.sum() / root + 2 * self.clientele.shrinkage
        return torch.mm(vectors / spectrum, vectors.mT)

    def _encode_targets(self, y: Tensor, like: Tensor) -> Float[Tensor, "client row output"]:
        """Return real targets unchanged, and classes as ±1 per label."""
        return 2 * one_hot(y, self.problem.network.widths[-1]).to(like) - 1 if self.problem.classes else y

    def _split_blocks(
        self, task: Task, share: ClientScalars
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield blocks of the round's rows: features, targets, row indices, and which rows are used."""
        for batch, number in task.batches_with_indices():
            size = (batch.weight > 0).sum(1, keepdim=True)
            used = torch.arange(number.shape[1], device=size.device) < (share[: len(size)] * size).ceil()
            y = self._encode_targets(batch.y, batch.x)
            index = number.unsqueeze(2).expand_as(y)
            tensors = (batch.x.flatten(2), y, index, used.unsqueeze(2))
            yield from zip(*(tensor.split(ROWS_PER_GRAM_BLOCK, dim=1) for tensor in tensors), strict=True)
