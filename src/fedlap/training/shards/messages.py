"""Rows of states on their way between processes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import GatheredRows, State
from fedlap.algorithms.server_state import Ids
from fedlap.training.state import list_tensors, map_state


@dataclass(frozen=True, eq=False)
class RepeatedRow:
    """A row that is equal for all clients, and is sent once."""

    row: Tensor

    def expand(self, clients: int) -> Tensor:
        """Return one row per client, which share memory."""
        return self.row.expand(clients, *self.row.shape[1:])


def cut_rows(state: State, rows: slice, copies: bool = True) -> State:
    """Return consecutive rows of a message or a stack, with rows to gather gathered.

    copies: False for a view of rows that need not be gathered, where no copy in memory is wanted.
    """

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, GatheredRows):
            return leaf.table.index_select(0, leaf.ids[rows])
        if leaf.stride(0) == 0:
            return RepeatedRow(leaf[:1].clone())
        return leaf[rows].clone() if copies else leaf[rows]

    return map_state(cut, state)


def expand_rows(state: State, clients: int) -> State:
    """Return the rows that `cut_rows` cut, one per client."""
    return map_state(lambda leaf: leaf.expand(clients) if isinstance(leaf, RepeatedRow) else leaf, state)


def slice_rows(state: State, rows: slice) -> State:
    """Return a view of consecutive rows."""
    return map_state(lambda leaf: leaf[rows], state)


class Change(NamedTuple):
    """The rows of a shard that a round has changed."""

    round: int
    ids: Ids  # within the shard, ascending
    private: State
    models: (
        Float[Tensor, "client param"] | None
    )  # the clients' rows of the server's models, if the shard has them

    def count_bytes(self) -> int:
        """Return the size of the rows."""
        return sum(tensor.nbytes for tensor in list_tensors((self.private, self.models)))


class ShardState(NamedTuple):
    """The state of a shard after a round, from which it continues."""

    round: int
    private: State
    models: Float[Tensor, "client param"] | None


@dataclass(frozen=True, eq=False)
class SentRows:
    """Rows of clients, with the clients' numbers within the federation, ascending."""

    ids: Ids
    rows: State

    def gather(self, ids: Ids) -> State:
        """Return the rows of some of the clients."""
        places = torch.searchsorted(self.ids, ids)
        return map_state(lambda rows: rows.index_select(0, places), self.rows)
