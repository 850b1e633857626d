"""Engines: how the local work of a round is executed.

`OneByOneEngine` is the plain reference; `StackedEngine` is the fast one, and tests hold it to the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import PeerAlgorithm, State
from fedlap.data.client_rows import ClientRows
from fedlap.training.placement import PlacedClients
from fedlap.training.scores import Tally
from fedlap.training.state import concatenate_states, gather_rows
from fedlap.training.task import StackTask

ClientFunction = Callable[..., State]  # of rows of states, and a task


@runtime_checkable
class Engine(Protocol):
    """Executes the work of clients; algorithms know nothing of devices or processes."""

    @property
    def clients(self) -> PlacedClients:
        """The clients whose work the engine executes."""
        ...

    def map_clients(self, function: ClientFunction, states: tuple[State, ...], task: StackTask) -> State:
        """Apply a function of one client to every client's rows of the states and its task.

        The function may overwrite the states.
        """
        ...

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """Return each peer's next model, from its model and those of its neighbours."""
        ...

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """Tally each client's model on its training rows and on its test rows."""
        ...


@dataclass(frozen=True, eq=False)
class OneByOneEngine:
    """Every client is a stack of one, as it would be on a separate machine."""

    clients: PlacedClients

    def map_clients(self, function: ClientFunction, states: tuple[State, ...], task: StackTask) -> State:
        """Call the function client by client."""
        results = []
        for place in range(len(task.cohort.max_count)):
            at = torch.tensor([place], device=self.clients.device)
            results.append(function(*(gather_rows(state, at) for state in states), task.select_client(place)))
        return concatenate_states(results)

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """Mix peer by peer, from the models of its neighbours alone."""
        neighbours = [algorithm.in_neighbours(place) for place in range(len(W))]
        held: list[tuple[Tensor, ...]] = [(W[place : place + 1],) for place in range(len(W))]
        for exchange in range(algorithm.exchanges):
            sent = torch.cat([tensors[0] for tensors in held])
            held = [
                algorithm.mix(exchange, tensors, sent[ids.to(W.device)].unsqueeze(0), a.to(W).unsqueeze(0))
                for tensors, (ids, a) in zip(held, neighbours, strict=True)
            ]
        return torch.cat([tensors[0] for tensors in held])

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """Tally client by client."""
        return self._tally(W, self.clients.train), self._tally(W, self.clients.test)

    def _tally(self, W: Tensor, client_rows: ClientRows) -> Tally:
        tallies = [self.clients.tally(W[k : k + 1], client_rows, torch.tensor([k])) for k in range(len(W))]
        hits = [tally.hits for tally in tallies if tally.hits is not None]
        loss, count = (torch.cat(v) for v in ([t.loss for t in tallies], [t.count for t in tallies]))
        return Tally(loss, torch.cat(hits) if hits else None, count)


@dataclass(frozen=True, eq=False)
class StackedEngine:
    """Every operation runs over the client axis."""

    clients: PlacedClients

    def map_clients(self, function: ClientFunction, states: tuple[State, ...], task: StackTask) -> State:
        """Call the function once for all clients."""
        return function(*states, task)

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """Mix all peers by one product with the Laplacian."""
        return algorithm.mix_all(W)

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """Tally all clients in one call, or in blocks of clients and rows."""
        return self._tally(W, self.clients.train), self._tally(W, self.clients.test)

    def _tally(self, W: Float[Tensor, "client param"], client_rows: ClientRows) -> Tally:
        fused = self.clients.fused
        tally = None if fused is None else fused.tally(W, client_rows)
        return self.clients.tally(W, client_rows, torch.arange(len(W))) if tally is None else tally


ENGINES: Final[dict[str, Callable[[PlacedClients], Engine]]] = {
    "stacked": StackedEngine,
    "one_by_one": OneByOneEngine,
}
