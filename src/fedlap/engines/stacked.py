"""All clients at once, as one stack on one device."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import PeerAlgorithm, State
from fedlap.engines.clients import Clients
from fedlap.engines.engine import Function
from fedlap.engines.task import StackTask
from fedlap.parts import Part
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
        """All clients with one call, or blocks of clients and rows."""
        return self._tally(W, self.clients.train), self._tally(W, self.clients.test)

    def _tally(self, W: Float[Tensor, "client param"], part: Part) -> Tally:
        fused = self.clients.fused
        made = None if fused is None else fused.tallied(W, part)
        return self.clients.tally(W, part, torch.arange(len(W))) if made is None else made
