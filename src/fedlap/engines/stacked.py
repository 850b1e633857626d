"""All clients at once, as one stack on one device."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import PeerAlgorithm, State
from fedlap.engines.clients import Clients
from fedlap.engines.engine import Function
from fedlap.engines.task import StackTask
from fedlap.scores import Tally


@dataclass(frozen=True, eq=False)
class Stacked:
    """Every operation runs over the client axis."""

    clients: Clients

    def each(self, function: Function, states: tuple[State, ...], task: StackTask) -> State:
        """One call for all."""
        return function(*states, task)

    def mix(
        self, algorithm: PeerAlgorithm, W: Float[Tensor, "client param"]
    ) -> Float[Tensor, "client param"]:
        """One product with the Laplacian."""
        return algorithm.mix_all(W)

    def score(self, W: Float[Tensor, "client param"]) -> tuple[Tally, Tally]:
        """Blocks of clients and rows."""
        everyone = torch.arange(len(W))
        clients = self.clients
        return clients.tally(W, clients.train, everyone), clients.tally(W, clients.test, everyone)
