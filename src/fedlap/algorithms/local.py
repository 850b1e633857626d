"""Local: every client trains alone."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, Steadiness, check_local_work
from fedlap.algorithms.task import Task
from fedlap.models.model import Stack


@dataclass(frozen=True)
class Local:
    """Local: FedU's sampling and local work without mixing; nothing crosses the wire.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at each sampled client k

    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    overwrites: ClassVar[Literal[True]] = True
    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_local_work("local", self.lr, self.local_steps, self.local_epochs)

    def init(self, start: Stack) -> tuple[None, Tensor]:
        """Store each client's model as private state."""
        return None, start.clone()

    def send(self, server: None, ids: Ids) -> None:
        """Send nothing."""

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, None]:
        """Run R mini-batch steps and store the model."""
        w = task.sgd(w, self.lr)
        return w, None

    def merge(self, server: None, ids: Ids, ups: None) -> None:
        """Merge nothing; there is no server state."""

    def personal_models(self, server: None, w: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return w
