"""One client at a time: the plain reference that every faster engine is held against."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import PeerAlgorithm, State
from fedlap.engines.clients import Clients
from fedlap.engines.engine import Function
from fedlap.engines.state import joined, rows
from fedlap.engines.task import StackTask
from fedlap.parts import Part
from fedlap.scores import Tally


@dataclass(frozen=True, eq=False)
class OneByOne:
    """Every client is a stack of one, as it would be on a machine of its own."""

    clients: Clients

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

    def _tally(self, W: Tensor, part: Part) -> Tally:
        each = [self.clients.tally(W[k : k + 1], part, torch.tensor([k])) for k in range(len(W))]
        hits = [tally.hits for tally in each if tally.hits is not None]
        loss, count = (torch.cat(v) for v in ([t.loss for t in each], [t.count for t in each]))
        return Tally(loss, torch.cat(hits) if hits else None, count)
