"""FedU whose server passes the steps of sampled clients on to the others, along the graph."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing, Strength
from fedlap.algorithms.fedu import FEDU_CITATION
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import (
    ClientModels,
    ClientTable,
    GlobalModel,
    Ids,
    add_server_vertex,
)
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.graph import Graph
from fedlap.graph.extension import CompleteExtension, Extension, build_extension
from fedlap.graph.implicit import mix_complete
from fedlap.graph.sparse_weights import SparseWeights
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields


class PassingServer(NamedTuple):
    """Every client's model less the common part, which moves all models at the cost of one.

    mean: the mean of the start models, from which the sum of all models follows on a complete graph.
    """

    models: ClientTable
    common: GlobalModel
    mean: GlobalModel


@dataclass(frozen=True)
class FedUPassing:
    """FedU (T. Dinh et al. 2022) that also moves unsampled clients: ours, not from the paper.

    d_k = FedU's step of client k                               local steps and pull, at each sampled client
    w_k ← w_k + d_k                                             at the sampled clients S
    w_U ← w_U + R_US R_SS⁻¹ d_S                                 at the others U, at the server

    In FedU an unsampled client keeps its model, so all models move at the share S/N of full speed. Here the
    server estimates the steps that it did not see from those of the neighbours. R is the correlation of a
    Gaussian field on the graph: the inverse of L + D/(N − 1), scaled to a unit diagonal. On the complete
    graph the last line is w_u ← w_u + Σ_S d_k / (S + 1). If all clients are sampled, this is FedU. Messages
    are those of FedU: a client learns of its moved model when it is next sampled. This model contains the
    steps of others, as every model of FedU does through the pull.

    On a complete graph a round costs as much as FedU's. On others it computes all N models, whatever S is, on
    large ones by a sparse factorisation if that has few entries, and by conjugate gradients otherwise. Beyond
    4,000 clients without such a factorisation, the diagonal of the inverse is approximated.

    Steps are passed within components that have a sampled client. The step of a server vertex, whose loss is
    zero, is not passed on; those of clients pass through it. The page on theory has the expected step.

    graph: a_kℓ, the weights between clients; a server vertex (F₀ = 0) takes part in every round. A wrong
        graph passes wrong steps.
    strength: η, of the pull; by default as in FedU. "auto" chooses it by cross-validation.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    mixing: "explicit" or "implicit", as in FedU.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges, or one with which,
        under sampling, mixing undoes more than local steps gain.
    """

    graph: Graph
    strength: Strength | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    mixing: Mixing = "explicit"
    allow_unstable: bool = False

    traits: ClassVar[Traits] = Traits("multi-task", static="round")
    citation: ClassVar[str] = FEDU_CITATION

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_local_work("fedu-passing", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu-passing", self.allow_unstable)

    def bind(self, roster: Roster, model: Model) -> "FedUPassing":
        """Return the method with its graph in the roster's order of clients."""
        return replace(self, graph=self.graph.align(roster.clients))

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Raise InputError if mixing would undo more than the sampled clients gain, as in FedU."""
        if not self.allow_unstable:
            self.coupling.check_sampling("fedu-passing", self.graph.largest_degree, sampled, clients)

    def list_departures(self, share: float) -> list[str]:
        """Return the assumptions of the convergence theorems that the method violates."""
        return ["it moves clients that are not sampled"] if share < 1 else []

    @property
    def is_static(self) -> bool:
        """False on large graphs, where residuals decide on the number of iterations."""
        return not isinstance(self.graph.weights, SparseWeights)

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        return Coupling.of(self)

    @cached_property
    def extension(self) -> Extension:
        """The extension of steps along the graph."""
        return build_extension(self.graph)

    def init_server(self, start: Stack) -> PassingServer:
        """Store every client's model at the server; a server vertex starts at their mean."""
        models = ClientModels.start(start, self.graph).models
        return PassingServer(models, torch.zeros_like(start[:1]), start.mean(0, keepdim=True))

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: PassingServer, ids: Ids) -> Stack:
        """Send each sampled client its model."""
        return server.models.values[ids] + server.common

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R mini-batch steps and send the model."""
        return private, task.run(sgd, w, lr=self.lr)  # w_k ← w_k − μ ∇F̃_k(w_k)

    def merge(self, server: PassingServer, ids: Ids, w: Stack) -> PassingServer:
        """Take one Laplacian step at the sampled clients, and pass their whole steps on to the others."""
        if isinstance(self.extension, CompleteExtension):
            return merge_complete(self.coupling, self.extension, server, ids, w)
        models, W, clients = server.models, server.models.values, ids
        ids, w = add_server_vertex(self.graph, W, ids, w - server.common)  # the pull ignores a common part
        w = self.coupling.mix_(w, ids, W)  # w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)
        if len(ids) == len(W):
            return server._replace(models=models.with_rows(ids, w))
        d = w[: len(clients)] - W[clients]
        moved = self.extension.extend(clients, d).add_(W)  # w_U ← w_U + R_US R_SS⁻¹ d_S
        return server._replace(models=ClientTable(moved.index_copy_(0, ids, w)))

    def penalty(self, server: PassingServer, private: None) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.coupling.penalty(server.models.values)

    def personal_models(self, server: PassingServer, private: None, clients: int) -> Stack:
        """Return each client's model."""
        return server.models.values[:clients] + server.common


def merge_complete(
    coupling: Coupling, extension: CompleteExtension, server: PassingServer, ids: Ids, w: Stack
) -> PassingServer:
    """Merge on a complete graph, at a cost that grows with the sampled clients only.

    All unsampled models move by p = Σ_S d_k / (S + 1), so p is added to the common part c, and only the rows
    x_k = w_k − c of sampled clients change. Σ w_k grows by Σ_S d_k + (N − S) p = (N + 1) p, so that
    Σ x_k = Σ w_k − N c is always its first value plus c.
    """
    models, common, mean = server
    old = models.values[ids]
    rest = extension.weights.size * mean + common - old.sum(0, keepdim=True)
    x = mix_complete(
        extension.weights, w - common, coupling.step, rest, implicitly=coupling.mixing == "implicit"
    )
    passed = extension.sum_share(x - old)
    return PassingServer(models.with_rows(ids, x - passed), common + passed, mean)
