"""Engines: where the clients' work of a round runs.

`OneByOne` is the plain reference; `Stacked` is the fast one and is held to it by tests.
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
from fedlap.training.state import joined, rows
from fedlap.training.task import StackTask

Function = Callable[..., State]  # of rows of states, and a task


@runtime_checkable
class Engine(Protocol):
    """Runs clients' work; algorithms know nothing of devices or processes."""

    @property
    def clients(self) -> PlacedClients:
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


@dataclass(frozen=True, eq=False)
class OneByOne:
    """Every client is a stack of one, as it would be on a machine of its own."""

    clients: PlacedClients

    def each(self, function: Function, states: tuple[State, ...], task: StackTask) -> State:
        """A loop over clients."""
        made = []
        for place in range(len(task.cohort.most)):
            at = torch.tensor([place], device=self.clients.device)
            made.append(function(*(rows(state, at) for state in states), task.alone(place)))
        return joined(made)

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """Each peer by itself, from the models of its neighbours alone."""
        hears = [algorithm.hears(place) for place in range(len(W))]
        own: list[tuple[Tensor, ...]] = [(W[place : place + 1],) for place in range(len(W))]
        for exchange in range(algorithm.exchanges):
            sent = torch.cat([each[0] for each in own])
            own = [
                algorithm.mix(exchange, each, sent[near.to(W.device)].unsqueeze(0), a.to(W).unsqueeze(0))
                for each, (near, a) in zip(own, hears, strict=True)
            ]
        return torch.cat([each[0] for each in own])

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """A loop over clients."""
        return self._tally(W, self.clients.train), self._tally(W, self.clients.test)

    def _tally(self, W: Tensor, part: ClientRows) -> Tally:
        each = [self.clients.tally(W[k : k + 1], part, torch.tensor([k])) for k in range(len(W))]
        hits = [tally.hits for tally in each if tally.hits is not None]
        loss, count = (torch.cat(v) for v in ([t.loss for t in each], [t.count for t in each]))
        return Tally(loss, torch.cat(hits) if hits else None, count)


@dataclass(frozen=True, eq=False)
class Stacked:
    """Every operation runs over the client axis."""

    clients: PlacedClients

    def each(self, function: Function, states: tuple[State, ...], task: StackTask) -> State:
        """One call for all."""
        return function(*states, task)

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """One product with the Laplacian."""
        return algorithm.mix_all(W)

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """All clients with one call, or blocks of clients and rows."""
        return self._tally(W, self.clients.train), self._tally(W, self.clients.test)

    def _tally(self, W: Float[Tensor, "client param"], part: ClientRows) -> Tally:
        fused = self.clients.fused
        made = None if fused is None else fused.tallied(W, part)
        return self.clients.tally(W, part, torch.arange(len(W))) if made is None else made


ENGINES: Final[dict[str, Callable[[PlacedClients], Engine]]] = {"stacked": Stacked, "one_by_one": OneByOne}
