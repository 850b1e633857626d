"""What a method is: hyper-parameters and a few pure functions on stacks, one row a client.

`send`, `local` and `personal` never let one row look at another. Rows meet only in `merge` (at a server) or
`mix` (at a peer, from what it heard). What crosses the wire is what `send` and `local` return.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.errors import real
from fedlap.federation import Federation
from fedlap.models import Batch
from fedlap.work import Work

Stack = Float[Tensor, "client param"]  # the clients at hand, one row each
Everyone = Float[Tensor, "vertex param"]  # all clients, and a server's vertex where there is one
Ids = Int64[Tensor, "client"]


@dataclass(frozen=True, eq=False)
class Rows:
    """New values for some rows of what the server keeps; the others stay."""

    ids: Int64[Tensor, "row"]
    values: Float[Tensor, "row param"]


# What a server or a client keeps between rounds, or sends: a tensor, a tuple of such, or None. Each method
# says in its own signatures which; what a client keeps or sends has clients on its first axis.
State = Any


@runtime_checkable
class Task(Protocol):
    """The work of a stack of clients in one round, on their own training rows."""

    def batches(self) -> Iterator[Batch]:
        """The round's mini-batches; later ones may hold fewer clients, always the first ones of the stack."""
        ...

    def descend(self, w: Stack, batch: Batch, lr: float) -> Stack:
        """w_k ← w_k − lr ∇F̃_k(w_k) for the clients of the batch; the others keep w_k."""
        ...


@runtime_checkable
class Algorithm(Protocol):
    """What every method says of itself."""

    @property
    def lr(self) -> float:
        """μ, the length of a local step."""
        ...

    def aligned(self, clients: Sequence[str]) -> "Algorithm":
        """The same method for clients in this order."""
        ...

    def view(self, federation: Federation) -> Federation:
        """The clients that train, as this method sees them."""
        ...

    def work(self, sampled: int) -> Work:
        """How much each client does in a round in which this many of the federation's clients are sampled."""
        ...

    def begin(self, start: Stack) -> tuple[State, State]:
        """What the server keeps and what each client keeps, before the first round."""
        ...

    def local(self, private: State, down: State, task: Task) -> tuple[State, State]:
        """A client's work: from its private state and what it was told, to both anew."""
        ...

    def penalty(self, server: State, private: State) -> Float[Tensor, ""]:
        """What J(W) adds to the sum of the clients' losses."""
        ...

    def personal(self, server: State, private: State, clients: int) -> Stack:
        """The model that each client is scored with."""
        ...


@runtime_checkable
class ServerAlgorithm(Algorithm, Protocol):
    """A method with a server that samples clients."""

    def send(self, server: State, ids: Ids) -> State:
        """What each sampled client is told."""
        ...

    def merge(self, server: State, ids: Ids, ups: State) -> State:
        """What the server keeps next, or the `Rows` of it that change, from what clients sent."""
        ...


@runtime_checkable
class PeerAlgorithm(Algorithm, Protocol):
    """A method without a server: every client works in every round and hears its neighbours."""

    def hears(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """The neighbours whose models a client receives, and their weights."""
        ...

    def messages(self) -> int:
        """Models sent in a round, over all clients."""
        ...

    def mix(
        self, own: Stack, heard: Float[Tensor, "client heard param"], weights: Float[Tensor, "client heard"]
    ) -> Stack:
        """A peer's next model, from its own and those it heard."""
        ...

    def mix_all(self, W: Stack) -> Stack:
        """`mix` at every client at once."""
        ...


def check_lr(name: str, lr: float) -> None:
    """Refuse a step length that is not a positive number."""
    real(f"{name}: lr", lr, zero=False)
