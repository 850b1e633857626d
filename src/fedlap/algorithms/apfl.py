"""APFL: each client mixes a model of its own with the one that all share."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import InputError, real

Own = tuple[Stack, Float[Tensor, "client 1"]]  # v_k and a_k


@dataclass(frozen=True)
class APFL:
    """APFL (Deng et al. 2020, Algorithm 1): a client's model is v̄_k = a v_k + (1 − a) w_k.

    w_k ← w                                                  at each sampled client k
    w_k ← w_k − μ ∇F̃_k(w_k),  v_k ← v_k − μ a ∇F̃_k(v̄_k)    R times, both from the same old values
    w ← 1/S Σ_k w_k                                          at the server, over the S sampled clients

    The second gradient is the paper's ∇_v F̃_k(v̄_k), by v_k and not by v̄_k, whence the factor a. v_k stays
    with the client, which is scored with a v_k + (1 − a) w at the server's w, as the paper's output is. The
    parameters are mixed, as the paper writes; its published code mixes what two networks say, which is the
    same for linear models only.

    mixture: a in [0, 1], the share of the client's own model; 0.5, not from the paper, which tries several.
    adaptive: let every client learn its own a, by the paper's rule for it, on the first mini-batch of a round
        and with the old values: a_k ← a_k − μ ⟨v_k − w_k, ∇F̃_k(v̄_k)⟩, cut to [0, 1].
    lr: μ, the length of all local steps; 0.03 as for every method here.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    mixture: float = 0.5
    adaptive: bool = False
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "Y. Deng, M. M. Kamani and M. Mahdavi. Adaptive Personalized Federated Learning. arXiv:2003.13461, "
        "2020."
    )

    def __post_init__(self) -> None:
        check_work("apfl", self.lr, self.local_steps, self.local_epochs)
        if real("mixture", self.mixture, zero=True, scope="apfl") > 1:
            raise InputError(
                f"mixture = {self.mixture:g}; it is a share, from 0 to 1", field="mixture", scope="apfl"
            )

    def begin(self, start: Stack) -> tuple[One, Own]:
        """One model, the mean of the starts; each client's own begins at its own start."""
        return start.mean(0, keepdim=True), (start.clone(), start.new_full((len(start), 1), self.mixture))

    def send(self, w: One, ids: Ids) -> Stack:
        """The model."""
        return w.expand(len(ids), -1)

    def local(self, own: Own, w: Stack, task: Task) -> tuple[Own, Stack]:
        """R steps of both models; v_k and a_k are kept, w_k is sent."""
        v, mixture = own
        for place, batch in enumerate(task.batches()):
            active = len(batch.x)
            a, apart = mixture[:active], v[:active] - w[:active]
            slope = task.gradient(a * v[:active] + (1 - a) * w[:active], batch)
            w = task.descend(w, batch, self.lr)
            v[:active] -= self.lr * a * slope
            if self.adaptive and place == 0:
                a -= self.lr * (apart * slope).sum(1, keepdim=True)
                a.clamp_(0, 1)
        return (v, mixture), w

    def merge(self, w: One, ids: Ids, ups: Stack) -> One:
        """The mean, every client counting alike."""
        return ups.mean(0, keepdim=True)

    def personal(self, w: One, own: Own, clients: int) -> Stack:
        """a v_k + (1 − a) w."""
        v, a = own
        return a * v + (1 - a) * w
