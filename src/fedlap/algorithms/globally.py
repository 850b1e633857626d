"""Global: one model on all rows, as if they could be brought together."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.algorithm import Ids, Stack, Task, check_lr
from fedlap.federation import Federation
from fedlap.work import Work

One = Float[Tensor, "1 param"]


@dataclass(frozen=True)
class Global:
    """Global: mini-batch descent on the training rows of all clients pooled; not federated.

    w ← w − μ ∇F̃(w)        R epochs a round, or R·S steps, where S clients would be sampled

    lr: μ, the length of a step.
    local_steps: R, of which R·S are made a round (5 where neither is given), or …
    local_epochs: … R passes over all rows.
    """

    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    def __post_init__(self) -> None:
        check_lr("global", self.lr)
        Work.of(self.local_steps, self.local_epochs)

    def aligned(self, clients: Sequence[str]) -> "Global":
        """The same method."""
        return self

    def view(self, federation: Federation) -> Federation:
        """One client that owns every row."""
        return federation.pooled()

    def work(self, sampled: int) -> Work:
        """As many steps as all sampled clients would make together."""
        return Work.of(self.local_steps, self.local_epochs).times(sampled)

    def begin(self, start: Stack) -> tuple[None, One]:
        """One model; where clients would start apart, their mean."""
        return None, start.mean(0, keepdim=True)

    def send(self, server: None, ids: Ids) -> None:
        """Nothing."""

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, None]:
        """Mini-batch steps on the pooled rows."""
        for batch in task.batches():
            w = task.descend(w, batch, self.lr)
        return w, None

    def merge(self, server: None, ids: Ids, ups: None) -> None:
        """Nothing."""

    def penalty(self, server: None, w: One) -> Float[Tensor, ""]:
        """None: J(W) is the sum of the clients' losses."""
        return w.new_zeros(())

    def personal(self, server: None, w: One, clients: int) -> Stack:
        """The one model, at every client."""
        return w.expand(clients, -1)
