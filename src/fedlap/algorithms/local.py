"""Local: every client alone."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task


@dataclass(frozen=True)
class Local:
    """Local: FedU's sampling and local work, and no mixing; nothing crosses the wire.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at each sampled client k

    lr: μ, the length of a local step.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
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
        check_work("local", self.lr, self.local_steps, self.local_epochs)

    def begin(self, start: Stack) -> tuple[None, Tensor]:
        """Each client keeps its own model."""
        return None, start.clone()

    def send(self, server: None, ids: Ids) -> None:
        """Nothing."""

    def local(self, w: Stack, down: None, task: Task) -> tuple[Stack, None]:
        """R mini-batch steps."""
        w = task.descended(w, self.lr)
        return w, None

    def merge(self, server: None, ids: Ids, ups: None) -> None:
        """Nothing."""

    def personal(self, server: None, w: Stack, clients: int) -> Stack:
        """Each client's own model."""
        return w
