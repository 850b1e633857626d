"""Rows of all clients, gathered from their shards piece by piece into one table."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from fedlap.algorithms import State
from fedlap.storage.mapped_tensors import allocate_tensor
from fedlap.training.shards.cluster import Cluster
from fedlap.training.shards.messages import slice_rows
from fedlap.training.state import list_tensors, map_state

PIECE_BYTES: Final = 16_000_000  # of rows that a shard sends at a time; large ones are sent one by one

GetArguments = Callable[[int, int], Sequence[Any]]
Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


def allocate_in_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor without values."""
    return torch.empty(shape, dtype=dtype)


class Piece(NamedTuple):
    """Rows of consecutive clients of a shard, and their number, also where they have no state."""

    clients: int
    rows: State


def cut_piece(state: State, first: int, clients: int) -> Piece:
    """Return the rows from one client on: those of at most PIECE_BYTES, of at least one client."""
    row_bytes = sum(tensor[:1].nbytes for tensor in list_tensors(state))
    number = min(clients - first, max(1, PIECE_BYTES // max(1, row_bytes)))
    return Piece(number, slice_rows(state, slice(first, first + number)))


def gather_pieces(
    cluster: Cluster,
    verb: str,
    finished: int,
    shards: Sequence[range],
    get_arguments: GetArguments = lambda shard, first: (),
    allocate: Allocate = allocate_tensor,
) -> State:
    """Return the rows of all clients; this process holds the table and one piece at a time.

    verb: a method of shards, which takes the last finished round, the first client of a piece within the
    shard, and further arguments, and returns a Piece. shards: the clients of each shard. get_arguments: of a
    shard and the first client of a piece.
    """
    table: State = None
    clients = max(part.stop for part in shards)
    at = [part.start for part in shards]
    while calls := [
        (shard, cluster.call(shard, verb, finished, first, *get_arguments(shard, first))[0])
        for shard, part in enumerate(shards)
        if (first := at[shard] - part.start) < len(part)
    ]:
        for shard, reference in calls:
            piece: Piece = cluster.fetch([reference])[0]
            if table is None:
                table = map_state(lambda rows: allocate((clients, *rows.shape[1:]), rows.dtype), piece.rows)
            _write_piece(table, at[shard], piece)
            at[shard] += piece.clients
            del piece  # before the next one arrives
    return table


def _write_piece(table: State, first: int, piece: Piece) -> None:
    """Write the rows of a piece into a table, from a client on."""
    for whole, rows in zip(list_tensors(table), list_tensors(piece.rows), strict=True):
        whole[first : first + piece.clients].copy_(rows)
