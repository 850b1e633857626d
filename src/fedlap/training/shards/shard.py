"""A shard: the clients of one process, and the parts of a round that run there.

Nothing here knows how a shard is called. What a round changes becomes current only when a later call names
the round as finished. A round can therefore be repeated at all shards after one of them was lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import ClientTable, State
from fedlap.algorithms.server_state import ClientModels, Ids
from fedlap.models.model import Stack
from fedlap.training.engines import Tallies
from fedlap.training.schedule import Precision, use_precision
from fedlap.training.shards.block import ClientBlock, LocalSettings
from fedlap.training.shards.gathering import PIECE_BYTES, Piece, cut_piece
from fedlap.training.shards.layout import find_slices
from fedlap.training.shards.merging import LookUp, NeighbourMerge, is_among
from fedlap.training.shards.messages import Change, SentRows, ShardState, expand_rows, slice_rows
from fedlap.training.shards.rows import RowSource
from fedlap.training.state import (
    concatenate_states,
    copy_state,
    count_bytes,
    gather_lazy_rows,
    gather_rows,
    list_tensors,
    map_state,
)


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """Everything that a process needs to build its shard.

    trainees, scored: the blocks of clients that train, and the blocks that are scored, whose rows come from
    `rows` and `scored_rows`. most_rows: training rows of the client that has most. merging: how clients merge
    at the shard; None if their rows meet at the server. combines: whether the server needs no more than a
    sum of the uploads.
    """

    settings: LocalSettings
    precision: Precision
    trainees: tuple[range, ...]
    scored: tuple[range, ...]
    rows: RowSource
    scored_rows: RowSource
    most_rows: int
    merging: NeighbourMerge | None
    combines: bool


class RoundReport(NamedTuple):
    """The bytes that clients of a shard sent and received in a round, and those of the rows that changed."""

    up: int
    down: int
    changed: int


class Trained(NamedTuple):
    """Local work of a round that is not merged yet: the clients, their private state and their uploads."""

    cohort: Ids  # of all shards
    ids: Ids  # of this shard
    private: State
    up: State


class Shard:
    """Some blocks of clients with their private state and, if they merge here, the server's models of them.

    finished: the last finished round, which every call names.
    """

    def __init__(self, plan: ShardPlan) -> None:
        """Read the rows of all blocks; `start` or `load` sets the state."""
        self._plan, self._merging = plan, plan.merging
        self._blocks = [ClientBlock(plan.settings, plan.rows.read(block)) for block in plan.trainees]
        self._scored = self._blocks
        if plan.scored_rows is not plan.rows:
            self._scored = [ClientBlock(plan.settings, plan.scored_rows.read(block)) for block in plan.scored]
        self._first = plan.trainees[0].start if plan.trainees else 0
        self._size = sum(map(len, plan.trainees))
        self._state = ShardState(0, None, None)
        self._change: Change | None = None
        self._trained: Trained | None = None

    def run(self, verb: str, *arguments: Any) -> Any:
        """Call a method of this shard as training does."""
        with torch.no_grad(), use_precision(self._plan.precision):
            return getattr(self, verb)(*arguments)

    # State.

    def start(self, start: Float[Tensor, "_ param"]) -> None:
        """Set the state before the first round, from one start model or from one per client."""
        start, size = start.expand(self._size, -1), self._size
        models = None if self._merging is None else self._merging.start_models(start)
        # One more client has the most rows of all, so that a row of state has the same shape at every shard.
        counts = torch.cat([*(block.counts for block in self._blocks), torch.tensor([self._plan.most_rows])])
        extended = torch.cat([start, start.new_zeros(1, start.shape[1])])
        private = self._plan.settings.algorithm.init_clients(extended, counts)
        self.load(ShardState(0, slice_rows(private, slice(size)), models))

    def load(self, state: ShardState) -> None:
        """Set the state after a round."""
        private, models = copy_state((state.private, state.models))
        self._state, self._change = ShardState(state.round, private, models), None

    def change(self, *changes: Change) -> None:
        """Apply the changes of finished rounds."""
        for change in changes:
            self._change = change
            self._finish(change.round)

    def export(self, finished: int, first: int) -> Piece:
        """Return the state after a round from a client on: private state and the server's models."""
        self._finish(finished)
        return cut_piece((self._state.private, self._state.models), first, self._size)

    def take_checkpoint(self, finished: int) -> tuple[int, ShardState]:
        """Return the size of the state after a round in bytes, and the state."""
        self._finish(finished)
        tensors = list_tensors((self._state.private, self._state.models))
        return sum(tensor.nbytes for tensor in tensors), self._state

    def _finish(self, round: int) -> None:
        """Make the changes of a finished round current; discard those of a round that is repeated."""
        state, change = self._state, self._change
        if change is not None and change.round == round:
            _write_rows(state.private, change.ids, change.private)
            _write_rows(state.models, change.ids, change.models)
            self._state = state._replace(round=round)
        if self._state.round != round:
            raise RuntimeError(f"the shard is at round {self._state.round}; expected {round}")
        self._change = None

    # A round.

    def train(self, round: int, finished: int, ids: Ids, down: State) -> tuple[RoundReport, State, Change]:
        """Run the local work of clients that have received `down`; return their uploads and what changed.

        ids: numbers within the shard, ascending. Where sums of uploads suffice, those of a block are one row.
        """
        self._finish(finished)
        private, up = self._train_blocks(round, ids, expand_rows(down, len(ids)))
        self._change = Change(round, ids, private, None)
        report = RoundReport(count_bytes(up), 0, self._change.count_bytes())
        return report, self._combine_blocks(ids, up) if self._plan.combines else up, self._change

    def train_cohort(self, round: int, finished: int, cohort: Ids) -> tuple[RoundReport | SentRows, ...]:
        """Run the local work of this shard's part of a cohort; return the rows that each shard needs.

        cohort: clients of all shards, ascending.
        """
        self._finish(finished)
        merging, down = self._merging, None
        assert merging is not None
        (part,) = find_slices(cohort, [range(self._first, self._first + self._size)])
        ids = cohort[part]
        if self._state.models is not None:
            server = ClientModels(ClientTable(self._state.models))
            down = gather_lazy_rows(merging.algorithm.send(server, ids - self._first))
        private, up = self._train_blocks(round, ids - self._first, down)
        self._trained = Trained(cohort, ids, private, up)
        sent = self._send(merging.list_sent(cohort), self._trained)
        return RoundReport(count_bytes(up), count_bytes(down), 0), *sent

    def merge(self, round: int, *received: SentRows) -> tuple[RoundReport, Change]:
        """Merge the clients that were trained with their neighbours, whose rows all shards have sent."""
        merging, trained = self._merging, self._trained
        assert merging is not None
        assert trained is not None
        look_up = self._make_look_up(trained, received)
        merged = [
            merging.merge(block, trained.ids[part], trained.cohort, look_up)
            for block, part in enumerate(find_slices(trained.ids, self._plan.trainees))
            if part.start < part.stop
        ]
        rows = concatenate_states(merged) if merged else None
        private, models = (rows, None) if merging.is_peer else (trained.private, rows)
        self._change, self._trained = Change(round, trained.ids - self._first, private, models), None
        return RoundReport(0, 0, self._change.count_bytes()), self._change

    def _train_blocks(self, round: int, ids: Ids, down: State) -> tuple[State, State]:
        """Train block after block, and return the clients' private state and uploads."""
        results = [
            block.train(
                ids[part] - (clients.start - self._first),
                gather_rows(self._state.private, ids[part]),
                slice_rows(down, part),
                round,
            )
            for block, clients, part in self._split_blocks(ids)
        ]
        return concatenate_states(results) if results else (None, None)

    def _combine_blocks(self, ids: Ids, up: State) -> State:
        """Return one row per block that has some of the clients; blocks do not depend on the shards."""
        if up is None:
            return None
        return concatenate_states(
            [copy_state(slice_rows(up, part)).combine() for _, _, part in self._split_blocks(ids)]
        )

    def _split_blocks(self, ids: Ids) -> Iterator[tuple[ClientBlock, range, slice]]:
        """Yield each block that has some of the clients, its clients, and their slice of `ids`."""
        blocks = zip(self._blocks, self._plan.trainees, strict=True)
        for (block, clients), part in zip(
            blocks, find_slices(ids + self._first, self._plan.trainees), strict=True
        ):
            if part.start < part.stop:
                yield block, clients, part

    # Rows for merges.

    def send_rows(self, finished: int) -> tuple[SentRows, ...]:
        """Return the current rows of clients that have neighbours in each shard."""
        self._finish(finished)
        assert self._merging is not None
        return self._send(self._merging.list_sent(None), None)

    def penalise(self, finished: int, *received: SentRows) -> list[float]:
        """Return the part of each block in the method's penalty."""
        self._finish(finished)
        assert self._merging is not None
        look_up = self._make_look_up(None, received)
        return [self._merging.penalise(block, look_up) for block in range(len(self._blocks))]

    def _send(self, ids_per_shard: Sequence[Ids], trained: Trained | None) -> tuple[SentRows, ...]:
        look_up = self._make_look_up(trained, ())
        return tuple(SentRows(ids, look_up(ids)) for ids in ids_per_shard)

    def _make_look_up(self, trained: Trained | None, received: Sequence[SentRows]) -> LookUp:
        """Return a function that copies rows of clients: after their local work, or as they are stored."""
        assert self._merging is not None
        is_peer = self._merging.is_peer
        stored = self._state.private if is_peer else self._state.models
        everyone = torch.arange(self._first, self._first + self._size)
        sources = [SentRows(everyone, stored), *received]
        if trained is not None and len(trained.ids):
            sources.append(SentRows(trained.ids, trained.private if is_peer else trained.up))

        def look_up(ids: Ids) -> State:
            rows = map_state(lambda table: table.new_zeros(len(ids), *table.shape[1:]), stored)
            for source in sources:
                known = is_among(ids, source.ids).nonzero().flatten()
                _write_rows(rows, known, source.gather(ids[known]))
            return rows

        return look_up

    # Models and scores.

    def compute_models(self, finished: int, first: int, models: State, server: State) -> Piece:
        """Return the models that clients are scored with, those of some whole blocks from a client on.

        models: personal models of clients from this one on, if the server has computed them. server: else the
        server state that all clients share.
        """
        self._finish(finished)
        found: list[Stack] = []
        for _, _, W in self._compute_models(models, server, first):
            found.append(W)
            if sum(of_block.nbytes for of_block in found) >= PIECE_BYTES:
                break
        return Piece(sum(map(len, found)), torch.cat(found))

    def score(self, finished: int, models: State, server: State, training: bool) -> list[Tallies]:
        """Tally the clients of each block on their test rows and, if `training`, on their training rows."""
        self._finish(finished)
        scored = self._compute_models(models, server, 0)
        return [block.tally(private, W, training) for block, private, W in scored]

    def _compute_models(
        self, models: State, server: State, first: int
    ) -> Iterator[tuple[ClientBlock, State, Stack]]:
        """Yield each block that is scored, from a client on, with its private state and its models.

        models: of clients from this one on, perhaps not of all.
        """
        start = self._plan.scored[0].start
        models = expand_rows(models, self._plan.scored[-1].stop - start - first)
        for block, clients in zip(self._scored, self._plan.scored, strict=True):
            if clients.start < start + first:
                continue
            part = slice(clients.start - start, clients.stop - start)
            if models is not None and part.stop - first > len(models):
                return
            # Copies, since how products are rounded depends on how memory is aligned.
            private = (
                copy_state(slice_rows(self._state.private, part)) if self._scored is self._blocks else None
            )
            if models is not None:
                yield block, private, block.adapt(copy_state(models[part.start - first : part.stop - first]))
                continue
            if self._state.models is not None:
                server = ClientModels(ClientTable(self._state.models[part].clone()))
            yield block, private, block.compute_models(private, server)


def _write_rows(table: State, ids: Ids, rows: State) -> None:
    """Write rows into the tensors of a state."""
    if table is None or rows is None:
        return
    if isinstance(table, tuple):
        for old, new in zip(table, rows, strict=True):
            _write_rows(old, ids, new)
        return
    table.index_copy_(0, ids, rows)
