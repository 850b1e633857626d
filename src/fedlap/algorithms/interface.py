"""What a method is: hyper-parameters and a few pure functions on stacks, one row a client.

`send`, `local` and `personal` never let one row look at another. Rows meet only in `merge` (at a server) or
`mix` (at a peer, from what it heard). What crosses the wire is what `send` and `local` return.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation
from fedlap.errors import real
from fedlap.models import Model

Everyone = Float[Tensor, "vertex param"]  # all clients, and a server's vertex where there is one
One = Float[Tensor, "1 param"]  # a model that all share
Ids = Int64[Tensor, "client"]


@dataclass(frozen=True, eq=False)
class Rows:
    """New values for some rows of what the server keeps; the others stay."""

    ids: Int64[Tensor, "row"]
    values: Float[Tensor, "row ..."]


@dataclass(frozen=True, eq=False)
class Own:
    """Each client's own row of what is kept, read where the client works."""

    table: Float[Tensor, "row ..."]
    ids: Int64[Tensor, "client"]


# What a server or a client keeps between rounds, or sends: a tensor, a tuple of such, or None. Each method
# says in its own signatures which; what a client keeps or sends has clients on its first axis.
State = Any


Kind = Literal["one model", "personal", "multi-task"]
Steadiness = Literal["local", "round"]


@runtime_checkable
class Algorithm(Protocol):
    """What every method says of itself."""

    kind: ClassVar[Kind]
    citation: ClassVar[str]

    @property
    def lr(self) -> float:
        """μ, the length of a local step."""
        ...

    @property
    def local_steps(self) -> int | None:
        """R mini-batch steps a round, or …"""
        ...

    @property
    def local_epochs(self) -> int | None:
        """… R passes over the client's rows."""
        ...

    def begin(self, start: Stack) -> tuple[State, State]:
        """What the server keeps and what each client keeps, before the first round."""
        ...

    def local(self, private: State, down: State, task: Task) -> tuple[State, State]:
        """A client's work: from its private state and what it was told, to both anew."""
        ...

    def personal(self, server: State, private: State, clients: int) -> Stack:
        """The model that each client is scored with."""
        ...


@runtime_checkable
class ServerAlgorithm(Algorithm, Protocol):
    """A method with a server that samples clients."""

    def send(self, server: State, ids: Ids) -> State:
        """What each sampled client is told: made anew, a part of what the server keeps, or `Own` of that."""
        ...

    def merge(self, server: State, ids: Ids, ups: State) -> State:
        """What the server keeps next, or the `Rows` of it that change, from what clients sent.

        What they sent is handed over and may be written to.
        """
        ...


@runtime_checkable
class PeerAlgorithm(Algorithm, Protocol):
    """A method without a server: every client works in every round and hears its neighbours."""

    def hears(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """The neighbours whose models a client receives, and their weights."""
        ...

    @property
    def exchanges(self) -> int:
        """How often, in a round, every client sends to its neighbours."""
        ...

    def messages(self) -> int:
        """Models sent in a round, over all clients."""
        ...

    def mix(
        self,
        exchange: int,
        own: tuple[Stack, ...],
        heard: Float[Tensor, "client heard param"],
        weights: Float[Tensor, "client heard"],
    ) -> tuple[Stack, ...]:
        """What a peer has after the first, second, … exchange, from what it had and heard.

        It begins with its model alone; the first of what it has is sent, and at last its next model.
        """
        ...

    def mix_all(self, W: Stack) -> Stack:
        """All exchanges of a round, at every client at once."""
        ...


# What some methods can do beyond that.


@runtime_checkable
class Steady(Protocol):
    """A method that does the same operations whatever the numbers are: Python looks at no value.

    "local": its local work is so, whichever numbers its real-valued settings are, and uses no graph; several
    runs of it, seeds and such settings, can then work as one stack. "round": sending and merging too; on a
    GPU a round of it can then be recorded once and replayed.
    """

    steady: ClassVar[Steadiness]


@runtime_checkable
class Overwriting(Protocol):
    """A method whose clients, where all of them work, may do so in what is kept and not in a copy of it.

    Its `local` makes steps on its models and nothing else; no `merge` asks then for what these were before.
    """

    overwrites: ClassVar[Literal[True]]


@runtime_checkable
class Suited(Protocol):
    """A method that depends on the clients or the model it is used for."""

    def suited(self, federation: Federation, model: Model) -> Algorithm:
        """The same method for these; refuses what it cannot be used for."""
        ...


@runtime_checkable
class Sampling(Protocol):
    """A method that not every share of the clients suits."""

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Refuse to be run with so few of so many in a round."""
        ...


@runtime_checkable
class Pooling(Protocol):
    """A method that does not train the federation's clients one by one."""

    def view(self, federation: Federation) -> Federation:
        """The clients that train."""
        ...


@runtime_checkable
class Grouping(Protocol):
    """A method whose local step takes several mini-batches."""

    @property
    def batches_per_step(self) -> int:
        """How many."""
        ...


@runtime_checkable
class Penalised(Protocol):
    """A method whose objective is more than the sum of the clients' losses."""

    def penalty(self, server: State, private: State) -> Float[Tensor, ""]:
        """What J(W) adds to that sum."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A method whose personal models are made from what it keeps and each client's training rows."""

    def adapt(self, w: Stack, task: Task) -> Stack:
        """The models that clients are scored with, from those that `personal` gives."""
        ...


@runtime_checkable
class Certified(Protocol):
    """A method that can bound how far it is from its optimum."""

    def gap(self, private: State, w: Stack, task: Task) -> Float[Tensor, "client 1"]:
        """Each client's part of the duality gap, at its own model."""
        ...


def check_work(name: str, lr: float, local_steps: int | None, local_epochs: int | None) -> None:
    """Refuse a step length that is not a positive number, and work that is none."""
    real("lr", lr, zero=False, scope=name)
    LocalWork.of(local_steps, local_epochs)
