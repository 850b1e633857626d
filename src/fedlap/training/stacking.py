"""Several runs of one method as one method: seeds and settings are further blocks of the same client axis."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedlap.algorithms import Algorithm, State, Traits
from fedlap.algorithms.server_state import Ids
from fedlap.training.branches import run_in_branches
from fedlap.training.client_sampling import StackedRun
from fedlap.training.run_tables import CohortIndex
from fedlap.training.state import copy_aliases


@dataclass(frozen=True, eq=False)
class ManyRuns:
    """Runs of one method, with its verbs. States, ids and messages are sequences over runs.

    Each run sends and merges by itself; only local work is shared.

    replay: a function that replays the captured merges of all runs, if there is one.
    """

    runs: Sequence[StackedRun]
    replay: Callable[..., list[State]] | None = None

    @property
    def traits(self) -> Traits:
        """The traits of the method."""
        return self.runs[0].algorithm.traits

    @property
    def has_server(self) -> bool:
        """Return whether the method has a server; without one its clients are peers."""
        return self.runs[0].has_server

    def send(self, server: Sequence[State], ids: Sequence[Any]) -> list[State]:
        """Return the messages to the sampled clients of each run."""
        runs: Any = zip(self.runs, server, ids, strict=True)
        return [run.algorithm.send(state, sampled) for run, state, sampled in runs]

    def merge(self, server: Sequence[State], ids: Sequence[Any], up: Sequence[State]) -> list[State]:
        """Return the next server state of each run, from its uploads."""
        if self.replay is not None:
            return self.replay(server, ids, up)
        if len(self.runs) == 1:
            return [_merge_run(self.runs[0], server[0], ids[0], up[0])]
        runs = zip(self.runs, server, ids, up, strict=True)
        return run_in_branches([partial(_merge_run, *run) for run in runs])

    def personal_models(
        self, server: Sequence[State], private: Sequence[State], clients: Sequence[int]
    ) -> list[Tensor]:
        """Return the models that the clients of each run are scored with."""
        runs = zip(self.runs, server, private, clients, strict=True)
        return [run.algorithm.personal_models(*states) for run, *states in runs]

    def share_settings(self, index: CohortIndex, like: Tensor, device: torch.device) -> Algorithm:
        """Return one method for the local work of all runs.

        Real-valued settings that differ between runs become one number per client of the cohort, with the
        dtype and first the device of `like`; others, such as the graph, become None: only a server uses them.
        """
        first = self.runs[0].algorithm
        if not self._differing:
            return first
        # This copy is the one place that sets fields which the method's own checks would reject.
        shared = object.__new__(type(first))
        shared.__dict__.update(vars(first))
        for name, values in self._differing.items():
            real = all(isinstance(value, float | int) for value in values)
            column = _expand_setting(values, index, like).to(device) if real else None
            shared.__dict__[name] = column
        return shared

    @cached_property
    def _differing(self) -> dict[str, list[Any]]:
        """The settings in which the runs differ, with the values of all runs."""
        if len(self.runs) == 1:
            return {}
        algorithms = [run.algorithm for run in self.runs]
        settings = {
            field.name: [getattr(a, field.name) for a in algorithms]
            for field in fields(algorithms[0])  # type: ignore[arg-type]
        }
        return {name: values for name, values in settings.items() if any(v != values[0] for v in values)}


def _merge_run(run: StackedRun, server: State, ids: Ids, up: State) -> State:
    algorithm: Any = run.algorithm
    return copy_aliases(algorithm.merge(server, ids, up), up)


def _expand_setting(values: Sequence[float], index: CohortIndex, like: Tensor) -> Tensor:
    """Repeat the value of each run for each of its clients, in the order of the stack."""
    numbers = torch.tensor(values, dtype=torch.float64)
    column = torch.repeat_interleave(numbers, torch.tensor(index.sizes)).unsqueeze(1).to(like)
    return column if index.order is None else column[index.order]
