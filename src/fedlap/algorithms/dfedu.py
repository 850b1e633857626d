"""dFedU: FedU between peers, which send their models to their neighbours on the graph."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.compression import parse_compression
from fedlap.algorithms.coupling import BlockStrengths, Coupling, Mixing, OneBlock, Strength
from fedlap.algorithms.fedu import FEDU_CITATION
from fedlap.algorithms.interface import (
    ReceivedModels,
    ReceivedWeights,
    States,
    Traits,
    check_local_work,
    check_no_server_vertex,
)
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.parameter_blocks import ParameterBlocks, Shared, find_blocks
from fedlap.algorithms.peer_state import (
    CompressedPeer,
    PeerMessage,
    PeerState,
    get_model,
    receive_model,
    replace_shared,
    send_model,
    start_peer,
)
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import InputError, check_integer
from fedlap.graph import Graph
from fedlap.graph.implicit import run_chebyshev, take_chebyshev_step
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

    With compression C, neighbours know a public model ŵ_k, at first the start model. Peers send C(w_k − ŵ_k):

    ŵ_k ← ŵ_k + C(w_k − ŵ_k)                    at every client k and at its neighbours
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − ŵ_ℓ)        at every client k, from its neighbours' public models

    What a message loses stays in the next difference, so that models converge to those without
    compression. The page on theory has a condition for this.

    graph: a_kℓ, the weights between clients; clients communicate if a_kℓ > 0.
    strength: η, of the pull; by default min(40/(nρ), 1/(μRρ)), with n the mean number of training rows per
        client and ρ the largest eigenvalue of the Laplacian. "auto" chooses it by cross-validation. A
        mapping gives blocks of parameters their own η, as in FedU, with explicit mixing only; peers send
        the blocks with η > 0.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    mixing: "explicit", as above, or "implicit".
    exchanges: number of times per round that neighbours send; above 1 with implicit mixing only.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges.
    compression: "float16", "int8" (per block of 256), or "top-k:0.1", the tenth of the parameters that differ
        most ("top-k" alone means a share of 0.1); by default none. With explicit mixing only.
    """

    graph: Graph
    strength: Strength | BlockStrengths | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    mixing: Mixing = "explicit"
    exchanges: int = 1
    allow_unstable: bool = False
    compression: str | None = None
    _blocks: ParameterBlocks | OneBlock = field(default=OneBlock(), repr=False)  # set by `bind`

    traits: ClassVar[Traits] = Traits("multi-task", static="round", reads_old_rows=False, merges="neighbours")
    citation: ClassVar[str] = FEDU_CITATION

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_no_server_vertex(self.graph, "but dFedU has no server; use fedu", "dfedu")
        check_local_work("dfedu", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("dfedu", self.allow_unstable, by_block=True)
        check_exchanges(self.coupling, self.exchanges, self.compression)

    def bind(self, roster: Roster, model: Model) -> "DFedU":
        """Return the method with its graph in the roster's order of clients, and the blocks of this model."""
        blocks = find_blocks(self.strength, model, "dfedu")
        return replace(self, graph=self.graph.align(roster.clients), _blocks=blocks)

    def list_departures(self, share: float) -> list[str]:
        """Return the assumptions of the convergence theorems that the method violates."""
        return ["its peers mix with compressed models"] if parse_compression(self.compression) else []

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        return Coupling.of(self)

    def init_server(self, start: Stack) -> None:
        """Store nothing, as there is no server."""

    def init_clients(self, start: Stack, counts: Tensor) -> PeerState:
        """Store each client's model and, with compression, its public model."""
        return start_peer(self.compression, start, self._blocks.share(start))

    def local(self, peer: PeerState, down: None, task: Task) -> tuple[PeerState, PeerMessage]:
        """Run R mini-batch steps; store the model and send it, or what it adds to the public model."""
        w = task.run(sgd, get_model(peer), lr=self.lr)  # w_k ← w_k − μ ∇F̃_k(w_k)
        # ŵ_k ← ŵ_k + C(w_k − ŵ_k); without C, ŵ_k is w_k
        return send_model(self.compression, peer, w, self._blocks.share(w))

    def public_models(self, peer: PeerState) -> Shared:
        """Return the models that neighbours know."""
        return peer.public if isinstance(peer, CompressedPeer) else self._blocks.share(peer)

    def receive(self, known: Shared, message: Any) -> Shared:
        """Return a neighbour's public model after its message, from the one before."""
        return receive_model(self.compression, known, message)

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of a client's neighbours, and a_kℓ."""
        places, weights = self.graph.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def count_messages(self) -> int:
        """Count two messages per edge and exchange."""
        return 2 * self.graph.edges * self.exchanges

    def mix(self, exchange: int, state: States, received: ReceivedModels, weights: ReceivedWeights) -> States:
        """Take a step towards the received public models.

        With implicit mixing the state also holds the last step and the model before the first exchange.
        """
        peer, *before = state
        w = self._blocks.share(get_model(peer))
        pull = self._blocks.scale_pull(self.coupling, (weights[..., None] * (w[:, None] - received)).sum(1))
        if self.mixing == "explicit":  # w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − ŵ_ℓ)
            return (replace_shared(self._blocks, peer, w - pull),)
        along, first = before or (torch.zeros_like(w), w)
        step = self.coupling.list_exchange_steps(self.exchanges)[exchange]
        return *take_chebyshev_step(step, w, along, first, pull), first

    def mix_all(self, peers: PeerState) -> PeerState:
        """Run all exchanges at every client, each as one product with the Laplacian."""
        if self.mixing == "explicit":
            return mix_explicitly(self.coupling, self._blocks, peers)
        return run_exchanges(self.coupling, self.exchanges, get_model(peers))

    def penalty(self, server: None, peers: PeerState) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self._blocks.penalty(self.coupling, self._blocks.share(get_model(peers)))

    def personal_models(self, server: None, peers: PeerState, clients: int) -> Stack:
        """Return each client's model."""
        return get_model(peers)


def mix_explicitly(coupling: Coupling, blocks: ParameterBlocks | OneBlock, peers: PeerState) -> PeerState:
    """Return the state of all peers after w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − ŵ_ℓ)."""
    w = blocks.share(get_model(peers))
    if isinstance(peers, CompressedPeer):
        pull = coupling.graph.apply_laplacian(w, peers.public)
        return replace_shared(blocks, peers, w - blocks.scale_pull(coupling, pull))
    return replace_shared(blocks, peers, blocks.mix_(coupling, w.clone(), None, None))


def run_exchanges(coupling: Coupling, exchanges: int, w: Stack) -> Stack:
    """Return all models after w ← p(L) w, a polynomial whose degree is the number of exchanges."""
    steps = coupling.list_exchange_steps(exchanges)
    return run_chebyshev(steps, w, w, lambda x: coupling.step * coupling.graph.apply_laplacian(x))


def check_exchanges(coupling: Coupling, exchanges: int, compression: str | None) -> None:
    """Raise InputError for exchanges, compressed messages or strengths that this kind of mixing lacks."""
    is_implicit = coupling.mixing == "implicit"
    if check_integer("exchanges", exchanges, 1, scope="dfedu") > 1 and not is_implicit:
        advice = "Algorithm 2 has one per round; set mixing = implicit"
        raise InputError(f"exchanges = {exchanges}; {advice}", field="exchanges", scope="dfedu")
    if parse_compression(compression) and is_implicit:
        advice = "implicit mixing sends whole models; set mixing = explicit, or remove compression"
        raise InputError(f"compression = {compression}; {advice}", field="compression", scope="dfedu")
    if coupling.is_by_block and is_implicit:
        raise InputError(
            f"strength = {coupling.strength!r} has a value per block of parameters, but implicit mixing "
            "between peers takes one; use one number, or set mixing = explicit",
            field="strength",
            scope="dfedu",
        )
