"""What an engine does."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, State
from fedlap.algorithms.algorithm import Ids
from fedlap.engines.clients import Clients
from fedlap.scores import Tally
from fedlap.work import Work


@runtime_checkable
class Engine(Protocol):
    """Runs clients' work; algorithms know nothing of devices or processes."""

    @property
    def clients(self) -> Clients:
        """Whose work it runs."""
        ...

    def train(
        self,
        algorithm: Algorithm,
        private: State,
        down: State,
        ids: Ids,
        round: int,
        work: Work,
    ) -> tuple[State, State]:
        """Each client's `local`: rows of private state and of what it sends, in the order of `ids`.

        The rows of `private` are handed over and may be written to; those of `down` are copied.
        """
        ...

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """Each peer's next model, from its own and its neighbours'."""
        ...

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """How each client's model does on its training and its test rows."""
        ...
