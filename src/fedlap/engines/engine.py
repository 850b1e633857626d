"""What an engine does."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import PeerAlgorithm, State
from fedlap.engines.clients import Clients
from fedlap.engines.task import StackTask
from fedlap.scores import Tally

Function = Callable[..., State]  # of rows of states, and a task


@runtime_checkable
class Engine(Protocol):
    """Runs clients' work; algorithms know nothing of devices or processes."""

    @property
    def clients(self) -> Clients:
        """Whose work it runs."""
        ...

    def each(self, function: Function, states: tuple[State, ...], task: StackTask) -> State:
        """A function of each client's rows of these states and its task, which looks at no other client.

        The states are handed over and may be written to.
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
