"""The protocol of a method: hyper-parameters and a few pure functions on stacks, with one row per client.

`send`, `local` and `personal_models` treat every row by itself. Rows meet only in `merge` (at a server) or
in `mix` (at a peer, from the models it received). Only the values that `send` and `local` return cross the
wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import Ids
from fedlap.algorithms.task import Task
from fedlap.data.federation import Federation
from fedlap.data.roster import Roster
from fedlap.errors import InputError, UnsuitedError, check_number
from fedlap.graph import Graph
from fedlap.graph.extension import Extension
from fedlap.models import Model
from fedlap.models.model import Stack

# State between rounds, or a message: a tensor, a ClientTable, a tuple of states (best a NamedTuple), or None.
# The signatures of each method give the exact type. Private state and messages have clients on their first
# axis.
State = Any

States = tuple[State, ...]  # a peer's private state first, then what it needs between two exchanges
ReceivedModels = Float[Tensor, "client heard param"]  # of each peer's neighbours
ReceivedWeights = Float[Tensor, "client heard"]

Kind = Literal["one model", "personal", "multi-task"]
MergePlace = Literal["server", "sum", "neighbours"]


@dataclass(frozen=True)
class Traits:
    """Facts about a method that an engine must know.

    kind: how many models the method trains, and whether they are related.
    static: the part of a method in which no tensor value decides in Python which operations run.
        "local": this holds for `local`, for any value of the real-valued settings, and `local` uses no graph.
        Several runs that differ in seeds and in such settings can then train as one stack.
        "round": it holds for `send` and `merge` as well. A GPU can then capture a round once and replay it.
    reads_old_rows: False if `local` only passes its model to one `task.run`, and `merge` never reads the old
        models of clients that trained. Clients may then train in place in the stored models.
    has_lr: False if local steps have no length; `lr` is then another number.
    merges: where rows meet. "server": where all of them are. "sum": there, but `merge` needs no more than a
        weighted sum of the uploads. Their `combine` returns one row that counts as all of them, so that
        workers send one row per block of clients.
        "neighbours": at every client, from the rows of its neighbours on the graph alone. The server state is
        then `ClientModels`, of which `merge` reads the old models of neighbours that did not train, and the
        penalty is a sum over edges. Clients on several machines can then merge where they are
        (`find_merge_place`). No process has all models in memory: checkpoints and results map them.
    """

    kind: Kind
    static: Literal["nothing", "local", "round"] = "nothing"
    reads_old_rows: bool = True
    has_lr: bool = True
    merges: MergePlace = "server"

    @property
    def is_stackable(self) -> bool:
        """Return whether several runs can train as one stack."""
        return self.static != "nothing"

    @property
    def is_capturable(self) -> bool:
        """Return whether a GPU can capture a round and replay it."""
        return self.static == "round"


@runtime_checkable
class Algorithm(Protocol):
    """A method: its traits, its citation, its local settings and the functions that every method has."""

    traits: ClassVar[Traits]
    citation: ClassVar[str]

    @property
    def lr(self) -> float:
        """μ, the length of a local step."""
        ...

    @property
    def local_steps(self) -> int | None:
        """R mini-batch steps per round, or …"""
        ...

    @property
    def local_epochs(self) -> int | None:
        """… R passes over the client's rows."""
        ...

    def init_server(self, start: Stack) -> State:
        """Return the server state before the first round, from the clients' start models."""
        ...

    def init_clients(self, start: Stack, counts: Int64[Tensor, "client"]) -> State:
        """Return the private state of clients with these numbers of training rows before the first round."""
        ...

    def local(self, private: State, down: State, task: Task) -> tuple[State, State]:
        """Run the local work of a round and return the new private state and the upload.

        private: the private state of the clients at hand. down: the message that `send` returned for them.
        Both stay unchanged.
        """
        ...

    def personal_models(self, server: State, private: State, clients: int) -> Stack:
        """Return the model that each client is scored with."""
        ...


@runtime_checkable
class ServerAlgorithm(Algorithm, Protocol):
    """A method with a server, which samples clients."""

    def send(self, server: State, ids: Ids) -> State:
        """Return the message to each sampled client: a stack, a view of the state, or rows of a table."""
        ...

    def merge(self, server: State, ids: Ids, up: State) -> State:
        """Return the next server state from the clients' uploads; a `ClientTable` changes by `with_rows`.

        The method owns the uploads.
        """
        ...


@runtime_checkable
class PeerAlgorithm(Algorithm, Protocol):
    """A method without a server: every client trains in every round and hears from its neighbours.

    The neighbours of a peer know one model of it, its public model. At first it is the one of `init_clients`,
    and `receive` returns the next one from every message of the peer. The upload of `local` is the message of
    the first exchange; those of later exchanges are public models.
    """

    def public_models(self, private: State) -> Stack:
        """Return what neighbours know of clients with this private state, once they have its message."""
        ...

    def receive(self, known: Stack, message: State) -> Stack:
        """Return a peer's public model after a message, from the one before; check the message.

        The result depends on the peer's messages alone: all its neighbours have the same bits, those of the
        peer's `public_models`. A neighbour that missed a message can therefore be sent the public model.
        """
        ...

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of the neighbours whose models a client receives, and their weights."""
        ...

    @property
    def exchanges(self) -> int:
        """Number of times per round that every client sends to its neighbours."""
        ...

    def count_messages(self) -> int:
        """Count the messages sent per round, over all clients; all have the size of the first."""
        ...

    def mix(
        self,
        exchange: int,
        state: tuple[State, ...],
        received: ReceivedModels,
        weights: ReceivedWeights,
    ) -> tuple[State, ...]:
        """Return a peer's state after an exchange, from its state before and its neighbours' public models.

        Exchanges count from 0. Before the first one the state is the peer's private state alone. The first
        entry is always a private state, and after the last exchange it is the peer's next one.
        """
        ...

    def mix_all(self, private: State) -> State:
        """Return the private state of all clients after all exchanges of a round."""
        ...


# Abilities that only some methods have.


@runtime_checkable
class Binding(Protocol):
    """A method that depends on the clients or the model it is used for."""

    def bind(self, roster: Roster, model: Model) -> Algorithm:
        """Return the method for these clients and this model; raise InputError if it cannot be used."""
        ...


@runtime_checkable
class Sampling(Protocol):
    """A method that restricts how many clients may be sampled."""

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Raise InputError if the method cannot run with `sampled` of `clients` clients per round."""
        ...


@runtime_checkable
class PartlyStatic(Protocol):
    """A method whose traits overstate what is static on some graphs."""

    @property
    def is_static(self) -> bool:
        """True if the traits hold for its graph, so that a round can be captured."""
        ...


@runtime_checkable
class Pooling(Protocol):
    """A method that does not train the federation's clients one by one."""

    def view(self, federation: Federation) -> Federation:
        """Return the federation of the clients that train."""
        ...


@runtime_checkable
class Grouping(Protocol):
    """A method whose local step uses several mini-batches."""

    @property
    def batches_per_step(self) -> int:
        """Number of mini-batches per local step."""
        ...


@runtime_checkable
class Penalised(Protocol):
    """A method whose objective is more than the sum of the clients' losses."""

    def penalty(self, server: State, private: State) -> Float[Tensor, ""]:
        """Return the term that J(W) adds to this sum."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A method whose personal models depend on its state and on each client's training rows."""

    def adapt(self, w: Stack, task: Task) -> Stack:
        """Return the models that clients are scored with, from the result of `personal_models`."""
        ...


@runtime_checkable
class FineTuning(Protocol):
    """A method whose models clients may fine-tune on their training rows before they are scored."""

    @property
    def fine_tune_steps(self) -> int | None:
        """Number of full gradient steps of length μ; None is 0."""
        ...


@runtime_checkable
class Certified(Protocol):
    """A method that can bound its distance from the optimum."""

    def gap(self, private: State, w: Stack, task: Task) -> Float[Tensor, "client 1"]:
        """Return each client's part of the duality gap, at its model in `w`."""
        ...


@runtime_checkable
class GraphLearning(Protocol):
    """A method that learns the graph between its clients."""

    @staticmethod
    def learned_graph(server: State, clients: Sequence[str] | None = None) -> Graph:
        """Return the current graph of a server state, which may be the plain tuple of a checkpoint."""
        ...


@runtime_checkable
class Analysed(Protocol):
    """A method that the convergence theorems are about."""

    def list_departures(self, share: float) -> list[str]:
        """Return the assumptions that the method violates if this share of clients is sampled per round."""
        ...


@runtime_checkable
class Splitting(Protocol):
    """A method that may keep some parameters of a model at its client, and the others at the server."""

    @property
    def has_private_parameters(self) -> bool:
        """True if a client's model needs its private state and its rows of the server's tables."""
        ...


@runtime_checkable
class Passing(Protocol):
    """A method that moves unsampled clients by an extension of the sampled clients' steps."""

    @property
    def extension(self) -> Extension:
        """The extension of steps along the graph."""
        ...


def list_settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return the hyper-parameters of a method by name; a field `_name` is set by `bind` and is none."""
    if not is_dataclass(algorithm):
        return dict(vars(algorithm))
    names = [field.name for field in fields(algorithm) if not field.name.startswith("_")]
    return {name: getattr(algorithm, name) for name in names}


def check_local_work(name: str, lr: float, local_steps: int | None, local_epochs: int | None) -> None:
    """Raise InputError unless `lr` is a positive number and the local work is at least one step or epoch."""
    check_number("lr", lr, zero=False, scope=name)
    LocalWork.of(local_steps, local_epochs)


def check_choice(name: str, value: object, choices: Sequence[str], scope: str) -> None:
    """Raise InputError unless a setting is one of the choices."""
    if value not in choices:
        raise InputError(
            f"{name} = {value!r}; use {' or '.join(map(repr, choices))}", field=name, scope=scope
        )


def check_share(name: str, value: float, *, zero: bool, scope: str) -> None:
    """Raise InputError unless a setting is a number from 0, or above 0 unless `zero`, to 1."""
    if check_number(name, value, zero=zero, scope=scope) > 1:
        raise InputError(f"{name} = {value:g}; expected a number of at most 1", field=name, scope=scope)


def check_idle_probability(name: str, value: float, *, zero: bool, scope: str) -> None:
    """Raise InputError unless a setting, the probability that clients do not train, is below 1."""
    if check_number(name, value, zero=zero, scope=scope) >= 1:
        raise InputError(
            f"{name} = {value:g}; expected a number below 1 (at 1 no client trains)", field=name, scope=scope
        )


def check_no_server_vertex(
    graph: Graph, problem: str, scope: str, error: type[InputError] = InputError
) -> None:
    """Raise this error if the graph has a server vertex; the message ends in the problem and its remedy."""
    if graph.server:
        raise error(f"the graph has a server vertex, {problem}", scope=scope)


def check_equal_weights(roster: Roster, scope: str) -> None:
    """Raise UnsuitedError if the rows of a client have different weights."""
    if roster.is_weighted:
        raise UnsuitedError(
            "the dual is that of rows with equal weights; remove the weights, or use fedu", scope=scope
        )
