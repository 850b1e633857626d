"""Runs as blocks of one stack: seeds and settings are further rows of the same client axis."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from fedlap.algorithms import Algorithm, GatheredRows, Overwriting, State, Steady
from fedlap.algorithms.interface import Ids
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.per_run import PerRun
from fedlap.training.batches import BatchPlan
from fedlap.training.buffers import BufferPool
from fedlap.training.client_sampling import ClientSampler, StackedRun
from fedlap.training.cuda_graph import CudaGraph, RoundFunction, run_in_branches
from fedlap.training.engines import Engine, StackedEngine
from fedlap.training.jobs import combine_methods, find_differing_settings
from fedlap.training.placement import PlacedClients
from fedlap.training.run_tables import CohortIndex, RunTables
from fedlap.training.state import count_bytes, gather_rows, map_state, scatter_rows, split_state, to_device
from fedlap.training.task import StackTask

TrainingState = tuple[State, State]  # of the server, and of the clients
Traffic = tuple[int, int]  # bytes uploaded and downloaded by clients
# Private states and uploads of a cohort, one run after another, and the bytes that each run downloaded.
LocalResults = tuple[State, State, list[int]]

# Draws of several rounds are batched up to this many values, where cohorts are full or drawn on the device:
# starting an operation takes time, on a GPU above all.
VALUES_DRAWN_AHEAD = defaultdict(lambda: 4_000_000, cpu=200_000)
MAX_CAPTURED_STEPS = 4_000  # per round


@dataclass(frozen=True, eq=False)
class RoundWork:
    """The cohort of a round in all runs, and its work as one stack."""

    index: CohortIndex
    task: StackTask

    def collect_tensors(self) -> tuple[State, ...]:
        """Return the tensors that differ between rounds of equal shapes."""
        plan, cohort = self.task.plan, self.task.cohort
        return (
            self.index.ids,
            (cohort.ids, cohort.digests, cohort.first, cohort.count),
            (plan.rows, plan.weight),
        )

    def with_tensors(self, tensors: tuple[State, ...]) -> "RoundWork":
        """Return the work of another round of equal shapes, from its tensors."""
        ids, clients, (rows, weight) = tensors
        task, plan = self.task, self.task.plan
        cohort = replace(task.cohort, **dict(zip(("ids", "digests", "first", "count"), clients, strict=True)))
        known_plan = BatchPlan(rows, weight, plan.active, plan.repeat)
        return RoundWork(
            replace(self.index, ids=ids),
            StackTask(task.clients, cohort, task.round, task.work, known_plan),
        )


@dataclass(frozen=True, eq=False)
class RunStack:
    """Runs of one method on one engine; their states are stored at `home`, the device or the host."""

    runs: list[StackedRun]
    engine: Engine
    work: LocalWork
    home: torch.device

    # A round: plan it, run the local work, merge.

    def plan_rounds(self, rounds: range) -> Iterator[RoundWork]:
        """Draw the cohort and the batches of each round."""
        if self.can_capture_rounds or self._has_full_cohorts:
            draw, per_draw = self._draw_ahead, self._count_rounds_per_draw()
        else:
            draw = self._draw_on_host
            per_draw = max(1, VALUES_DRAWN_AHEAD["cpu"] // self._sampler.values_per_round)
        for begin in range(0, len(rounds), per_draw):
            yield from draw(rounds[begin : begin + per_draw])

    def run_local_work(
        self, states: Sequence[TrainingState], work: RoundWork, method: Algorithm | None = None
    ) -> LocalResults:
        """Send to the clients of a round and run their local work."""
        index = work.index
        method = method or self.build_shared_method(index)
        inputs = [_gather_inputs(*run) for run in zip(self.runs, states, index.ids_per_run, strict=True)]
        if len(inputs) == 1:
            rows = self._buffers.fill(inputs[0], tuple(states), self._works_in_place)
        else:
            rows = self._tables.gather(inputs, index)
        outputs = self.engine.map_clients(method.local, to_device(rows, self.clients.device), work.task)
        outputs = to_device(outputs, self.home)  # where `index.inverse` is, too
        private, uploads = outputs if index.inverse is None else gather_rows(outputs, index.inverse)
        return private, uploads, [count_bytes(download) for _, download in inputs]

    def merge_round(
        self, states: Sequence[TrainingState], index: CohortIndex, results: LocalResults
    ) -> tuple[list[TrainingState], list[Traffic]]:
        """Merge the results of local work, run by run, into the next states, and count the bytes sent."""
        private_rows, uploads, downloaded = results
        private = self._tables.scatter([private for _, private in states], index, private_rows)
        servers = [server for server, _ in states]
        uploads_per_run = split_state(uploads, index.sizes)
        runs = zip(self.runs, servers, private, index.ids_per_run, uploads_per_run, downloaded, strict=True)
        merges = [partial(_merge_run, self.engine, *run) for run in runs]
        merged, traffic = zip(*run_in_branches(merges), strict=True)
        return list(merged), list(traffic)

    def contiguous_copy(self, states: Sequence[TrainingState]) -> list[TrainingState]:
        """Copy the states of all runs into shared, writable tables."""
        return self._tables.contiguous_copy(states)

    # Rounds as CUDA graphs.

    @cached_property
    def can_capture_rounds(self) -> bool:
        """Return whether every round is the same sequence of operations on tensors that stay on a GPU."""
        sampled = any(run.is_sampled for run in self.runs)
        resident = self.clients.train.store.device == self.home
        # Epochs of sampled clients, and batch norms, read sizes of batches on the host.
        static = not (self.work.epochs and sampled) and not self.clients.model.is_batch_dependent
        return self._is_capturable and resident and static and self._max_steps <= MAX_CAPTURED_STEPS

    @cached_property
    def can_capture_merges(self) -> bool:
        """Return whether at least merging several runs is the same sequence of operations on a GPU."""
        return self._is_capturable and not self.can_capture_rounds and len(self.runs) > 1

    def capture_round(self, states: Sequence[TrainingState], work: RoundWork) -> CudaGraph:
        """Capture a round; it replays with the tensors of another round's work."""
        function = self.build_round_function(work)
        return CudaGraph(function, tuple(self.contiguous_copy(states)), work.collect_tensors())

    def capture_merge(
        self, states: Sequence[TrainingState], downloaded: list[int], inputs: tuple[State, ...]
    ) -> CudaGraph:
        """Capture the merge of a round; it replays with the inputs of another round."""
        function = self.build_merge_function(downloaded)
        return CudaGraph(function, tuple(self.contiguous_copy(states)), inputs)

    def build_round_function(self, work: RoundWork) -> RoundFunction:
        """Return a round as a function of the states and of the tensors of work like this."""
        method = self.build_shared_method(work.index)

        def play_round(states: State, tensors: State) -> tuple[State, list[Traffic]]:
            current = work.with_tensors(tensors)
            results = self.run_local_work(states, current, method)
            merged, traffic = self.merge_round(states, current.index, results)
            return tuple(merged), traffic

        return play_round

    def build_merge_function(self, downloaded: list[int]) -> RoundFunction:
        """Return a merge as a function of the states and of the cohort's ids, private states and uploads."""

        def merge(states: State, inputs: State) -> tuple[State, list[Traffic]]:
            ids, private, uploads = inputs
            index = CohortIndex(ids, self._cohort_sizes)
            merged, traffic = self.merge_round(states, index, (private, uploads, downloaded))
            return tuple(merged), traffic

        return merge

    @cached_property
    def _is_capturable(self) -> bool:
        """Return whether the method's rounds are static and its states and its stack are on a GPU."""
        first = self.runs[0].algorithm
        steady = isinstance(first, Steady) and first.steady == "round"
        return steady and self.home.type == "cuda" and isinstance(self.engine, StackedEngine)

    # Properties of the stack.

    @property
    def clients(self) -> PlacedClients:
        """The clients of all runs."""
        return self.engine.clients

    @cached_property
    def _buffers(self) -> BufferPool:
        return BufferPool(self.home)

    @cached_property
    def _tables(self) -> RunTables:
        return RunTables(self._cohort_sizes)

    @cached_property
    def _sampler(self) -> ClientSampler:
        return ClientSampler.of(self.runs)

    @cached_property
    def _cohort_sizes(self) -> tuple[int, ...]:
        return tuple(run.cohort_size for run in self.runs)

    @cached_property
    def _offsets(self) -> Ids:
        """For each client of the cohorts, the offset of its run among all clients."""
        offsets = torch.tensor([run.offset for run in self.runs])
        return offsets.repeat_interleave(torch.tensor(self._cohort_sizes))

    @cached_property
    def _has_full_cohorts(self) -> bool:
        """Return whether all clients work in every round, as one stack, where their rows are stored."""
        resident = self.clients.train.store.device == self.clients.device
        sampled = any(run.is_sampled for run in self.runs)
        return resident and isinstance(self.engine, StackedEngine) and not sampled

    @cached_property
    def _works_in_place(self) -> bool:
        """Return whether clients on a CPU may overwrite the server's table.

        All clients then take equally many steps, in the order of the table.
        """
        on_host = self.clients.device.type == "cpu" and self._has_full_cohorts and not self.work.epochs
        return on_host and len(self.runs) == 1 and isinstance(self.runs[0].algorithm, Overwriting)

    @cached_property
    def _max_steps(self) -> int:
        """The largest number of steps of a client per round."""
        return self.work.count_steps(int(self.clients.train.count.max()), self.clients.batch)

    # Draws of cohorts and batches.

    def _draw_on_host(self, rounds: range) -> Iterator[RoundWork]:
        """Draw the cohorts of several rounds on the host, and their batches when they are used.

        Where the order matters, clients with most rows come first in the stack.
        """
        for number, drawn in zip(rounds, self._sampler.draw(rounds, torch.device("cpu")), strict=True):
            single = len(self.runs) == 1 and not self._works_in_place
            ids = self.clients.sort_by_count(drawn) if single else drawn
            union = ids + self._offsets
            order = self._sort_union(union)
            stack = union if order is None else union[order]
            clients = self.clients.copy_to_device(stack)
            at = stack if clients is self.clients else torch.arange(len(stack))
            index = CohortIndex(ids.to(self.home), self._cohort_sizes, *self._invert(order))
            yield RoundWork(index, StackTask(clients, clients.build_cohort(at), number, self.work))

    def _sort_union(self, union: Ids) -> Ids | None:
        """Return the order of several runs' clients by decreasing row count; one run is sorted already."""
        if len(self.runs) == 1:
            return None
        return self.clients.train.count[union].argsort(descending=True, stable=True)

    def _invert(self, order: Ids | None) -> tuple[Ids | None, Ids | None]:
        """Return an order and its inverse, at `home`."""
        if order is None:
            return None, None
        at = order.to(self.home)
        return at, at.argsort()

    def _count_rounds_per_draw(self) -> int:
        """Return the number of rounds whose draws are batched."""
        batch = self.clients.batch
        largest = int(self.clients.train.count.max())
        rows = sum(run.cohort_size for run in self.runs) * self._max_steps
        rows *= largest if batch == "all" else min(batch, largest)
        sampled = sum(run.size for run in self.runs if run.is_sampled)
        return max(1, VALUES_DRAWN_AHEAD[self.clients.device.type] // max(1, rows, sampled))

    def _draw_ahead(self, rounds: range) -> Iterator[RoundWork]:
        """Draw the cohorts and batches of several rounds together on the device."""
        device, clients = self.clients.device, self.clients
        if self._has_full_cohorts:
            full = self._full_round
            plans = clients.draw_plans(full.task.cohort, rounds, self.work)
            for number, plan in zip(rounds, plans, strict=True):
                task = StackTask(clients, full.task.cohort, number, self.work, plan)
                yield RoundWork(full.index, task)
            return
        drawn = self._sampler.draw(rounds, device)
        union = drawn + self._offsets.to(device)
        plans = clients.draw_plans(clients.build_unsorted_cohort(union), rounds, self.work)
        for number, ids, stack, plan in zip(rounds, drawn, union, plans, strict=True):
            task = StackTask(clients, clients.build_unsorted_cohort(stack), number, self.work, plan)
            yield RoundWork(CohortIndex(ids, self._cohort_sizes), task)

    @cached_property
    def _full_round(self) -> RoundWork:
        """A round of all clients, sorted only where they differ in their number of steps."""
        if self.work.epochs or len(self.runs) == 1 or not self.can_capture_rounds:
            return next(self._draw_on_host(range(1, 2)))
        index = CohortIndex(self._sampler.draw(range(1, 2), self.home)[0], self._cohort_sizes)
        union = torch.arange(len(self.clients.train.count), device=self.home)
        task = StackTask(self.clients, self.clients.build_unsorted_cohort(union), 1, self.work)
        return RoundWork(index, task)

    # Settings that differ between runs.

    def build_shared_method(self, index: CohortIndex) -> Algorithm:
        """Return one method for the stack, with one number per row for settings that differ between runs."""
        return combine_methods(
            self.runs[0].algorithm, self._differing_settings, partial(self._expand_per_run, index)
        )

    @cached_property
    def _differing_settings(self) -> dict[str, list[Any]]:
        return find_differing_settings([run.algorithm for run in self.runs])

    def _expand_per_run(self, index: CohortIndex, values: Sequence[float]) -> PerRun:
        """Repeat the value of each run for each of its clients, in the order of the stack."""
        numbers = torch.tensor(values, dtype=torch.float64)
        column = torch.repeat_interleave(numbers, torch.tensor(index.sizes)).unsqueeze(1)
        column = column.to(self.home, self.clients.dtype)
        return PerRun((column if index.order is None else column[index.order]).to(self.clients.device))


def _gather_inputs(run: StackedRun, state: TrainingState, ids: Ids) -> tuple[State, State]:
    """Return the private states of a run's cohort, as rows to gather, and what the server sends to it."""
    algorithm: Any = run.algorithm
    server, private = state
    rows = map_state(lambda table: GatheredRows(table, ids), private)
    return rows, algorithm.send(server, ids) if run.has_server else None


def _merge_run(
    engine: Engine,
    run: StackedRun,
    server: State,
    private: State,
    ids: Ids,
    upload: State,
    downloaded: int,
) -> tuple[TrainingState, Traffic]:
    """Merge a run's uploads at its server, or mix its peers; return the next state and the bytes sent."""
    algorithm: Any = run.algorithm
    if run.has_server:
        merged = scatter_rows(server, algorithm.merge(server, ids, upload))
        return (merged, private), (count_bytes(upload), downloaded)
    # Without a server every message is sent by a client and to a client.
    exchanged = algorithm.count_messages() * count_bytes(upload) // len(ids)
    return (server, engine.mix(algorithm, private)), (exchanged, exchanged)
