"""FedU and dFedU: each client its own model, neighbours on a graph kept close.

T. Dinh, Vu, Tran, Dao and Zhang, "A New Look and Convergence Rate of Federated Multi-Task Learning with
Laplacian Regularization", IEEE TNNLS 2022; Algorithms 1 and 2. Both descend on

    J(W) = Σ_k F_k(w_k) + (η/2) Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖²
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing
from fedlap.algorithms.interface import Everyone, Ids, Kind, Own, Rows, Steadiness, check_work
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation
from fedlap.errors import InputError, whole
from fedlap.graph import Graph
from fedlap.graph.implicit import advanced, chebyshev, implicit, iterated
from fedlap.models import Model

CITATION = (
    "C. T. Dinh, T. T. Vu, N. H. Tran, M. N. Dao and H. Zhang. A New Look and Convergence Rate of Federated "
    "Multi-Task Learning with Laplacian Regularization. IEEE TNNLS, 2022."
)


@dataclass(frozen=True)
class FedU:
    """FedU (T. Dinh et al. 2022, Algorithm 1): a server keeps every client's model and samples clients.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at each sampled client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at the server, all from the same old values

    graph: whose models should be alike, a_kℓ; a server vertex (F₀ = 0) takes part in every round.
    strength: η, how much; by default min(0.01, 1/(μRρ)), with ρ the largest eigenvalue of the Laplacian.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    neighbours: sum over "all" neighbours, the unsampled at their last model (Algorithm 1), or over those
        "sampled" in this round (the text beside it).
    mixing: "explicit", as above, or "implicit": the w⁺ with w⁺_k = w_k − μRη Σ_ℓ a_kℓ (w⁺_k − w⁺_ℓ), by which
        disagreement never grows, for any strength.
    allow_unstable: take a strength with μRηρ > 2, which the mixing alone makes diverge, or one with which,
        under sampling, it takes back more than local steps gain.
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
    overwrites: ClassVar[Literal[True]] = True  # old models are asked for of those alone who did not work
    citation: ClassVar[str] = CITATION

    def __post_init__(self) -> None:
        if self.neighbours not in ("all", "sampled"):
            raise InputError(
                f"neighbours = {self.neighbours!r}; it must be 'all' or 'sampled'",
                field="neighbours",
                scope="fedu",
            )
        check_work("fedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu", self.allow_unstable)

    def suited(self, federation: Federation, model: Model) -> "FedU":
        """The same method with its graph in the federation's order of clients."""
        return replace(self, graph=self.graph.aligned(federation.clients))

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Refuse a strength that takes back more than the sampled clients have gained.

        Of its own local step a sampled client keeps the share 1 − μRηd, d its degree, and gets the share μRηd
        of its neighbours', of whom only S/N have made any. Where μRηd(1 − S/N) ≥ 1 training goes uphill.
        """
        if self.neighbours == "all" and not self.allow_unstable:
            like = torch.zeros(1, dtype=torch.float64)
            degree = float(self.graph.weights.degrees(like)[:clients].max())
            self.coupling.check_sampling("fedu", degree, sampled, clients)

    @property
    def coupling(self) -> Coupling:
        """The mixing of a round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, mixing=self.mixing)

    def begin(self, start: Stack) -> tuple[Tensor, None]:
        """The server keeps every model; its own vertex, if any, begins at their mean."""
        return (torch.cat([start, start.mean(0, keepdim=True)]) if self.graph.server else start.clone()), None

    def send(self, W: Everyone, ids: Ids) -> Own:
        """Each sampled client is told its own model."""
        return Own(W, ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """R mini-batch steps."""
        w = task.descended(w, self.lr)
        return private, w

    def merge(self, W: Everyone, ids: Ids, ups: Stack) -> Rows:
        """A step along −η L W, at the sampled clients, with W before it or after it."""
        if self.graph.server:
            ids, ups = torch.cat([ids, ids.new_full((1,), len(W) - 1)]), torch.cat([ups, W[-1:]])
        elsewhere = W if self.neighbours == "all" else None
        if self.mixing == "implicit":
            return Rows(ids, implicit(self.graph, ups, self.coupling.step, ids, elsewhere))
        return Rows(ids, self.graph.mix_(ups, self.coupling.step, ids, elsewhere))

    def penalty(self, W: Everyone, private: None) -> Float[Tensor, ""]:
        """(η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * self.graph.smoothness(W)

    def personal(self, W: Everyone, private: None, clients: int) -> Stack:
        """Each client's own model."""
        return W[:clients]


@dataclass(frozen=True)
class DFedU:
    """dFedU (T. Dinh et al. 2022, Algorithm 2): no server and no sampling; models go to neighbours only.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at every client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at every client k, from what its neighbours sent

    With implicit mixing w ← p(L) w instead, a polynomial of as many degrees as there are exchanges, near
    1/(1 + μRηλ) and never above 1: disagreement never grows, for any strength.

    graph: whose models should be alike, a_kℓ; clients talk where a_kℓ > 0.
    strength: η, how much; by default min(0.01, 1/(μRρ)), with ρ the largest eigenvalue of the Laplacian.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    mixing: "explicit", as above, or "implicit".
    exchanges: how often neighbours send to each other in a round; with implicit mixing.
    allow_unstable: take a strength with μRηρ > 2, which the mixing alone makes diverge.
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
            raise InputError("the graph has a server vertex and dFedU has no server; use fedu", scope="dfedu")
        if whole("exchanges", self.exchanges, 1, scope="dfedu") > 1 and self.mixing == "explicit":
            raise InputError(
                f"exchanges = {self.exchanges}; Algorithm 2 has one a round, set mixing = implicit",
                field="exchanges",
                scope="dfedu",
            )
        check_work("dfedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("dfedu", self.allow_unstable)

    def suited(self, federation: Federation, model: Model) -> "DFedU":
        """The same method with its graph in the federation's order of clients."""
        return replace(self, graph=self.graph.aligned(federation.clients))

    @property
    def coupling(self) -> Coupling:
        """The mixing of a round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, mixing=self.mixing)

    def begin(self, start: Stack) -> tuple[None, Tensor]:
        """Each client keeps its own model; there is no server."""
        return None, start.clone()

    def local(self, w: Stack, heard: None, task: Task) -> tuple[Stack, Stack]:
        """R mini-batch steps; the model is kept, and sent to the neighbours."""
        w = task.descended(w, self.lr)
        return w, w

    def hears(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """The neighbours of a client, and a_kℓ."""
        places, weights = self.graph.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def messages(self) -> int:
        """Every client sends to each of its neighbours, once an exchange."""
        return 2 * self.graph.edges * self.exchanges

    def mix(
        self,
        exchange: int,
        own: tuple[Stack, ...],
        heard: Float[Tensor, "client heard param"],
        weights: Float[Tensor, "client heard"],
    ) -> tuple[Stack, ...]:
        """A step towards the neighbours that were heard; an implicit one remembers the last and the first."""
        w, *before = own
        pull = self.coupling.step * (weights.unsqueeze(-1) * (w.unsqueeze(1) - heard)).sum(1)
        if self.mixing == "explicit":
            return (w - pull,)
        along, first = before or (torch.zeros_like(w), w)
        return *advanced(self._steps[exchange], w, along, first, pull), first

    def mix_all(self, W: Stack) -> Stack:
        """The same steps at every client, each as one product with the Laplacian."""
        step = self.coupling.step
        if self.mixing == "explicit":
            return self.graph.mix_(W.clone(), step)
        return iterated(self._steps, W, W, lambda w: step * self.graph.laplacian_times(w))

    @property
    def _steps(self) -> list[tuple[float, float]]:
        """Lengths of the steps of an implicit mixing."""
        return chebyshev(self.coupling.product, self.exchanges)

    def penalty(self, server: None, W: Stack) -> Float[Tensor, ""]:
        """(η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * self.graph.smoothness(W)

    def personal(self, server: None, W: Stack, clients: int) -> Stack:
        """Each client's own model."""
        return W
