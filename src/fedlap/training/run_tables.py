"""What several runs keep, laid out so that the rows of all are read and written at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.algorithms import Own, Rows, State
from fedlap.training.state import cut, joined, owned, pieces, read, written

Ids = Int64[Tensor, "_"]  # of some clients


@dataclass(frozen=True, eq=False)
class Places:
    """Who works, one run after another; `order` sorts them into the stack, `back` undoes it."""

    everyone: Ids  # numbers of each run's own
    sizes: tuple[int, ...]
    order: Ids | None = None
    back: Ids | None = None

    @cached_property
    def ids(self) -> list[Ids]:
        """The same run by run."""
        return list(self.everyone.split(self.sizes))


@dataclass(frozen=True, eq=False)
class Shared:
    """A table of all runs, in which each has rows of its own."""

    table: Tensor
    own: list[Tensor]  # each run's rows
    shift: Tensor  # where a run's rows begin, once for each of its clients that work


class RunTables:
    """The tables of runs of which so many clients work in a round, for as long as they write into them.

    A method that makes a table anew leaves the pool: its rows are then read run by run.
    """

    def __init__(self, working: Sequence[int]) -> None:
        """With nothing in it."""
        self._working = list(working)
        self._shared: dict[int, Shared] = {}

    def laid(self, states: Sequence[State]) -> list[State]:
        """A copy of what the runs keep, in tables that they share; it takes the place of all before."""
        self._shared = {}
        return self._laid(states)

    def _laid(self, states: Sequence[State]) -> list[State]:
        first = states[0]
        if first is None:
            return list(states)
        if isinstance(first, tuple):
            each = [self._laid(parts) for parts in zip(*states, strict=True)]
            return list(zip(*each, strict=True)) if each else list(states)
        if len(states) == 1 or not first.dim() or len({state.shape[1:] for state in states}) > 1:
            return [owned(state) for state in states]
        table = torch.cat(list(states))
        sizes = torch.tensor([len(state) for state in states])
        begin = (sizes.cumsum(0) - sizes).repeat_interleave(torch.tensor(self._working))
        shared = Shared(table, list(table.split(sizes.tolist())), begin.to(table.device))
        self._shared[id(shared.own[0])] = shared  # which it holds, so that nothing else has this number
        return list(shared.own)

    def _of(self, tables: Sequence[Tensor]) -> Shared | None:
        """The table that these are the rows of, if they are."""
        shared = self._shared.get(id(tables[0]))
        same = shared is not None and all(a is b for a, b in zip(tables, shared.own, strict=True))
        return shared if same else None

    def read(self, states: Sequence[State], places: Places) -> State:
        """What the clients of all runs keep or are told, in the order of the stack."""
        first = states[0]
        if first is None:
            return None
        if isinstance(first, tuple):
            return tuple(self.read(parts, places) for parts in zip(*states, strict=True))
        if isinstance(first, Own):
            asked = all(state.ids is its for state, its in zip(states, places.ids, strict=True))
            shared = self._of([state.table for state in states]) if asked else None
            if shared is not None:
                return shared.table.index_select(0, _ordered(places.everyone + shared.shift, places.order))
        return _ordered(joined([read(state) for state in states]), places.order)

    def put(self, states: Sequence[State], places: Places, rows: State) -> list[State]:
        """What all runs keep, with these rows, one run after another, in the place of old ones."""
        if rows is None:
            return list(states)
        if isinstance(rows, tuple):
            each = [self.put(s, places, r) for s, r in zip(zip(*states, strict=True), rows, strict=True)]
            return list(zip(*each, strict=True)) if each else list(states)
        shared = self._of(states)
        if shared is not None:
            shared.table.index_copy_(0, places.everyone + shared.shift, rows)
            return list(states)
        own = pieces(rows, places.sizes)
        return [written(s, Rows(ids, cut(r, s))) for s, ids, r in zip(states, places.ids, own, strict=True)]


def _ordered(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows.index_select(0, order)
