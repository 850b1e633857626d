"""FedAMP: one model per client, pulled to a mixture of all models in which similar ones weigh more."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.coupling import compute_distances
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import ClientTable, Ids
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import InputError, check_number
from fedlap.models import Model
from fedlap.models.model import Stack


class AttentionServer(NamedTuple):
    """The last model of every client."""

    models: ClientTable


@dataclass(frozen=True)
class FedAMP:
    """FedAMP (Huang et al. 2021, Algorithm 1): attentive message passing between clients by a server.

    G(W) = Σ_k F_k(w_k) + λ Σ_{k<ℓ} A(‖w_k − w_ℓ‖²),  A(x) = 1 − exp(−x/σ)             the problem
    u_k ← w_k − α Σ_ℓ A′(‖w_k − w_ℓ‖²) (w_k − w_ℓ)                                     at the server
    w_k ← argmin F_k(w) + λ/(2α) ‖w − u_k‖²                                            at each sampled client

    The first step is a mixture of models with weights ξ_kℓ = α A′(‖w_k − w_ℓ‖²), ξ_kk = 1 − Σ_ℓ ξ_kℓ. Here
    the second step is R steps w ← w − μ (∇F̃_k(w) + λ/α (w − u_k)) from the client's own model, which it
    stores. Unsampled clients count at their last model. The gradient of
    A(‖w_k − w_ℓ‖²) has a further factor 2, which the paper's steps omit. So the steps descend on G with λ/2,
    and the reported J is the paper's G.

    proximal: λ/α, the strength of the pull to u_k (0.1, not from the paper).
    scale: σ, the squared distance over which attention falls (10, not from the paper, which tunes it; models
        trained alone on the embedded data are 1 to 4 apart).
    attention: α; by default σ/N, at most which ξ_kk stays positive for any models.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    proximal: float = 0.1
    scale: float = 10.0
    attention: float | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("multi-task", static="round")
    citation: ClassVar[str] = (
        "Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei and Y. Zhang. Personalized Cross-Silo Federated "
        "Learning on Non-IID Data. AAAI, 2021."
    )

    def __post_init__(self) -> None:
        check_local_work("fedamp", self.lr, self.local_steps, self.local_epochs)
        check_number("proximal", self.proximal, zero=True, scope="fedamp")
        check_number("scale", self.scale, zero=False, scope="fedamp")
        if self.attention is not None:
            check_number("attention", self.attention, zero=True, scope="fedamp")

    def bind(self, roster: Roster, model: Model) -> "FedAMP":
        """Return the method; raise InputError if a client could weigh less than nothing in its mixture."""
        others = len(roster.clients) - 1
        if self.attention is not None and self.attention * others > self.scale:
            raise InputError(
                f"attention = {self.attention:g} is too large for {others + 1} clients: (N − 1)·attention/"
                f"scale = {self.attention * others / self.scale:.4g} > 1; use at most "
                f"{self.scale / others:.4g}",
                field="attention",
                scope="fedamp",
            )
        return self

    def compute_weights(
        self, w: Stack, models: Float[Tensor, "everyone param"]
    ) -> Float[Tensor, "client everyone"]:
        """Return ξ_kℓ = α A′(‖w_k − w_ℓ‖²); a client's own weight does not matter, as w_k − w_k = 0."""
        share = 1 / len(models) if self.attention is None else self.attention / self.scale
        return share * (-compute_distances(w, models).square() / self.scale).exp()

    def init_server(self, start: Stack) -> AttentionServer:
        """Store every client's model at the server."""
        return AttentionServer(ClientTable(start.clone()))

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Store each client's model."""
        return start.clone()

    def send(self, server: AttentionServer, ids: Ids) -> Stack:
        """Send each sampled client its mixture u_k."""
        models = server.models.values
        w = models[ids]
        weights = self.compute_weights(w, models)
        return w - weights.sum(1, keepdim=True) * w + weights @ models

    def local(self, w: Stack, u: Stack, task: Task) -> tuple[Stack, Stack]:
        """Run R mini-batch steps pulled to the mixture; store the model and send it."""
        w = task.run(sgd, w, lr=self.lr, anchor=u, pull=self.lr * self.proximal)
        return w, w

    def merge(self, server: AttentionServer, ids: Ids, w: Stack) -> AttentionServer:
        """Store the sampled clients' models."""
        return AttentionServer(server.models.with_rows(ids, w))

    def penalty(self, server: AttentionServer, w: Stack) -> Float[Tensor, ""]:
        """Return λ Σ_{k<ℓ} A(‖w_k − w_ℓ‖²)."""
        models = server.models.values.double()
        weights = self.compute_weights(models, models)  # α/σ exp(−‖w_k − w_ℓ‖²/σ)
        share = weights.diagonal().unsqueeze(1)
        return self.proximal * self.scale / 2 * (share - weights).sum()

    def personal_models(self, server: AttentionServer, w: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return server.models.values
