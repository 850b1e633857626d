"""The runs of a stack, and which of their clients work in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, ServerAlgorithm
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.randomness import Draws, keys_of

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


@dataclass(frozen=True, eq=False)
class ClientSampler:
    """How the clients of all runs are drawn: runs that draw alike do so once, those of one size together."""

    groups: list["Group"]
    columns: Ids  # where, among all that is drawn, each run's clients are, one run after another

    @staticmethod
    def of(members: Sequence[Member]) -> "ClientSampler":
        """Those of these runs."""
        alike: dict[tuple[int, int], dict[Any, Member]] = {}
        for member in members:
            alike.setdefault((member.size, member.working), {}).setdefault(_lot(member), member)
        first, begin = {}, 0
        for (_, working), lots in alike.items():
            for lot in lots:
                first[lot] = begin
                begin += working
        columns = [torch.arange(member.working) + first[_lot(member)] for member in members]
        groups = [Group.of(working, list(lots.values())) for (_, working), lots in alike.items()]
        return ClientSampler(groups, torch.cat(columns))

    @cached_property
    def numbers(self) -> int:
        """How many are drawn or made in a round."""
        return len(self.columns) + sum(group.digests.numel() for group in self.groups if group.sampled)

    def drawn(self, rounds: range, device: torch.device) -> Int64[Tensor, "round working"]:
        """Who works in these rounds, run after run, a run's in their order in the federation."""
        each = [group.drawn(rounds, device).flatten(1) for group in self.groups]
        return torch.cat(each, 1).index_select(1, self.columns.to(device))


@dataclass(frozen=True, eq=False)
class Group:
    """Draws of as many clients each, among as many."""

    seeds: list[int]
    digests: Int64[Tensor, "lot client"]
    working: int

    @staticmethod
    def of(working: int, members: Sequence[Member]) -> "Group":
        """Those of these runs, one a run."""
        digests = torch.stack([member.trainees.digests for member in members])
        return Group([member.seed for member in members], digests, working)

    @property
    def sampled(self) -> bool:
        """Whether not all of them work in every round."""
        return self.working < self.digests.shape[1]

    def drawn(self, rounds: range, device: torch.device) -> Int64[Tensor, "round lot working"]:
        """The clients of each round: those with the smallest draws, in their order in the federation."""
        if not self.sampled:
            everyone = torch.arange(self.working, device=device)
            return everyone.expand(len(rounds), len(self.seeds), -1)
        stream = Draws(keys_of(self.seeds, "sample", rounds, device)).mapped(lambda key: key.unsqueeze(-1))
        keys = stream.keys(self.digests.to(device).expand(len(rounds), -1, -1))
        return keys.topk(self.working, largest=False, sorted=False).indices.sort().values


def _lot(member: Member) -> Any:
    """What a run's draws depend on: all of it where only some work, else how many there are."""
    return (member.seed, member.trainees.clients, member.working) if member.sampled else member.size
