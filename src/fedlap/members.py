"""The runs of a stack, and which of their clients work in a round."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, ServerAlgorithm
from fedlap.errors import InputError
from fedlap.federation import Federation
from fedlap.randomness import Draws, draws, keys_of

Ids = Int64[Tensor, "_"]  # of some clients


@dataclass(frozen=True, eq=False)
class Member:
    """One run of a stack: its method, made ready for its clients, and how many of them work in a round."""

    algorithm: Algorithm
    trainees: Federation
    seed: int
    begin: int  # where its clients begin among those of all runs
    working: int

    @cached_property
    def served(self) -> bool:
        """Whether it has a server."""
        if isinstance(self.algorithm, ServerAlgorithm | PeerAlgorithm):
            return isinstance(self.algorithm, ServerAlgorithm)
        name = type(self.algorithm).__name__
        raise InputError(f"{name} has neither `send` and `merge` nor `mix`; write either")

    @property
    def size(self) -> int:
        """How many clients it has."""
        return len(self.trainees.clients)

    @property
    def sampled(self) -> bool:
        """Whether not all of them work in every round."""
        return self.working < self.size

    def chosen(self, round: int) -> Ids:
        """Its clients of a round, in their order in the federation."""
        return sampled(self.trainees, self.seed, round, self.working)


def sampled(federation: Federation, seed: int, round: int, number: int) -> Ids:
    """The clients of a round: those with the smallest draws, in their order in the federation."""
    if number == len(federation.clients):
        return torch.arange(number)
    keys = draws(seed, "sample", round).keys(federation.digests)
    return keys.topk(number, largest=False, sorted=False).indices.sort().values


def sampled_on(device: torch.device, member: Member, rounds: range) -> Int64[Tensor, "round client"]:
    """The same for several rounds, drawn on a device."""
    if not member.sampled:
        return torch.arange(member.size, device=device).expand(len(rounds), -1)
    stream = Draws(keys_of([member.seed], "sample", rounds, device))
    keys = stream.keys(member.trainees.digests.to(device).expand(len(rounds), -1))
    return keys.topk(member.working, largest=False, sorted=False).indices.sort().values
