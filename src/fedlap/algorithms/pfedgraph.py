"""pFedGraph: one model per client, mixed by weights that the server infers from the clients' models."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from fedlap.algorithms.fedavg import CountedModels
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import cosine_sgd
from fedlap.algorithms.server_state import ClientTable, GlobalModel, Ids
from fedlap.algorithms.simplex import project_to_simplex
from fedlap.algorithms.task import Task
from fedlap.errors import check_number
from fedlap.models.model import Stack


class PFedGraphServer(NamedTuple):
    """Each client's mixed model u_k and direction v_k, and the common start model."""

    models: ClientTable
    directions: ClientTable
    start: GlobalModel


class PFedGraphMessage(NamedTuple):
    """A client's mixed model u_k and direction v_k."""

    model: Any  # GatheredRows at the server, a stack at the client
    direction: Any


@dataclass(frozen=True)
class PFedGraph:
    """pFedGraph (Ye et al. 2023, Algorithm 1): a collaboration graph, inferred in every round.

    w_k ← u_k                                                            at each sampled client k
    w_k ← w_k − μ ∇(F̃_k(w_k) − λ v_k·w_k/‖w_k‖)                         R times
    a_k ← argmin Σ_ℓ (α (a_ℓ − p_ℓ)² − a_ℓ cos(w_k − w⁰, w_ℓ − w⁰))     at the server, over the simplex
    u_k ← Σ_ℓ a_kℓ w_ℓ,  v_k ← Σ_ℓ a_kℓ w_ℓ/‖w_ℓ‖                        over the sampled clients ℓ

    p_ℓ = n_ℓ / Σ n are the shares of rows, w⁰ is the common start model. The quadratic programme of a client
    is the projection of p + cos/(2α) onto the simplex. A client receives two models, u_k and v_k, and sends
    one; it is scored with u_k, as mixed last. λ has the sign of the paper's text; its published code has the
    other sign, and counts a cosine above 0.9 as 1.

    trust: α, of the shares of rows against similarity (0.8, as in the published code).
    similarity: λ, of the pull to the direction of similar clients' models (0.01, as in the published code).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    trust: float = 0.8
    similarity: float = 0.01
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = (
        "R. Ye, Z. Ni, F. Wu, S. Chen and Y. Wang. Personalized Federated Learning with Inferred "
        "Collaboration Graphs. ICML, 2023."
    )

    def __post_init__(self) -> None:
        check_local_work("pfedgraph", self.lr, self.local_steps, self.local_epochs)
        check_number("trust", self.trust, zero=False, scope="pfedgraph")
        check_number("similarity", self.similarity, zero=True, scope="pfedgraph")

    def init_server(self, start: Stack) -> PFedGraphServer:
        """Start each client at its start model, with its direction."""
        return PFedGraphServer(
            ClientTable(start.clone()), ClientTable(normalize(start)), start.mean(0, keepdim=True)
        )

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: PFedGraphServer, ids: Ids) -> PFedGraphMessage:
        """Send each sampled client its mixed model and its direction."""
        return PFedGraphMessage(server.models.rows(ids), server.directions.rows(ids))

    def local(self, private: None, received: PFedGraphMessage, task: Task) -> tuple[None, CountedModels]:
        """Run R steps that also turn the model towards the direction; send the model and the row count."""
        pull = self.lr * self.similarity
        w = task.run(cosine_sgd, received.model, lr=self.lr, direction=received.direction, pull=pull)
        return private, CountedModels(w, task.count)

    def merge(self, server: PFedGraphServer, ids: Ids, up: CountedModels) -> PFedGraphServer:
        """Infer the graph between the sampled clients, and mix their models along it."""
        w, counts = up
        weights = infer_weights(w - server.start, counts.mT / counts.sum(), self.trust)
        models = server.models.with_rows(ids, weights @ w)
        return PFedGraphServer(models, server.directions.with_rows(ids, weights @ normalize(w)), server.start)

    def personal_models(self, server: PFedGraphServer, private: None, clients: int) -> Stack:
        """Return each client's mixed model."""
        return server.models.values


def infer_weights(
    changes: Stack, shares: Float[Tensor, "1 client"], trust: float
) -> Float[Tensor, "client client"]:
    """Return the rows a_k of the simplex that minimise Σ_ℓ (α (a_ℓ − p_ℓ)² − a_ℓ cos_kℓ)."""
    direction = normalize(changes)
    return project_to_simplex(shares + direction @ direction.mT / (2 * trust))
