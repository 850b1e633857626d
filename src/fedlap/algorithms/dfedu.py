"""dFedU: FedU between peers, which send their models to their neighbours on the graph."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing, Strength
from fedlap.algorithms.fedu import FEDU_CITATION
from fedlap.algorithms.interface import (
    ReceivedModels,
    ReceivedWeights,
    Traits,
    check_local_work,
    check_no_server_vertex,
)
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import InputError, check_integer
from fedlap.graph import Graph
from fedlap.graph.implicit import compute_chebyshev_steps, run_chebyshev, take_chebyshev_step
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields


@dataclass(frozen=True)
class DFedU:
    """dFedU (T. Dinh et al. 2022, Algorithm 2): FedU without server and sampling; peers send to neighbours.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at every client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at every client k, from its neighbours' models

    With implicit mixing the second line is w ← p(L) w, a polynomial whose degree is the number of exchanges,
    near 1/(1 + μRηλ) and never above 1: disagreement never grows, for any strength.

    graph: a_kℓ, the weights between clients; clients communicate if a_kℓ > 0.
    strength: η, of the pull; by default min(40/(nρ), 1/(μRρ)), with n the mean number of training rows per
        client and ρ the largest eigenvalue of the Laplacian. "auto" chooses it by cross-validation.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    mixing: "explicit", as above, or "implicit".
    exchanges: number of times per round that neighbours send; above 1 with implicit mixing only.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges.
    """

    graph: Graph
    strength: Strength | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    mixing: Mixing = "explicit"
    exchanges: int = 1
    allow_unstable: bool = False

    traits: ClassVar[Traits] = Traits("multi-task", static="round", reads_old_rows=False)
    citation: ClassVar[str] = FEDU_CITATION

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_no_server_vertex(self.graph, "but dFedU has no server; use fedu", "dfedu")
        if check_integer("exchanges", self.exchanges, 1, scope="dfedu") > 1 and self.mixing == "explicit":
            advice = "Algorithm 2 has one per round; set mixing = implicit"
            raise InputError(f"exchanges = {self.exchanges}; {advice}", field="exchanges", scope="dfedu")
        check_local_work("dfedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("dfedu", self.allow_unstable)

    def bind(self, roster: Roster, model: Model) -> "DFedU":
        """Return the method with its graph in the roster's order of clients."""
        return replace(self, graph=self.graph.align(roster.clients))

    def list_departures(self, share: float) -> list[str]:
        """Return the assumptions of the convergence theorems that the method violates: none."""
        return []

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        return Coupling.of(self)

    def init_server(self, start: Stack) -> None:
        """Store nothing, as there is no server."""

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Store each client's model."""
        return start.clone()

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, Stack]:
        """Run R mini-batch steps; store the model and send it to the neighbours."""
        w = task.run(sgd, w, lr=self.lr)  # w_k ← w_k − μ ∇F̃_k(w_k)
        return w, w

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of a client's neighbours, and a_kℓ."""
        places, weights = self.graph.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def count_messages(self) -> int:
        """Count two models per edge and exchange."""
        return 2 * self.graph.edges * self.exchanges

    def mix(
        self, exchange: int, state: tuple[Stack, ...], received: ReceivedModels, weights: ReceivedWeights
    ) -> tuple[Stack, ...]:
        """Take a step towards the received models.

        With implicit mixing the state also holds the last step and the model before the first exchange.
        """
        w, *before = state
        pull = self.coupling.step * (weights.unsqueeze(-1) * (w.unsqueeze(1) - received)).sum(1)
        if self.mixing == "explicit":
            return (w - pull,)  # w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)
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
        return self.coupling.penalty(W)

    def personal_models(self, server: None, W: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return W
