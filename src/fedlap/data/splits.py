"""Choose test rows and folds: at random, by time, or by groups of rows that stay together."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from fedlap.data.client_rows import ClientRows, concatenate_ranges
from fedlap.randomness import Draws, draws

SplitName = Literal["random", "time"]
RowMask = Bool[Tensor, "row"]


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The rows to split, client by client: their positions in the store, and the clients' digests."""

    row: Int64[Tensor, "row"]
    count: Int64[Tensor, "client"]
    clients: Int64[Tensor, "client"]

    @property
    def owner(self) -> Int64[Tensor, "row"]:
        """The index of each row's client."""
        return torch.arange(len(self.count)).repeat_interleave(self.count)


@dataclass(frozen=True)
class RandomSplit:
    """Rows are drawn one by one, by the seed and the client's name."""

    def draw_test(self, rows: SplitRows, test_share: float, seed: int) -> RowMask:
        """Draw ⌊share·n + ½⌋ of each client's n rows."""
        return draw_test_rows(rows.clients, rows.count, test_share, seed)

    def draw_fold(self, rows: SplitRows, number: int, held_out: int, seed: int) -> tuple[RowMask, RowMask]:
        """Split each client's rows into folds of nearly equal sizes; a single row always trains."""
        count, stream = rows.count, draws(seed, "fold")
        fold_of_row = torch.empty_like(rows.row)
        first = count.cumsum(0) - count
        order = first.repeat_interleave(count) + stream.permutations(rows.clients, 1, count)
        # Clients begin at different folds, so that small clients do not all leave the same folds empty.
        begin = stream.keys(rows.clients) % number
        fold_of_row[order] = concatenate_ranges(begin, count) % number
        is_test = (fold_of_row == held_out) & (count > 1).repeat_interleave(count)
        return ~is_test, is_test


@dataclass(frozen=True, eq=False)
class TimeSplit:
    """The last rows of each client are test rows; rows of equal time are ordered as in the table."""

    time: Float64[Tensor, "stored"]

    def draw_test(self, rows: SplitRows, test_share: float, seed: int) -> RowMask:
        """Return the last ⌊share·n + ½⌋ of each client's n rows."""
        return self._rank(rows) >= (rows.count - _count_test_rows(rows.count, test_share))[rows.owner]

    def draw_fold(self, rows: SplitRows, number: int, held_out: int, seed: int) -> tuple[RowMask, RowMask]:
        """Split each client's rows by time into `number` + 1 blocks, and hold out block `held_out` + 1.

        Only the blocks before the held-out block train, so that no model is validated on its past.
        """
        block = self._rank(rows) * (number + 1) // rows.count[rows.owner]
        return block <= held_out, block == held_out + 1

    def _rank(self, rows: SplitRows) -> Int64[Tensor, "row"]:
        """Return the place of each row among the rows of its client, by time."""
        order = torch.from_numpy(np.lexsort((rows.row, self.time[rows.row], rows.owner)))
        rank = torch.empty_like(rows.row)
        rank[order] = concatenate_ranges(torch.zeros_like(rows.count), rows.count)
        return rank


@dataclass(frozen=True, eq=False)
class GroupSplit:
    """Rows of one group stay on one side, at all clients that have rows of the group.

    group: the index of each row's group. digests: the digests of the groups' names.
    """

    group: Int64[Tensor, "stored"]
    digests: Int64[Tensor, "group"]

    def draw_test(self, rows: SplitRows, test_share: float, seed: int) -> RowMask:
        """Draw groups of each client until its share of rows is met as closely as whole groups can.

        At least one group of each client trains. A group of several clients is a test group only if it is
        drawn at all of them.
        """
        parts = _ClientGroups.of(rows, self.group, draws(seed, "split").keys(self.digests))
        target = test_share * rows.count[parts.owner]
        before = parts.rows_before.double()
        closer = (before + parts.size - target).abs() < (before - target).abs()
        return self._select(rows, parts, closer & ~parts.is_last)

    def draw_fold(self, rows: SplitRows, number: int, held_out: int, seed: int) -> tuple[RowMask, RowMask]:
        """Distribute each client's groups over the folds in turn; a single group is never held out.

        The fold of a group with several clients is drawn by the group's name alone.
        """
        stream = draws(seed, "fold")
        key = stream.keys(self.digests)
        parts = _ClientGroups.of(rows, self.group, key)
        fold = (stream.keys(rows.clients)[parts.owner] + parts.place) % number
        clients_of_group = torch.bincount(parts.group, minlength=len(self.digests))
        is_shared = clients_of_group[parts.group] > 1
        fold = torch.where(is_shared, key[parts.group] % number, fold)
        is_test = self._select(rows, parts, (fold == held_out) & ~(parts.is_last & (parts.place == 0)))
        return ~is_test, is_test

    def _select(self, rows: SplitRows, parts: "_ClientGroups", chosen: Bool[Tensor, "part"]) -> RowMask:
        """Return the rows of groups that are chosen at all their clients and leave each of them a row."""
        is_test = torch.ones(len(self.digests), dtype=torch.bool)
        is_test[parts.group[~chosen]] = False
        group = self.group[rows.row]
        has_training = torch.zeros(len(rows.count), dtype=torch.bool)
        has_training[rows.owner[~is_test[group]]] = True
        is_test[group[~has_training[rows.owner]]] = False
        return is_test[group]


@dataclass(frozen=True, eq=False)
class _ClientGroups:
    """The groups of each client, client by client, in the order of random keys."""

    owner: Int64[Tensor, "part"]
    group: Int64[Tensor, "part"]
    size: Int64[Tensor, "part"]  # rows of the group at the client
    place: Int64[Tensor, "part"]  # 0, 1, … among the client's groups
    rows_before: Int64[Tensor, "part"]  # rows of the client in groups before
    is_last: Bool[Tensor, "part"]

    @staticmethod
    def of(
        rows: SplitRows, group_of_stored: Int64[Tensor, "stored"], key: Int64[Tensor, "group"]
    ) -> "_ClientGroups":
        """Count the rows of each client in each group."""
        groups = len(key)
        pair, size = (rows.owner * groups + group_of_stored[rows.row]).unique(return_counts=True)
        owner, group = pair // groups, pair % groups
        order = torch.from_numpy(np.lexsort((group, key[group], owner)))
        number = torch.bincount(owner, minlength=len(rows.count))
        place = concatenate_ranges(torch.zeros_like(number), number)
        owner, size = owner[order], size[order]
        rows_before = size.cumsum(0) - size - (rows.count.cumsum(0) - rows.count)[owner]
        return _ClientGroups(owner, group[order], size, place, rows_before, place == number[owner] - 1)


def draw_test_rows(
    clients: Int64[Tensor, "client"], count: Int64[Tensor, "client"], test_share: float, seed: int
) -> Bool[Tensor, "row"]:
    """Draw test rows as a mask, client by client: the ⌊share·n + ½⌋ of n rows with the smallest draws.

    `clients` are digests. Every client retains at least one training row.
    """
    return draw_rows(draws(seed, "split"), 0, clients, count, _count_test_rows(count, test_share))


def draw_rows(
    stream: Draws,
    step: int,
    clients: Int64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    wanted: Int64[Tensor, "client"],
) -> Bool[Tensor, "row"]:
    """Return a mask of the `wanted` rows of each client that have the smallest draws."""
    chosen = torch.zeros(int(count.sum()), dtype=torch.bool)
    partial = ((wanted > 0) & (wanted < count)).nonzero().flatten()
    first, size = (count.cumsum(0) - count)[partial], count[partial]
    order = stream.permutations(clients[partial], step, size)
    within = concatenate_ranges(torch.zeros_like(size), size) < wanted[partial].repeat_interleave(size)
    chosen[(first.repeat_interleave(size) + order)[within]] = True
    everything = (wanted >= count).repeat_interleave(count)
    return chosen.logical_or_(everything)


def subsample_rows(
    rows: ClientRows,
    digests: Int64[Tensor, "client"],
    clients: Int64[Tensor, "chosen"],
    keep: float,
    seed: int,
    step: int,
) -> ClientRows:
    """Draw a share of the rows of `clients`, at least one each, by the client's name."""
    remaining = (keep * rows.count.double() + 0.5).floor().long().clamp(min=1).minimum(rows.count)
    wanted = rows.count.index_copy(0, clients, remaining[clients])
    return rows.select(draw_rows(draws(seed, "scarce"), step, digests, rows.count, wanted))


def _count_test_rows(count: Int64[Tensor, "client"], test_share: float) -> Int64[Tensor, "client"]:
    return (test_share * count.double() + 0.5).floor().long().minimum((count - 1).clamp(min=0))


# `draw_test` returns the test rows: about a share of each client's rows, never all of them. `draw_fold`
# returns the rows that train and the rows that are held out in one of `number` folds.
Split = RandomSplit | TimeSplit | GroupSplit

RANDOM_SPLIT: Final = RandomSplit()
