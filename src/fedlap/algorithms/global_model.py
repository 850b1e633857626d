"""Global: one model on all rows, as if they could be brought together."""

from dataclasses import dataclass
from typing import ClassVar

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation


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

    kind: ClassVar[Kind] = "one model"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_work("global", self.lr, self.local_steps, self.local_epochs)

    def view(self, federation: Federation) -> Federation:
        """One client that owns every row."""
        return federation.pooled()

    def begin(self, start: Stack) -> tuple[None, One]:
        """One model; where clients would start apart, their mean."""
        return None, start.mean(0, keepdim=True)

    def send(self, server: None, ids: Ids) -> None:
        """Nothing."""

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, None]:
        """Mini-batch steps on the pooled rows."""
        w = task.descended(w, self.lr)
        return w, None

    def merge(self, server: None, ids: Ids, ups: None) -> None:
        """Nothing."""

    def personal(self, server: None, w: One, clients: int) -> Stack:
        """The one model, at every client."""
        return w.expand(clients, -1)
