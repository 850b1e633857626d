"""Local: every client trains alone."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import Ids
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

    traits: ClassVar[Traits] = Traits("personal", static="round", reads_old_rows=False)
    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_local_work("local", self.lr, self.local_steps, self.local_epochs)

    def init_server(self, start: Stack) -> None:
        """Store nothing at the server."""

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Store each client's model."""
        return start.clone()

    def send(self, server: None, ids: Ids) -> None:
        """Send nothing."""

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, None]:
        """Run R mini-batch steps and store the model."""
        return task.run(sgd, w, lr=self.lr), None

    def merge(self, server: None, ids: Ids, up: None) -> None:
        """Merge nothing; there is no server state."""

    def personal_models(self, server: None, w: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return w
