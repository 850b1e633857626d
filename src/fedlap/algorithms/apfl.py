"""APFL: each client mixes a local model with the global one."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlap.algorithms.interface import Traits, check_local_work, check_share
from fedlap.algorithms.local_updates import interpolated_sgd
from fedlap.algorithms.server_state import Ids, SharedModel
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.models.model import Stack


class APFLPrivate(NamedTuple):
    """A client's local model v_k and its share a_k in the client's mixed model."""

    model: Stack
    mixture: ClientScalars


@dataclass(frozen=True)
class APFL:
    """APFL (Deng et al. 2020, Algorithm 1): a client's model is v̄_k = a v_k + (1 − a) w_k.

    w_k ← w                                                  at each sampled client k
    w_k ← w_k − μ ∇F̃_k(w_k),  v_k ← v_k − μ a ∇F̃_k(v̄_k)    R times, both from the same old values
    w ← 1/S Σ_k w_k                                          at the server, over the S sampled clients

    The second gradient is the paper's ∇_v F̃_k(v̄_k), by v_k and not by v̄_k, hence the factor a. v_k stays with
    the client, which is scored with a v_k + (1 − a) w at the server's w, like the paper's output. Parameters
    are mixed, as in the paper; its published code mixes the scores of two networks, which agrees for linear
    models only.

    mixture: a in [0, 1], the share of the local model v_k; 0.5, not from the paper, which tries several.
    adaptive: let every client learn its a_k by the paper's rule, on the first mini-batch of a round and with
        the old values: a_k ← a_k − μ ⟨v_k − w_k, ∇F̃_k(v̄_k)⟩, clipped to [0, 1].
    lr: μ, the length of all local steps; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    mixture: float = 0.5
    adaptive: bool = False
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = (
        "Y. Deng, M. M. Kamani and M. Mahdavi. Adaptive Personalized Federated Learning. arXiv:2003.13461, "
        "2020."
    )

    def __post_init__(self) -> None:
        check_local_work("apfl", self.lr, self.local_steps, self.local_epochs)
        check_share("mixture", self.mixture, zero=True, scope="apfl")

    def init_server(self, start: Stack) -> SharedModel:
        """Start the global model at the mean of the clients' start models."""
        return SharedModel.average(start)

    def init_clients(self, start: Stack, counts: Tensor) -> APFLPrivate:
        """Start v_k at its client's start and a_k at the mixture."""
        return APFLPrivate(start.clone(), start.new_full((len(start), 1), self.mixture))

    def send(self, server: SharedModel, ids: Ids) -> Stack:
        """Send the global model."""
        return server.copies(len(ids))

    def local(self, private: APFLPrivate, w: Stack, task: Task) -> tuple[APFLPrivate, Stack]:
        """Run R steps on both models; store v_k and a_k, send w_k."""
        v, mixture = private
        w, v, mixture = task.run(
            interpolated_sgd, w, v=v, mixture=mixture, lr=self.lr, adaptive=self.adaptive
        )
        return APFLPrivate(v, mixture), w

    def merge(self, server: SharedModel, ids: Ids, w: Stack) -> SharedModel:
        """Average the clients' models with equal weights."""
        return SharedModel.average(w)

    def personal_models(self, server: SharedModel, private: APFLPrivate, clients: int) -> Stack:
        """Return a v_k + (1 − a) w."""
        v, a = private
        return a * v + (1 - a) * server.model
