"""The engine whose clients are in shards: it leads the rounds, and repeats one when a shard was lost."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from fedlap.algorithms import ClientTable, Penalised, Pooling, State
from fedlap.algorithms.coupling import find_merge_place
from fedlap.algorithms.server_state import ClientModels, Ids
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.graph.vertex_edges import VertexEdges
from fedlap.models.model import Stack
from fedlap.training.client_sampling import ClientSampler, StackedRun
from fedlap.training.engines import Replies, Tallies, compute_penalty, count_exchanged
from fedlap.training.loop import ServerStates, play
from fedlap.training.one_by_one import PlainCohort, PlainSampler
from fedlap.training.plain_task import HOST
from fedlap.training.schedule import Precision
from fedlap.training.shards.block import LocalSettings, concatenate_tallies
from fedlap.training.shards.cluster import Cluster, LostShardError
from fedlap.training.shards.gathering import PIECE_BYTES, allocate_in_memory, gather_pieces
from fedlap.training.shards.history import ShardHistory
from fedlap.training.shards.layout import ShardLayout, find_slices
from fedlap.training.shards.merging import NeighbourMerge
from fedlap.training.shards.messages import Change, RepeatedRow, ShardState, cut_rows
from fedlap.training.shards.rows import PassedRows, RowSource, choose_source
from fedlap.training.shards.shard import RoundReport, ShardPlan
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import Traffic, concatenate_states
from fedlap.training.worker import has_client_tables

_LOG = logging.getLogger("fedlap")
MOST_LOSSES: Final = 5  # of processes within one step, before training ends with an error

Done = TypeVar("Done")


class Sharded:
    """Clients in shards, one per process; `cluster` starts the processes.

    Rows meet at the server, which is this process, or at the clients' shards, if the method's merge needs
    neighbours alone. Then the server's models are in the shards too, and the server state here is None. If
    the merge only needs a sum of uploads, the shards combine those of each block.
    """

    def __init__(
        self,
        run: StackedRun,
        scored: Federation,
        settings: LocalSettings,
        precision: Precision,
        cluster: Cluster,
    ) -> None:
        """Divide the clients; `start` or `load` starts the processes."""
        self.home, self._run, self._cluster = HOST, run, cluster
        self._method = ManyRuns([run])
        self._algorithm: Any = run.algorithm
        self.sampler = PlainSampler(ClientSampler.of([run]), [run.cohort_size], HOST)
        self._pools = isinstance(run.algorithm, Pooling)
        self._layout = ShardLayout.of(scored.train.count, cluster.workers)
        self._shards = range(len(self._layout.shards))
        merges = find_merge_place(run.algorithm)
        self._merges_in_shards, self._combines = merges == "neighbours", merges == "sum"
        self._uploaded = 0  # bytes that the clients of the current round have sent
        self._histories: list[ShardHistory] = []
        self._finished = 0
        self._plans = [
            cluster.put(self._plan_shard(shard, run.trainees, scored, settings, precision))
            for shard in self._shards
        ]

    def _plan_shard(
        self,
        shard: int,
        trainees: Federation,
        scored: Federation,
        settings: LocalSettings,
        precision: Precision,
    ) -> ShardPlan:
        """Return the plan of a shard. Pooled rows are one client, which is in the first shard."""
        blocks = self._layout.list_blocks(shard)
        rows: RowSource = choose_source(scored, blocks)
        scored_rows = rows
        training = blocks
        if self._pools:
            training = (range(1),) if shard == 0 else ()
            rows = PassedRows.cut(trainees, training)
        merging = None
        if self._merges_in_shards:
            edges = tuple(VertexEdges.cut(self._algorithm.graph, blocks))
            merging = NeighbourMerge(settings.algorithm, shard, self._layout.clients, edges)
        most = int(trainees.train.count.max())
        return ShardPlan(
            settings, precision, training, blocks, rows, scored_rows, most, merging, self._combines
        )

    @cached_property
    def _trainees(self) -> tuple[range, ...]:
        """The clients that train in each shard."""
        return (
            tuple(range(int(shard == 0)) for shard in self._shards) if self._pools else self._layout.clients
        )

    # State.

    def start(self, start: Stack) -> list[State]:
        """Set the state before the first round, and return the server state."""
        counts = self._run.trainees.train.count
        # The pooled client starts from all start models, and peers from a graph that shards do not have.
        if self._pools or not (self._method.has_server or self._merges_in_shards):
            private = self._algorithm.init_clients(start, counts)
            return list(self.load([self._algorithm.init_server(start)], [private], 0))
        for clients in self._trainees:
            part: Any = cut_rows(start, slice(clients.start, clients.stop))
            rows = part.row if isinstance(part, RepeatedRow) else part
            self._histories.append(ShardHistory(len(clients), "start", self._cluster.put(rows)))
        self._attempt(lambda: self._start_processes(self._shards))
        self._has_private = self._algorithm.init_clients(start[:1], counts[:1]) is not None
        return [None if self._merges_in_shards else self._algorithm.init_server(start)]

    def load(self, server: ServerStates, private: Sequence[State], finished: int) -> ServerStates:
        """Set the state after `finished` rounds, and return the server state."""
        self._finished, self._has_private = finished, private[0] is not None
        models = server[0].models.values if self._keeps_models else None
        for clients in self._trainees:
            part = slice(clients.start, clients.stop)
            rows = (cut_rows(state, part, copies=False) for state in (private[0], models))
            state = ShardState(self._finished, *rows)
            self._histories.append(ShardHistory(len(clients), "load", self._cluster.put(state)))
        self._attempt(lambda: self._start_processes(self._shards))
        return [None if self._merges_in_shards else server[0]]

    @property
    def _keeps_models(self) -> bool:
        """Return whether the server's models are in the shards."""
        return self._merges_in_shards and self._method.has_server

    def gather_states(self, server: ServerStates) -> tuple[ServerStates, ServerStates]:
        """Return the server state and the private state of all clients; large ones are mapped from files."""
        private, models = self._gather("export", self._trainees)
        return [ClientModels(ClientTable(models))] if self._keeps_models else server, [private]

    def _gather_private(self) -> State:
        """Return the private state of all clients, in memory, for work of this process."""
        private, _ = self._gather("export", self._trainees, allocate=allocate_in_memory)
        return private

    def _gather(self, verb: str, shards: Sequence[range], *options: Any, **named: Any) -> Any:
        """Return the rows of all clients from their shards."""
        return self._attempt(
            lambda: gather_pieces(self._cluster, verb, self._finished, shards, *options, **named)
        )

    # A round.

    def play(
        self, method: ManyRuns, engine: Any, server: ServerStates, round: int, cohort: PlainCohort
    ) -> tuple[ServerStates, list[Traffic]]:
        """Play a round, once more if a shard is lost."""
        if self._merges_in_shards:
            return server, [self._attempt(lambda: self._play_in_shards(round, cohort.ids[0]))]
        server, (traffic,) = play(method, self, server, round, cohort)
        return server, [traffic._replace(up=self._uploaded) if self._combines else traffic]

    def local(self, method: ManyRuns, round: int, cohort: PlainCohort, down: ServerStates | None) -> Replies:
        """Run the local work of a cohort at its shards."""
        ids = cohort.ids[0]
        return self._attempt(lambda: self._train(round, ids, None if down is None else down[0]))

    def _train(self, round: int, ids: Ids, down: State) -> Replies:
        calls = []
        parts = find_slices(ids, self._trainees)
        for shard, (clients, part) in enumerate(zip(self._trainees, parts, strict=True)):
            arguments = (round, self._finished, ids[part] - clients.start, cut_rows(down, part))
            calls.append(self._cluster.call(shard, "train", *arguments, returns=3))
        reports, uploads, changes = zip(*calls, strict=True)
        filled = [upload for upload, part in zip(uploads, parts, strict=True) if part.start < part.stop]
        up = concatenate_states(self._cluster.fetch(filled))
        reported: list[RoundReport] = self._cluster.fetch(reports)
        self._uploaded = sum(report.up for report in reported)
        self._finish(round, ids, reported, changes)
        return Replies([ids], [up])

    def mix(self, method: ManyRuns, round: int, up: Sequence[State]) -> list[Traffic]:
        """Run all exchanges between peers here, with the private state of all of them."""
        private = self._gather_private()
        mixed = self._algorithm.mix_all(private)
        for shard, clients in enumerate(self._trainees):
            rows = cut_rows(mixed, slice(clients.start, clients.stop))
            change = Change(round, torch.arange(len(clients)), rows, None)
            reference = self._cluster.put(change)
            self._histories[shard].add(reference, change.count_bytes(), len(clients))
        self._attempt(self._apply_last_changes)
        return count_exchanged(method, up)

    def _apply_last_changes(self) -> None:
        calls = [self._cluster.call(s, "change", self._histories[s].changes[-1][1]) for s in self._shards]
        self._cluster.fetch([call[0] for call in calls])

    def _play_in_shards(self, round: int, ids: Ids) -> Traffic:
        """Train and merge at the shards, which send each other the rows of neighbours."""
        count, cohort = len(self._shards), self._cluster.put(ids)
        trained = [
            self._cluster.call(shard, "train_cohort", round, self._finished, cohort, returns=1 + count)
            for shard in self._shards
        ]
        merged = [
            self._cluster.call(shard, "merge", round, *(sent[1 + shard] for sent in trained), returns=2)
            for shard in self._shards
        ]
        reports: list[RoundReport] = self._cluster.fetch([result[0] for result in trained])
        ends: list[RoundReport] = self._cluster.fetch([result[0] for result in merged])
        self._finish(round, ids, ends, [result[1] for result in merged])
        traffic = Traffic(sum(report.up for report in reports), sum(report.down for report in reports))
        if self._method.has_server:
            return traffic
        number = traffic.up // len(ids) * self._algorithm.count_messages()
        return Traffic(number, number)

    def _finish(self, round: int, ids: Ids, reports: Sequence[RoundReport], changes: Sequence[Any]) -> None:
        """Record that a round is finished at all shards."""
        self._finished = round
        parts = find_slices(ids, self._trainees)
        for history, part, report, change in zip(self._histories, parts, reports, changes, strict=True):
            history.add(change, report.changed, part.stop - part.start)
        self._attempt(self._shorten_histories)

    def _shorten_histories(self) -> None:
        """Take checkpoints of the shards whose changes have become larger than their state."""
        long = [shard for shard in self._shards if self._histories[shard].is_long]
        calls = [self._cluster.call(shard, "take_checkpoint", self._finished, returns=2) for shard in long]
        sizes = self._cluster.fetch([size for size, _ in calls])
        for shard, size, (_, state) in zip(long, sizes, calls, strict=True):
            self._histories[shard].replace(state, size)

    # Models and scores.

    def models(self, method: ManyRuns, server: ServerStates) -> list[Tensor]:
        """Return the models that clients are scored with."""
        W, shared = self._prepare_models(server[0])
        return [
            self._gather(
                "compute_models",
                self._layout.clients,
                lambda shard, first: (self._cut_models(W, shard, first), shared),
            )
        ]

    def _cut_models(self, W: Stack | None, shard: int, first: int) -> State:
        """Return the models of whole blocks of a shard from a client on, as many as one piece has."""
        if W is None:
            return None
        begin = self._layout.clients[shard].start + first
        ends = (block.stop for block in self._layout.list_blocks(shard) if block.start >= begin)
        end = next(
            (end for end in ends if (end - begin) * W[:1].nbytes >= PIECE_BYTES),
            self._layout.clients[shard].stop,
        )
        return cut_rows(W, slice(begin, end), copies=False)

    def score(self, method: ManyRuns, server: ServerStates, training: bool) -> list[Tallies]:
        """Tally every client's model at its shard."""
        W, shared = self._prepare_models(server[0])
        clients = self._layout.clients
        parts = [
            None if W is None else self._cluster.put(cut_rows(W, slice(p.start, p.stop), copies=False))
            for p in clients
        ]
        arguments = [(part, shared) for part in parts]
        per_shard = self._attempt(lambda: self._ask("score", arguments, training))
        tallies = concatenate_tallies([of_block for of_shard in per_shard for of_block in of_shard])
        return [replace(tallies, penalty=self._compute_penalty(server) if training else None)]

    def _prepare_models(self, server: State) -> tuple[Stack | None, Any]:
        """Return all clients' models, or a reference to the server state that they follow from."""
        if self._merges_in_shards:
            return None, None
        if self._has_private and not self._pools and not has_client_tables(server):
            return None, self._cluster.put(server)
        private = self._gather_private() if self._has_private else None
        return self._algorithm.personal_models(server, private, self._layout.clients[-1].stop), None

    def _compute_penalty(self, server: ServerStates) -> float:
        """Return the term that the method adds to J(W)."""
        if not isinstance(self._algorithm, Penalised):
            return 0.0
        if self._merges_in_shards:
            return math.fsum(part for parts in self._attempt(self._penalise) for part in parts)
        return compute_penalty(self._run.algorithm, server[0], self._gather_private())

    def _penalise(self) -> list[list[float]]:
        sent = [
            self._cluster.call(shard, "send_rows", self._finished, returns=len(self._shards))
            for shard in self._shards
        ]
        return self._ask("penalise", [[rows[shard] for rows in sent] for shard in self._shards])

    # Calls, and processes that end.

    def wait(self) -> None:
        """Return at once: nothing runs between calls."""

    def close(self) -> None:
        """Release the memory of the shards."""
        self._histories, self._plans = [], []
        self._cluster.release()

    def _ask(self, verb: str, per_shard: Sequence[Sequence[Any]] = (), *shared: Any) -> list[Any]:
        """Call every shard with the last finished round, and return the results."""
        arguments = per_shard or [()] * len(self._shards)
        calls = [
            self._cluster.call(shard, verb, self._finished, *arguments[shard], *shared)
            for shard in self._shards
        ]
        return self._cluster.fetch([result for (result,) in calls])

    def _attempt(self, step: Callable[[], Done]) -> Done:
        """Return the result of a step, which is repeated after a process has ended."""
        reason = ""
        for _ in range(MOST_LOSSES):
            try:
                if reason:
                    self._replace_lost(reason)
                return step()
            except LostShardError as error:
                reason = str(error)
        raise InputError(
            f"processes of workers ended {MOST_LOSSES} times in round {self._finished + 1} ({reason}); use "
            "fewer workers per machine, so that each has more memory, and resume from the run's folder"
        )

    def _replace_lost(self, reason: str) -> None:
        """Start the processes that have ended once more, from the last finished round."""
        lost = self._cluster.find_lost(len(self._shards))
        names = ", ".join(str(shard + 1) for shard in lost)
        _LOG.warning("worker %s ended (%s); it starts again after round %d", names, reason, self._finished)
        self._start_processes(lost)

    def _start_processes(self, shards: Sequence[int]) -> None:
        starting = [self._cluster.start(shard, self._plans[shard]) for shard in shards]
        for shard in shards:
            starting += self._histories[shard].restore(self._cluster, shard)
        self._cluster.fetch(starting)
