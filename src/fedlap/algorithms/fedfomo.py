"""FedFomo: each client mixes the models of other clients that have a lower loss on its validation rows."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.interface import Traits, check_local_work, check_share
from fedlap.algorithms.local_updates import sgd_without_held_out
from fedlap.algorithms.server_state import ClientTable, Ids
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import check_integer
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.randomness import draws

OtherModels = Float[Tensor, "client other param"]
Gains = Float[Tensor, "client other"]


class FomoServer(NamedTuple):
    """Every client's model, the affinities between clients, and the number of rounds so far."""

    models: ClientTable
    affinity: Float[Tensor, "everyone everyone"]
    rounds: Int64[Tensor, ""]


class FomoUpload(NamedTuple):
    """A client's model, and its gains by the models that it received."""

    model: Stack
    gains: Gains


@dataclass(frozen=True)
class FedFomo:
    """FedFomo (Zhang et al. 2021, Algorithm 1): first-order optimisation over the models of other clients.

    g_ℓ ← (V_k(w_k) − V_k(w_ℓ)) / ‖w_ℓ − w_k‖                for M other models, at each sampled client k
    w_k ← w_k + Σ_ℓ max(g_ℓ, 0) (w_ℓ − w_k) / Σ_ℓ max(g_ℓ, 0)
    w_k ← w_k − μ ∇F̃_k(w_k)                                 R times, without validation rows
    P_kℓ ← P_kℓ + g_ℓ                                         at the server

    V_k is the mean loss on validation rows, here every `validate_every`-th training row of the client, which
    it never trains on; a client with fewer rows trains alone. The server sends the M models with the largest
    P_kℓ, ties in random order, or with probability ε any M others. A sampled client therefore receives M
    models. In the paper ε falls from 0.3 by 0.05 per round; here it stays. A client is scored with w_k.

    models: M, the number of models that a client receives (5), at most N − 1.
    explore: ε (0.3, as at the paper's start).
    validate_every: 5, for a fifth of the training rows as validation rows.
    choice_seed: seed of the server's choices, which do not depend on the seed of training.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    models: int = 5
    explore: float = 0.3
    validate_every: int = 5
    choice_seed: int = 0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    _roster: Any = field(default=None, repr=False, compare=False)  # a Roster, set by `bind`

    traits: ClassVar[Traits] = Traits("personal", static="local")
    citation: ClassVar[str] = (
        "M. Zhang, K. Sapra, S. Fidler, S. Yeung and J. M. Alvarez. Personalized Federated Learning with "
        "First Order Model Optimization. ICLR, 2021."
    )

    def __post_init__(self) -> None:
        check_local_work("fedfomo", self.lr, self.local_steps, self.local_epochs)
        check_integer("models", self.models, 1, scope="fedfomo")
        check_share("explore", self.explore, zero=True, scope="fedfomo")
        check_integer("validate_every", self.validate_every, 2, scope="fedfomo")
        check_integer("choice_seed", self.choice_seed, scope="fedfomo")

    def bind(self, roster: Roster, model: Model) -> "FedFomo":
        """Return the method for these clients, by whose names the server chooses."""
        return replace(self, _roster=roster)

    def init_server(self, start: Stack) -> FomoServer:
        """Store every client's model, without affinities."""
        affinity = start.new_zeros(len(start), len(start))
        return FomoServer(ClientTable(start.clone()), affinity, torch.tensor(0))

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Store each client's model."""
        return start.clone()

    def send(self, server: FomoServer, ids: Ids) -> OtherModels:
        """Send each sampled client M models of others."""
        return server.models.values[self._choose(server, ids)]

    def local(self, w: Stack, others: OtherModels, task: Task) -> tuple[Stack, FomoUpload]:
        """Mix the models that help, then run R mini-batch steps; store the model, send it and the gains."""
        models = [w, *(v.contiguous() for v in others.unbind(1))]
        losses = task.validation_losses(models, self.validate_every)
        gains = measure_gains(losses, (others - w.unsqueeze(1)).norm(dim=2))
        weights = torch.nn.functional.normalize(gains.clamp_min(0), 1)
        mixed = w + (weights.unsqueeze(2) * (others - w.unsqueeze(1))).sum(1)
        w = task.run(sgd_without_held_out, mixed, lr=self.lr, every=self.validate_every)
        return w, FomoUpload(w, gains)

    def merge(self, server: FomoServer, ids: Ids, up: FomoUpload) -> FomoServer:
        """Store the sampled clients' models, and add their gains to the affinities."""
        pairs = ids.unsqueeze(1), self._choose(server, ids)
        affinity = server.affinity.index_put(pairs, up.gains, accumulate=True)
        return FomoServer(server.models.with_rows(ids, up.model), affinity, server.rounds + 1)

    def personal_models(self, server: FomoServer, w: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return server.models.values

    def _choose(self, server: FomoServer, ids: Ids) -> Int64[Tensor, "client other"]:
        """Return the M clients whose models each sampled client receives in the next round."""
        digests = self._roster.digests
        numbers = draws(self.choice_seed, "coin", int(server.rounds) + 1).uniforms(digests, 0, 2)
        place, coin = numbers.to(ids.device).unbind(1)
        score = torch.where(coin[ids].unsqueeze(1) < self.explore, 0.0, server.affinity[ids].double())
        score = score.scatter(1, ids.unsqueeze(1), -torch.inf)  # its own model
        shuffled = ((place[ids].unsqueeze(1) + place) % 1).argsort(1)
        best = score.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
        return shuffled.gather(1, best)[:, : min(self.models, len(place) - 1)]


def measure_gains(losses: Float[Tensor, "client models"], distances: Gains) -> Gains:
    """Return (V(w) − V(w_ℓ)) / ‖w_ℓ − w‖; the first loss is that of w. The gain by an equal model is zero."""
    return torch.where(distances > 0, (losses[:, :1] - losses[:, 1:]) / distances, 0.0)
