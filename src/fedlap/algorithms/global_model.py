"""Global: one model, trained on the pooled rows of all clients."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlap.algorithms.adaptation import check_fine_tuning
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import GlobalModel, Ids
from fedlap.algorithms.task import Task
from fedlap.data.federation import Federation
from fedlap.models.model import Stack


@dataclass(frozen=True)
class Global:
    """Global: mini-batch descent on the pooled training rows of all clients; not federated.

    w ← w − μ ∇F̃(w)        R epochs per round, or R·S steps if S clients would be sampled

    lr: μ, the length of a step.
    local_steps: R, for R·S steps per round (5 if neither is given), or …
    local_epochs: … R passes over all rows.
    fine_tune_steps: full gradient steps of length μ that each client takes on its training rows, from the
        global model, before it is scored; they do not change training.
    """

    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    fine_tune_steps: int | None = None

    traits: ClassVar[Traits] = Traits("one model", static="round")
    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_local_work("global", self.lr, self.local_steps, self.local_epochs)
        check_fine_tuning("global", self.fine_tune_steps)

    def view(self, federation: Federation) -> Federation:
        """Return a federation of one client that owns every row."""
        return federation.pool_clients()

    def init_server(self, start: Stack) -> None:
        """Store nothing at the server."""

    def init_clients(self, start: Stack, counts: Tensor) -> GlobalModel:
        """Start the model of the one pooled client at the mean of all clients' start models."""
        return start.mean(0, keepdim=True)

    def send(self, server: None, ids: Ids) -> None:
        """Send nothing."""

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, None]:
        """Run mini-batch steps on the pooled rows."""
        return task.run(sgd, w, lr=self.lr), None

    def merge(self, server: None, ids: Ids, up: None) -> None:
        """Merge nothing; there is no server state."""

    def personal_models(self, server: None, w: GlobalModel, clients: int) -> Stack:
        """Return the global model for every client."""
        return w.expand(clients, -1)
