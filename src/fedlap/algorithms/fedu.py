"""FedU: one model per client, with neighbours on a graph pulled together by a server."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.coupling import BlockStrengths, Coupling, Mixing, OneBlock, Strength
from fedlap.algorithms.interface import Traits, check_choice, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.parameter_blocks import ParameterBlocks, Private, Shared, find_blocks
from fedlap.algorithms.server_state import ClientModels, GatheredRows, Ids, add_server_vertex
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields

FEDU_CITATION = (
    "C. T. Dinh, T. T. Vu, N. H. Tran, M. N. Dao and H. Zhang. A New Look and Convergence Rate of Federated "
    "Multi-Task Learning with Laplacian Regularization. IEEE TNNLS, 2022."
)


@dataclass(frozen=True)
class FedU:
    """FedU (T. Dinh et al. 2022, Algorithm 1): personal models, pulled together along a graph by a server.

    J(W) = Σ_k F_k(w_k) + (η/2) Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖²        the problem
    w_k ← w_k − μ ∇F̃_k(w_k)                                     R times, at each sampled client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)                         at the server, all from the same old values

    graph: a_kℓ, the weights between clients; a server vertex (F₀ = 0) takes part in every round.
    strength: η, of the pull; by default min(40/(nρ), 1/(μRρ)), with n the mean number of training rows per
        client and ρ the largest eigenvalue of the Laplacian. "auto" chooses it by cross-validation. A
        mapping from names of layers or parameters (as in the state_dict) gives each block its own η; blocks
        with η = 0, and those without a name, stay with the client and are not sent.
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
    strength: Strength | BlockStrengths | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    neighbours: Literal["all", "sampled"] = "all"
    mixing: Mixing = "explicit"
    allow_unstable: bool = False
    _blocks: ParameterBlocks | OneBlock = field(default=OneBlock(), repr=False)  # set by `bind`

    traits: ClassVar[Traits] = Traits("multi-task", static="round", reads_old_rows=False, merges="neighbours")
    citation: ClassVar[str] = FEDU_CITATION

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_choice("neighbours", self.neighbours, ("all", "sampled"), "fedu")
        check_local_work("fedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu", self.allow_unstable, by_block=True)

    def bind(self, roster: Roster, model: Model) -> "FedU":
        """Return the method with its graph in the roster's order of clients, and the blocks of this model."""
        blocks = find_blocks(self.strength, model, "fedu")
        return replace(self, graph=self.graph.align(roster.clients), _blocks=blocks)

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Raise InputError if mixing would undo more than the sampled clients gain.

        A sampled client of degree d retains the share 1 − μRηd of its local steps and gets the share μRηd of
        its neighbours' steps, of whom only S/N were sampled. If μRηd(1 − S/N) ≥ 1, the loss rises.
        """
        if self.neighbours == "all" and not self.allow_unstable:
            degree = self.graph.largest_degree
            self.coupling.check_sampling("fedu", degree, sampled, clients, "neighbours = sampled")

    def list_departures(self, share: float) -> list[str]:
        """Return the assumptions of the convergence theorems that the method violates."""
        partial = self.neighbours != "all" and share < 1
        return ["its mixing leaves out unsampled neighbours"] if partial else []

    @property
    def has_private_parameters(self) -> bool:
        """True if blocks of strength zero stay with the clients."""
        return self._blocks.has_private

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        return Coupling.of(self)

    def init_server(self, start: Stack) -> ClientModels:
        """Store every client's shared parameters at the server; a server vertex starts at their mean."""
        return ClientModels.start(self._blocks.share(start), self.graph)

    def init_clients(self, start: Stack, counts: Tensor) -> Private | None:
        """Store blocks of strength zero at the clients, or nothing."""
        return self._blocks.withhold(start)

    def send(self, server: ClientModels, ids: Ids) -> GatheredRows:
        """Send each sampled client its model."""
        return server.models.rows(ids)

    def local(self, private: Private | None, down: Shared, task: Task) -> tuple[Private | None, Shared]:
        """Run R mini-batch steps and send the model."""
        w = task.run(sgd, self._blocks.join(private, down), lr=self.lr)  # w_k ← w_k − μ ∇F̃_k(w_k)
        return self._blocks.withhold(w), self._blocks.share(w)

    def merge(self, server: ClientModels, ids: Ids, w: Shared) -> ClientModels:
        """Take one Laplacian step at the sampled clients; unsampled neighbours keep their last model."""
        models = server.models.values
        ids, w = add_server_vertex(self.graph, models, ids, w)
        others = models if self.neighbours == "all" else None
        mixed = self._blocks.mix_(self.coupling, w, ids, others)  # w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)
        return ClientModels(server.models.with_rows(ids, mixed))

    def penalty(self, server: ClientModels, private: Private | None) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self._blocks.penalty(self.coupling, server.models.values)

    def personal_models(self, server: ClientModels, private: Private | None, clients: int) -> Stack:
        """Return each client's model."""
        return self._blocks.join(private, server.models.values[:clients])
