"""The runs of a stack, and the clients that each samples in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, ServerAlgorithm
from fedlap.algorithms.server_state import Ids
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.randomness import Draws, derive_keys


@dataclass(frozen=True, eq=False)
class StackedRun:
    """One run of a stack: its method, bound to its clients, and the size of its cohorts."""

    algorithm: Algorithm
    trainees: Federation
    seed: int
    offset: int  # of its first client among the clients of all runs
    cohort_size: int

    @cached_property
    def has_server(self) -> bool:
        """Return whether the method has a server; without one its clients are peers."""
        if isinstance(self.algorithm, ServerAlgorithm | PeerAlgorithm):
            return isinstance(self.algorithm, ServerAlgorithm)
        name = type(self.algorithm).__name__
        raise InputError(
            f"{name} has neither `send` and `merge` nor all that a peer needs, such as `mix` and `receive`; "
            "implement one of the two"
        )

    @property
    def size(self) -> int:
        """Number of clients."""
        return len(self.trainees.clients)

    @property
    def is_sampled(self) -> bool:
        """Return whether a cohort is smaller than the federation."""
        return self.cohort_size < self.size


@dataclass(frozen=True, eq=False)
class ClientSampler:
    """Draws the cohorts of all runs: equal draws once, and draws of equal sizes together."""

    groups: list["SamplingGroup"]
    columns: Ids  # positions of the runs' clients among all draws, one run after another

    @staticmethod
    def of(runs: Sequence[StackedRun]) -> "ClientSampler":
        """Group the runs by what their draws depend on."""
        groups_by_size: dict[tuple[int, int], dict[Any, StackedRun]] = {}
        for run in runs:
            groups_by_size.setdefault((run.size, run.cohort_size), {}).setdefault(_draw_key(run), run)
        first, begin = {}, 0
        for (_, cohort_size), runs_by_key in groups_by_size.items():
            for key in runs_by_key:
                first[key] = begin
                begin += cohort_size
        columns = [torch.arange(run.cohort_size) + first[_draw_key(run)] for run in runs]
        groups = [
            SamplingGroup.of(cohort_size, list(runs_by_key.values()))
            for (_, cohort_size), runs_by_key in groups_by_size.items()
        ]
        return ClientSampler(groups, torch.cat(columns))

    @cached_property
    def values_per_round(self) -> int:
        """Number of values that are drawn or generated per round."""
        return len(self.columns) + sum(group.digests.numel() for group in self.groups if group.is_sampled)

    def draw(self, rounds: range, device: torch.device) -> Int64[Tensor, "round cohort"]:
        """Draw the cohorts of some rounds, one run after another, each in federation order."""
        draws = [group.draw(rounds, device).flatten(1) for group in self.groups]
        return torch.cat(draws, 1).index_select(1, self.columns.to(device))


@dataclass(frozen=True, eq=False)
class SamplingGroup:
    """Draws of equally many clients among equally many."""

    seeds: list[int]
    digests: Int64[Tensor, "draw client"]
    cohort_size: int

    @staticmethod
    def of(cohort_size: int, runs: Sequence[StackedRun]) -> "SamplingGroup":
        """Build a group with one draw per run."""
        digests = torch.stack([run.trainees.digests for run in runs])
        return SamplingGroup([run.seed for run in runs], digests, cohort_size)

    @property
    def is_sampled(self) -> bool:
        """Return whether a cohort is smaller than the federation."""
        return self.cohort_size < self.digests.shape[1]

    def draw(self, rounds: range, device: torch.device) -> Int64[Tensor, "round draw cohort"]:
        """Draw the cohort of each round: the clients with the smallest draws, in federation order."""
        if not self.is_sampled:
            everyone = torch.arange(self.cohort_size, device=device)
            return everyone.expand(len(rounds), len(self.seeds), -1)
        stream = Draws(derive_keys(self.seeds, "sample", rounds, device)).map_keys(
            lambda key: key.unsqueeze(-1)
        )
        keys = stream.keys(self.digests.to(device).expand(len(rounds), -1, -1))
        return keys.topk(self.cohort_size, largest=False, sorted=False).indices.sort().values


def _draw_key(run: StackedRun) -> Any:
    """Return what a run's cohorts depend on; for full cohorts that is the number of clients alone."""
    return (run.seed, run.trainees.clients, run.cohort_size) if run.is_sampled else run.size
