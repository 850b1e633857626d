"""FedU and dFedU: one model per client, with neighbours on a graph pulled together.

T. Dinh, Vu, Tran, Dao and Zhang, "A New Look and Convergence Rate of Federated Multi-Task Learning with
Laplacian Regularization", IEEE TNNLS 2022; Algorithms 1 and 2. Both minimise

    J(W) = Σ_k F_k(w_k) + (η/2) Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖²
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing
from fedlap.algorithms.interface import (
    GatheredRows,
    Ids,
    Kind,
    RowUpdate,
    Steadiness,
    VertexModels,
    check_local_work,
)
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Task
from fedlap.data.federation import Federation
from fedlap.errors import InputError, check_integer
from fedlap.graph import Graph
from fedlap.graph.implicit import compute_chebyshev_steps, mix_implicitly, run_chebyshev, take_chebyshev_step
from fedlap.models import Model
from fedlap.models.model import Stack

CITATION = (
    "C. T. Dinh, T. T. Vu, N. H. Tran, M. N. Dao and H. Zhang. A New Look and Convergence Rate of Federated "
    "Multi-Task Learning with Laplacian Regularization. IEEE TNNLS, 2022."
)


@dataclass(frozen=True)
class FedU:
    """FedU (T. Dinh et al. 2022, Algorithm 1): personal models, pulled together along a graph by a server.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at each sampled client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at the server, all from the same old values

    graph: a_kℓ, the weights between clients; a server vertex (F₀ = 0) takes part in every round.
    strength: η, of the pull; by default min(0.01, 1/(μRρ)), with ρ the largest eigenvalue of the Laplacian.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    neighbours: sum over "all" neighbours, the unsampled ones at their last model (Algorithm 1), or over those
        "sampled" in this round (the paper's text next to Algorithm 1).
    mixing: "explicit", as above, or "implicit": the w⁺ with w⁺_k = w_k − μRη Σ_ℓ a_kℓ (w⁺_k − w⁺_ℓ), with
        which disagreement never grows, for any strength.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges, or one with which,
        under sampling, mixing undoes more than local steps gain.
    """

    graph: Graph
    strength: float | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    neighbours: Literal["all", "sampled"] = "all"
    mixing: Mixing = "explicit"
    allow_unstable: bool = False

    kind: ClassVar[Kind] = "multi-task"
    steady: ClassVar[Steadiness] = "round"
    overwrites: ClassVar[Literal[True]] = True  # `merge` reads the old models of unsampled clients only
    citation: ClassVar[str] = CITATION

    def __post_init__(self) -> None:
        if self.neighbours not in ("all", "sampled"):
            raise InputError(
                f"neighbours = {self.neighbours!r}; use 'all' or 'sampled'",
                field="neighbours",
                scope="fedu",
            )
        check_local_work("fedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu", self.allow_unstable)

    def bind(self, federation: Federation, model: Model) -> "FedU":
        """Return the method with its graph in the federation's order of clients."""
        return replace(self, graph=self.graph.align(federation.clients))

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Raise InputError if mixing would undo more than the sampled clients gain.

        A sampled client of degree d retains the share 1 − μRηd of its local steps and gets the share μRηd of
        its neighbours' steps, of whom only S/N were sampled. If μRηd(1 − S/N) ≥ 1, the loss rises.
        """
        if self.neighbours == "all" and not self.allow_unstable:
            like = torch.zeros(1, dtype=torch.float64)
            degree = float(self.graph.weights.degrees(like)[:clients].max())
            self.coupling.check_sampling("fedu", degree, sampled, clients)

    @property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, mixing=self.mixing)

    def init(self, start: Stack) -> tuple[Tensor, None]:
        """Store every client's model at the server; a server vertex starts at their mean."""
        return (torch.cat([start, start.mean(0, keepdim=True)]) if self.graph.server else start.clone()), None

    def send(self, W: VertexModels, ids: Ids) -> GatheredRows:
        """Send each sampled client its model."""
        return GatheredRows(W, ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R mini-batch steps and send the model."""
        w = task.sgd(w, self.lr)
        return private, w

    def merge(self, W: VertexModels, ids: Ids, ups: Stack) -> RowUpdate:
        """Take one Laplacian step at the sampled clients; unsampled neighbours keep their last model.

        w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ), or with w⁺ on the right-hand side (implicit mixing).
        """
        if self.graph.server:
            ids, ups = torch.cat([ids, ids.new_full((1,), len(W) - 1)]), torch.cat([ups, W[-1:]])
        others = W if self.neighbours == "all" else None
        if self.mixing == "implicit":
            return RowUpdate(ids, mix_implicitly(self.graph, ups, self.coupling.step, ids, others))
        return RowUpdate(ids, self.graph.mix_(ups, self.coupling.step, ids, others))

    def penalty(self, W: VertexModels, private: None) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * self.graph.smoothness(W)

    def personal_models(self, W: VertexModels, private: None, clients: int) -> Stack:
        """Return each client's model."""
        return W[:clients]


@dataclass(frozen=True)
class DFedU:
    """dFedU (T. Dinh et al. 2022, Algorithm 2): FedU without server and sampling; peers send to neighbours.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at every client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at every client k, from its neighbours' models

    With implicit mixing the second line is w ← p(L) w, a polynomial whose degree is the number of exchanges,
    near 1/(1 + μRηλ) and never above 1: disagreement never grows, for any strength.

    graph: a_kℓ, the weights between clients; clients communicate if a_kℓ > 0.
    strength: η, of the pull; by default min(0.01, 1/(μRρ)), with ρ the largest eigenvalue of the Laplacian.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    mixing: "explicit", as above, or "implicit".
    exchanges: number of times per round that neighbours send; above 1 with implicit mixing only.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges.
    """

    graph: Graph
    strength: float | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    mixing: Mixing = "explicit"
    exchanges: int = 1
    allow_unstable: bool = False

    kind: ClassVar[Kind] = "multi-task"
    steady: ClassVar[Steadiness] = "round"
    overwrites: ClassVar[Literal[True]] = True
    citation: ClassVar[str] = CITATION

    def __post_init__(self) -> None:
        if self.graph.server:
            raise InputError(
                "the graph has a server vertex, but dFedU has no server; use fedu", scope="dfedu"
            )
        if check_integer("exchanges", self.exchanges, 1, scope="dfedu") > 1 and self.mixing == "explicit":
            raise InputError(
                f"exchanges = {self.exchanges}; Algorithm 2 has one per round; set mixing = implicit",
                field="exchanges",
                scope="dfedu",
            )
        check_local_work("dfedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("dfedu", self.allow_unstable)

    def bind(self, federation: Federation, model: Model) -> "DFedU":
        """Return the method with its graph in the federation's order of clients."""
        return replace(self, graph=self.graph.align(federation.clients))

    @property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, mixing=self.mixing)

    def init(self, start: Stack) -> tuple[None, Tensor]:
        """Store each client's model as private state; there is no server state."""
        return None, start.clone()

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, Stack]:
        """Run R mini-batch steps; store the model and send it to the neighbours."""
        w = task.sgd(w, self.lr)
        return w, w

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of a client's neighbours, and a_kℓ."""
        places, weights = self.graph.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def count_messages(self) -> int:
        """Count two models per edge and exchange."""
        return 2 * self.graph.edges * self.exchanges

    def mix(
        self,
        exchange: int,
        state: tuple[Stack, ...],
        received: Float[Tensor, "client heard param"],
        weights: Float[Tensor, "client heard"],
    ) -> tuple[Stack, ...]:
        """Take a step towards the received models.

        With implicit mixing the state also holds the last step and the model before the first exchange.
        """
        w, *before = state
        pull = self.coupling.step * (weights.unsqueeze(-1) * (w.unsqueeze(1) - received)).sum(1)
        if self.mixing == "explicit":
            return (w - pull,)
        along, first = before or (torch.zeros_like(w), w)
        return *take_chebyshev_step(self._steps[exchange], w, along, first, pull), first

    def mix_all(self, W: Stack) -> Stack:
        """Run all exchanges at every client, each as one product with the Laplacian."""
        step = self.coupling.step
        if self.mixing == "explicit":
            return self.graph.mix_(W.clone(), step)
        return run_chebyshev(self._steps, W, W, lambda w: step * self.graph.apply_laplacian(w))

    @property
    def _steps(self) -> list[tuple[float, float]]:
        """Step lengths of implicit mixing."""
        return compute_chebyshev_steps(self.coupling.product, self.exchanges)

    def penalty(self, server: None, W: Stack) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * self.graph.smoothness(W)

    def personal_models(self, server: None, W: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return W
