"""MOCHA: linear models kept close over a graph, trained in the dual, row by row."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from fedlap.algorithms.conjugates import CONJUGATES, Conjugate
from fedlap.algorithms.interface import Everyone, Ids, Kind, Rows, Steadiness
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.per_run import at_rows
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation
from fedlap.errors import InputError, UnsuitedError, real, unknown, whole
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.dense import DenseNetwork
from fedlap.models.parameters import views
from fedlap.randomness import draws

BLOCK = 32  # rows of a mini-batch whose inner products are taken at once
SHRINKAGE = 1e-3  # λ₂ where the model's l2 is zero
EPSILON = 1e-6  # ε of a learned Ω

Dual = Float[Tensor, "client row output"]  # α, a number for every row and score; zero past a client's rows
Column = Float[Tensor, "client 1"]
Told = tuple[Stack, Column, Column]  # w_k, σ′q_k and the share of the work
Square = Float64[Tensor, "vertex vertex"]
Kept = tuple[Everyone, Square, Float64[Tensor, ""], Float[Tensor, ""]]  # V, A⁻¹, σ′ and the rounds so far


@dataclass(frozen=True)
class Problem:
    """What the model and the targets say, which is all that clients work with."""

    network: DenseNetwork
    loss: Conjugate
    classes: bool
    l2: float  # the model's


@dataclass(frozen=True, eq=False)
class Clientele:
    """What the server knows of the clients."""

    digests: Int64[Tensor, "vertex"]
    rows: int  # of the largest
    shrinkage: float  # λ₂


@dataclass(frozen=True)
class Mocha:
    """MOCHA (Smith et al. 2017, Algorithm 1): block coordinate ascent on the dual of

    P(W) = Σ_k 1/n_k Σ_i ℓ(w_k·x_i, y_i) + λ₁ tr(WΩWᵀ) + λ₂‖W‖²      with Ω = L, the Laplacian
    D(α) = −Σ_k 1/n_k Σ_i ℓ*(−α_i) − ½ tr(VA⁻¹Vᵀ)                    v_k = 1/n_k Σ_i α_i x_i, W = VA⁻¹

    α_i ← argmin ℓ*(−α_i) + n_k (w_k·u_k + σ′q_k/2 ‖u_k‖²)           row by row, at each sampled client k
    α ← α + γΔα there, v_k ← v_k + γu_k at the server                u_k = 1/n_k Σ_i Δα_i x_i

    with A = 2(λ₁Ω + λ₂I) and q_k = (A⁻¹)_kk. The paper's losses are sums, without 1/n_k.

    Rows of x end in a one, for the bias. For classes there is an α and a y = ±1 for each label (one against
    the rest); scores still tell the cross-entropy. Training begins at α = 0, so at W = 0 whatever the start.
    With the squared loss and λ₂ = l2/2, P is FedU's J(W).

    The clients of a round move at once, and σ′ keeps them from moving too far together. Over these clients,
    with Q the diagonal of A⁻¹, γ λ_max(Q^−½ A⁻¹ Q^−½) is the least with which D gains no less than γ times
    what their subproblems do, so that it never falls; the paper bounds this by row sums, over all clients.

    Ω may be learned (Zhang and Yeung 2010): Ω⁻¹ ← (WᵀW + εI)^½ / tr((WᵀW + εI)^½), ε = 1e-6, has the least
    tr(WΩWᵀ) + ε tr Ω of all with tr Ω⁻¹ = 1. The dual's constraints are without Ω, so α and V stay, and
    W = VA⁻¹ is taken anew.

    graph: whose models should be alike; the paper's Ω = (I − 11ᵀ/N)² is the complete graph of weight 1/N.
    strength: η = 2λ₁, how much (0.01 as for FedU).
    shrinkage: λ₂; by default l2/2, or 1e-3 (ours) where the model's l2 is zero: L alone is singular.
    loss: "squared", "logistic" or "hinge" (smoothed, with smoothing 1; the paper's is not); "auto" is the
        squared for real targets and the logistic for classes.
    aggregation: γ, the share of each client's change that is taken (1, as in the paper).
    safety: σ′; by default the least that is safe, as above.
    drop: the probability that a sampled client does nothing in a round (Δα = 0; the paper's θ = 1).
    least_work: each client takes a share, drawn between this and 1, of each mini-batch's rows, rounded up.
    work_seed: of these two draws, which are the same for every seed of training.
    learn_every: rounds between learnings of Ω, which is L until the first; 0 keeps it.
    local_steps: R mini-batches of rows a round (5 where neither is given), or …
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
    problem: Problem = field(init=False, repr=False, compare=False)  # there once `suited`, and so is …
    clientele: Clientele = field(init=False, repr=False, compare=False)

    kind: ClassVar[Kind] = "multi-task"
    steady: ClassVar[Steadiness] = "local"
    citation: ClassVar[str] = (
        "V. Smith, C.-K. Chiang, M. Sanjabi and A. Talwalkar. Federated Multi-Task Learning. NIPS, 2017."
    )

    def __post_init__(self) -> None:
        LocalWork.of(self.local_steps, self.local_epochs)
        if self.loss not in ("auto", *CONJUGATES):
            raise unknown("loss of mocha", self.loss, ("auto", *CONJUGATES), field="loss")
        real("strength", self.strength, zero=True, scope="mocha")
        for name in ("shrinkage", "safety"):
            if (value := getattr(self, name)) is not None:
                real(name, value, zero=False, scope="mocha")
        for name, zero in (("aggregation", False), ("least_work", True)):
            if real(name, value := getattr(self, name), zero=zero, scope="mocha") > 1:
                raise InputError(f"{name} = {value}; it must be at most 1", field=name, scope="mocha")
        if real("drop", self.drop, zero=True, scope="mocha") >= 1:
            raise InputError(
                f"drop = {self.drop}; it must be below 1, or nobody ever works", field="drop", scope="mocha"
            )
        whole("work_seed", self.work_seed, scope="mocha")
        whole("learn_every", self.learn_every, 0, scope="mocha")

    @property
    def lr(self) -> Any:
        """γ, since no local step has a length to choose; a column of them in a stack of runs."""
        return self.aggregation

    def suited(self, federation: Federation, model: Model) -> "Mocha":
        """The same method for linear models on these clients, its graph in their order."""
        network, classes = model.network, federation.labels is not None
        if not isinstance(network, DenseNetwork) or len(network.widths) != 2:
            raise UnsuitedError("only linear models have its dual; use the model 'linear'", scope="mocha")
        if self.graph.server:
            raise UnsuitedError(
                "the graph has a server vertex, which has no dual; use one of clients", scope="mocha"
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
        made = replace(self, graph=self.graph.aligned(federation.clients))
        made.__dict__["problem"] = Problem(network, loss, classes, model.l2)
        made.__dict__["clientele"] = Clientele(federation.digests, rows, shrinkage)
        return made

    def begin(self, start: Stack) -> tuple[Kept, Dual]:
        """V = 0 and A⁻¹ at the server, α = 0 at the clients."""
        unit = torch.eye(len(start), dtype=torch.float64, device=start.device)
        laplacian = self.graph.laplacian_times(unit)
        inverse = torch.linalg.inv(self.strength * laplacian + 2 * self.clientele.shrinkage * unit)
        a = start.new_zeros(len(start), self.clientele.rows, self.problem.network.widths[-1])
        rounds = torch.zeros((), dtype=start.dtype)  # on the host, where it is looked at
        return (torch.zeros_like(start), inverse, self._safe(inverse), rounds), a

    def send(self, server: Kept, ids: Ids) -> Told:
        """Each sampled client is told its model, how its own changes move it, and its share of the work."""
        V, inverse, safety, rounds = server
        near = inverse[ids]
        safety = safety if len(ids) == len(V) else self._safe(near[:, ids])
        step = (safety * inverse.diagonal()[ids]).unsqueeze(1)
        return (near @ V.double()).to(V), step.to(V), self._shares(ids, int(rounds) + 1).to(V)

    def local(self, kept: Dual, told: Told, task: Task) -> tuple[Dual, Stack]:
        """Coordinate ascent; α stays, γu is sent."""
        w, step, share = told
        reached, a = w.clone(), kept.clone()  # w + σ′q u, and α + Δα
        each, loss = step / task.count, self.problem.loss
        if not self.problem.classes or not task.ascended(reached, a, each, share, loss):
            self._ascend(reached, a, each.unsqueeze(2), share, task)
        part = at_rows(self.aggregation, len(w))
        taken = torch.lerp(kept, a, part.unsqueeze(2) if isinstance(part, Tensor) else part)
        return taken, part * (reached - w) / step

    def _ascend(self, reached: Stack, a: Dual, factor: Tensor, share: Column, task: Task) -> None:
        """The same step by step, in place."""
        loss = self.problem.loss
        for x, y, number, todo in self._pieces(task, share):
            active, scale = len(x), factor[: len(x)]
            weight, bias = views(reached[:active], self.problem.network.shapes)
            z = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
            among = (torch.bmm(x, x.mT) + 1) * scale  # what a change of one row's α adds to another's score
            old = a[:active].gather(1, number)
            change = torch.empty_like(old)
            # Cut into rows once: each view that Python makes takes as long as a small product.
            own = (old, z, y, torch.diagonal(among, dim1=1, dim2=2).unsqueeze(2), change, todo)
            told_on = among.unsqueeze(3).unbind(2), change.unsqueeze(1).unbind(2)
            rows = zip(*(each.unbind(1) for each in own), *told_on, strict=True)
            for before, score, target, curved, moved, works, others, by in rows:
                torch.sub(loss.best(before, score, target, curved), before, out=moved).mul_(works)
                z.addcmul_(others, by)
            a[:active].scatter_add_(1, number, change)
            change *= scale
            weight.baddbmm_(change.mT, x)
            bias.add_(change.sum(1))

    def merge(self, server: Kept, ids: Ids, ups: Stack) -> tuple[Rows | Tensor, Tensor, Tensor, Tensor]:
        """V takes the changes; Ω is learned where its round has come."""
        V, inverse, safety, rounds = server
        moved = Rows(ids, V[ids] + ups)
        if not self.learn_every or int(rounds + 1) % self.learn_every:
            return moved, inverse, safety, rounds + 1
        V = V.index_copy(0, ids, moved.values)
        inverse = self._learned(inverse @ V.double())
        return V, inverse, self._safe(inverse), rounds + 1

    def penalty(self, server: Kept, a: Dual) -> Float[Tensor, ""]:
        """λ₁ tr(WΩWᵀ) + λ₂‖W‖², less what the model's l2 counts already."""
        V, inverse, _, _ = server
        W: Tensor = inverse @ V.double()
        return (V * W).sum() / 2 - self.problem.l2 / 2 * W.square().sum()

    def gap(self, a: Dual, w: Stack, task: Task) -> Column:
        """P(W) − D(α): 1/n_k Σ_i ℓ(w_k·x_i) + ℓ*(−α_i) + α_i w_k·x_i, none of which is negative."""
        total = w.new_zeros(len(w), 1)
        for batch, number in task.rows():
            active, loss = len(batch.x), self.problem.loss
            z, y = self.problem.network.scores(w[:active], batch.x), self._targets(batch.y, w)
            own = a[:active].gather(1, number.unsqueeze(2).expand_as(z))
            apart = loss.value(z, y) + loss.conjugate(own, y) + own * z
            total[:active] += (apart.sum(2) * batch.weight).sum(1, keepdim=True)
        return total

    def personal(self, server: Kept, a: Dual, clients: int) -> Stack:
        """W = VA⁻¹."""
        return (server[1] @ server[0].double()).to(server[0])

    def _safe(self, inverse: Square) -> Float64[Tensor, ""]:
        """σ′ as given, or the least with which D cannot fall."""
        if self.safety is not None:
            return inverse.new_tensor(self.safety)
        root = inverse.diagonal().rsqrt()
        values: Tensor = torch.linalg.eigvalsh(inverse * root * root.unsqueeze(1))
        return self.aggregation * values[-1]

    def _shares(self, ids: Ids, round: int) -> Column:
        """How much of its work each client does in a round; nothing where it drops out."""
        if self.drop == 0 and self.least_work == 1:
            return torch.ones(len(ids), 1, dtype=torch.float64, device=ids.device)
        stream = draws(self.work_seed, "heterogeneity", round)
        words = stream.words(self.clientele.digests.to(ids.device)[ids], 0, 2)
        chance, more = ((words.double() + 0.5) / 2**32).split(1, dim=1)
        return torch.where(chance < self.drop, 0.0, self.least_work + (1 - self.least_work) * more)

    def _learned(self, W: Float64[Tensor, "vertex param"]) -> Square:
        """A⁻¹ with the Ω of least tr(WΩWᵀ) + ε tr Ω where tr Ω⁻¹ = 1."""
        values, vectors = torch.linalg.eigh(W @ W.mT)
        root = (values.clamp_min(0) + EPSILON).sqrt()
        spectrum = self.strength * root.sum() / root + 2 * self.clientele.shrinkage
        return torch.mm(vectors / spectrum, vectors.mT)

    def _targets(self, y: Tensor, like: Tensor) -> Float[Tensor, "client row output"]:
        """Real targets as they are; ±1 for each label of classes."""
        return 2 * one_hot(y, self.problem.network.widths[-1]).to(like) - 1 if self.problem.classes else y

    def _pieces(self, task: Task, share: Column) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The round's rows, a few at a time: features, targets, numbers, and which are to be worked on."""
        for batch, number in task.numbered():
            size = (batch.weight > 0).sum(1, keepdim=True)
            todo = torch.arange(number.shape[1], device=size.device) < (share[: len(size)] * size).ceil()
            y = self._targets(batch.y, batch.x)
            at = number.unsqueeze(2).expand_as(y)
            pieces = (batch.x.flatten(2), y, at, todo.unsqueeze(2))
            yield from zip(*(piece.split(BLOCK, dim=1) for piece in pieces), strict=True)
