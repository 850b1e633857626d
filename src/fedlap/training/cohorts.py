"""The cohorts of a stack of runs with their batches, drawn ahead where that saves time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from fedlap.algorithms import State
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import Ids
from fedlap.training.batches import BatchPlan
from fedlap.training.buffers import BufferPool
from fedlap.training.client_sampling import ClientSampler, StackedRun
from fedlap.training.placement import PlacedClients
from fedlap.training.run_tables import CohortIndex
from fedlap.training.task import StackTask

# Draws of several rounds are batched up to this many values, where cohorts are full or drawn on the device:
# starting an operation takes time, on a GPU above all.
VALUES_DRAWN_AHEAD = defaultdict(lambda: 4_000_000, cpu=200_000)


@dataclass(frozen=True, eq=False)
class RoundCohort:
    """The clients sampled in a round, in all runs, and their work as one stack."""

    index: CohortIndex
    task: StackTask

    @property
    def ids(self) -> list[Any]:
        """The clients of each run."""
        return self.index.ids_per_run

    def collect_tensors(self) -> tuple[State, ...]:
        """Return the tensors that differ between rounds of equal shapes."""
        plan, cohort = self.task.plan, self.task.cohort
        return (
            self.index.ids,
            (cohort.ids, cohort.digests, cohort.first, cohort.count),
            (plan.rows, plan.weight),
        )

    def with_tensors(self, tensors: tuple[State, ...]) -> "RoundCohort":
        """Return the cohort of another round of equal shapes, from its tensors."""
        ids, clients, (rows, weight) = tensors
        task, plan = self.task, self.task.plan
        cohort = replace(task.cohort, **dict(zip(("ids", "digests", "first", "count"), clients, strict=True)))
        known_plan = BatchPlan(rows, weight, plan.active, plan.repeat)
        return RoundCohort(
            replace(self.index, ids=ids),
            replace(task, cohort=cohort, known_plan=known_plan),
        )


class CohortDraws:
    """Draws of cohorts and their batches for a stack of runs.

    runs: the runs of the stack. clients: their clients, where rows are read. home: where states are stored.
    on_device: whether cohorts are drawn on the device, without sorting clients, so that a round can be
        captured. in_place: whether clients train in the stored tables, in their order.
    buffers: memory for the models of a round.
    """

    def __init__(
        self,
        runs: Sequence[StackedRun],
        clients: PlacedClients,
        work: LocalWork,
        home: torch.device,
        buffers: BufferPool,
        *,
        on_device: bool,
        in_place: bool,
    ) -> None:
        """Store the settings; nothing is drawn yet."""
        self._runs, self._clients, self._work, self._home = runs, clients, work, home
        overwrites = not runs[0].algorithm.traits.reads_old_rows
        self._make_task = partial(StackTask, work=work, in_place=overwrites, buffers=buffers)
        self._on_device, self._in_place = on_device, in_place
        self._sampler = ClientSampler.of(runs)

    def draw_rounds(self, rounds: range) -> Iterator[RoundCohort]:
        """Draw the cohort and the batches of each round."""
        if self._on_device or self.has_full_cohorts:
            draw, per_draw = self._draw_ahead, self._count_rounds_per_draw()
        else:
            draw = self._draw_on_host
            per_draw = max(1, VALUES_DRAWN_AHEAD["cpu"] // self._sampler.values_per_round)
        for begin in range(0, len(rounds), per_draw):
            yield from draw(rounds[begin : begin + per_draw])

    @cached_property
    def has_full_cohorts(self) -> bool:
        """Return whether all clients train in every round, where their rows are stored."""
        resident = self._clients.train.store.device == self._clients.device
        return resident and not any(run.is_sampled for run in self._runs)

    @cached_property
    def cohort_sizes(self) -> tuple[int, ...]:
        """The number of clients per round, in each run."""
        return tuple(run.cohort_size for run in self._runs)

    @cached_property
    def _offsets(self) -> Ids:
        """For each client of the cohorts, the offset of its run among all clients."""
        offsets = torch.tensor([run.offset for run in self._runs])
        return offsets.repeat_interleave(torch.tensor(self.cohort_sizes))

    def _draw_on_host(self, rounds: range) -> Iterator[RoundCohort]:
        """Draw the cohorts of several rounds on the host, and their batches when they are used.

        Where the order matters, clients with most rows come first in the stack.
        """
        for number, drawn in zip(rounds, self._sampler.draw(rounds, torch.device("cpu")), strict=True):
            single = len(self._runs) == 1 and not self._in_place
            ids = self._clients.sort_by_count(drawn) if single else drawn
            union = ids + self._offsets
            order = self._sort_union(union)
            stack = union if order is None else union[order]
            clients = self._clients.copy_to_device(stack)
            at = stack if clients is self._clients else torch.arange(len(stack))
            index = CohortIndex(ids.to(self._home), self.cohort_sizes, *self._invert(order))
            yield RoundCohort(index, self._make_task(clients, clients.build_cohort(at), number))

    def _sort_union(self, union: Ids) -> Ids | None:
        """Return the order of several runs' clients by decreasing row count; one run is sorted already."""
        if len(self._runs) == 1:
            return None
        return self._clients.train.count[union].argsort(descending=True, stable=True)

    def _invert(self, order: Ids | None) -> tuple[Ids | None, Ids | None]:
        """Return an order and its inverse, at `home`."""
        if order is None:
            return None, None
        at = order.to(self._home)
        return at, at.argsort()

    def _count_rounds_per_draw(self) -> int:
        """Return the number of rounds whose draws are batched."""
        clients, batch = self._clients, self._clients.batch
        largest = int(clients.train.count.max())
        rows = sum(self.cohort_sizes) * self._work.count_steps(largest, batch)
        rows *= largest if batch == "all" else min(batch, largest)
        sampled = sum(run.size for run in self._runs if run.is_sampled)
        return max(1, VALUES_DRAWN_AHEAD[clients.device.type] // max(1, rows, sampled))

    def _draw_ahead(self, rounds: range) -> Iterator[RoundCohort]:
        """Draw the cohorts and batches of several rounds together on the device."""
        device, clients = self._clients.device, self._clients
        if self.has_full_cohorts:
            full = self._full_round
            plans = clients.draw_plans(full.task.cohort, rounds, self._work)
            for number, plan in zip(rounds, plans, strict=True):
                task = self._make_task(clients, full.task.cohort, number, known_plan=plan)
                yield RoundCohort(full.index, task)
            return
        drawn = self._sampler.draw(rounds, device)
        union = drawn + self._offsets.to(device)
        plans = clients.draw_plans(clients.build_unsorted_cohort(union), rounds, self._work)
        for number, ids, stack, plan in zip(rounds, drawn, union, plans, strict=True):
            task = self._make_task(clients, clients.build_unsorted_cohort(stack), number, known_plan=plan)
            yield RoundCohort(CohortIndex(ids, self.cohort_sizes), task)

    @cached_property
    def _full_round(self) -> RoundCohort:
        """A round of all clients, sorted only where they differ in their number of steps."""
        if self._work.epochs or len(self._runs) == 1 or not self._on_device:
            return next(self._draw_on_host(range(1, 2)))
        index = CohortIndex(self._sampler.draw(range(1, 2), self._home)[0], self.cohort_sizes)
        union = torch.arange(len(self._clients.train.count), device=self._home)
        task = self._make_task(self._clients, self._clients.build_unsorted_cohort(union), 1)
        return RoundCohort(index, task)


class CohortPlanner:
    """The cohort of each round: a pure function of the round, prepared while a device computes."""

    def __init__(self, draws: CohortDraws, last: int) -> None:
        """Store the draws, for rounds up to the last one."""
        # The iterator refers to the draws and not to the planner: a cycle would outlive the training.
        self._draws, self._last = draws, last
        self._rounds: Iterator[RoundCohort] = iter(())
        self._prepared: tuple[int, RoundCohort | None] = (-1, None)

    def draw(self, round: int) -> RoundCohort:
        """Return the cohort of a round, which `prepare` may have drawn before."""
        number, cohort = self._prepared
        if number != round or cohort is None:
            self._rounds = self._draws.draw_rounds(range(round, self._last + 1))
            cohort = next(self._rounds)
            self._prepared = round, cohort
        return cohort

    def prepare(self, round: int) -> None:
        """Draw the cohort of the next round, while a device computes the present one."""
        if self._prepared[0] == round - 1:
            self._prepared = round, next(self._rounds, None)
