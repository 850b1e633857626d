"""State of several runs in shared tables, so that one operation gathers or scatters the rows of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedlap.algorithms import ClientTable, GatheredRows, RowUpdate, State
from fedlap.algorithms.server_state import Ids
from fedlap.training.state import (
    concatenate_states,
    copy_state,
    gather_lazy_rows,
    rebuild_tuple,
    scatter_rows,
    split_state,
    trim_rows,
)


@dataclass(frozen=True, eq=False)
class CohortIndex:
    """The clients of a cohort, run by run; `order` sorts them into the stack, `inverse` undoes it."""

    ids: Ids  # numbers within each run
    sizes: tuple[int, ...]
    order: Ids | None = None
    inverse: Ids | None = None

    @cached_property
    def ids_per_run(self) -> list[Ids]:
        """The client numbers of each run."""
        return list(self.ids.split(self.sizes))


@dataclass(frozen=True, eq=False)
class SharedTable:
    """One table with the rows of all runs."""

    table: Tensor
    views: list[Tensor]  # the rows of each run
    offsets: Tensor  # the first row of each cohort member's run


class RunTables:
    """Shared tables of runs, with the sizes of their cohorts, for as long as methods update them in place.

    Once a method replaces a table by a new tensor, its rows are gathered run by run.
    """

    def __init__(self, cohort_sizes: Sequence[int]) -> None:
        """Start without tables."""
        self._cohort_sizes = list(cohort_sizes)
        self._shared: dict[int, SharedTable] = {}

    def contiguous_copy(self, states: Sequence[State]) -> list[State]:
        """Copy the states of all runs into shared tables, which replace all earlier ones."""
        self._shared = {}
        return self._copy_into_tables(states)

    def _copy_into_tables(self, states: Sequence[State]) -> list[State]:
        first = states[0]
        if first is None:
            return list(states)
        if isinstance(first, tuple):
            copies = [self._copy_into_tables(parts) for parts in zip(*states, strict=True)]
            return [rebuild_tuple(first, parts) for parts in zip(*copies, strict=True)] or list(states)
        if len(states) == 1 or not first.dim() or len({state.shape[1:] for state in states}) > 1:
            return [copy_state(state) for state in states]
        table = torch.cat(list(states))
        sizes = torch.tensor([len(state) for state in states])
        begin = (sizes.cumsum(0) - sizes).repeat_interleave(torch.tensor(self._cohort_sizes))
        shared = SharedTable(table, list(table.split(sizes.tolist())), begin.to(table.device))
        # The table holds the view, so that no other object can have the same id.
        self._shared[id(shared.views[0])] = shared
        return list(shared.views)

    def _find_shared(self, tables: Sequence[Tensor]) -> SharedTable | None:
        """Return the shared table whose views these tensors are, or None."""
        shared = self._shared.get(id(tables[0]))
        same = shared is not None and all(a is b for a, b in zip(tables, shared.views, strict=True))
        return shared if same else None

    def gather(self, states: Sequence[State], index: CohortIndex) -> State:
        """Gather the inputs of all clients of a cohort, in the order of the stack."""
        first = states[0]
        if first is None:
            return None
        if isinstance(first, tuple):
            return rebuild_tuple(first, (self.gather(parts, index) for parts in zip(*states, strict=True)))
        if isinstance(first, GatheredRows):
            current = all(state.ids is its for state, its in zip(states, index.ids_per_run, strict=True))
            shared = self._find_shared([state.table for state in states]) if current else None
            if shared is not None:
                return shared.table.index_select(0, _reorder(index.ids + shared.offsets, index.order))
        return _reorder(concatenate_states([gather_lazy_rows(state) for state in states]), index.order)

    def scatter(self, states: Sequence[State], index: CohortIndex, rows: State) -> list[State]:
        """Scatter the rows of a cohort, one run after another, into the states of all runs."""
        if rows is None:
            return list(states)
        if isinstance(rows, tuple):
            parts = [self.scatter(s, index, r) for s, r in zip(zip(*states, strict=True), rows, strict=True)]
            return [rebuild_tuple(rows, state) for state in zip(*parts, strict=True)] or list(states)
        shared = self._find_shared(states)
        if shared is not None:
            shared.table.index_copy_(0, index.ids + shared.offsets, rows)
            return list(states)
        rows_per_run = split_state(rows, index.sizes)
        return [
            scatter_rows(ClientTable(s), RowUpdate(ids, trim_rows(r, s))).values
            for s, ids, r in zip(states, index.ids_per_run, rows_per_run, strict=True)
        ]


def _reorder(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows.index_select(0, order)
