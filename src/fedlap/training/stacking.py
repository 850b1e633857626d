"""Runs side by side: seeds and settings as further blocks of one stack of clients."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from fedlap.algorithms import Algorithm, Overwriting, Own, State, Steady
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.per_run import PerRun
from fedlap.training.batches import BatchPlan
from fedlap.training.buffers import BufferPool
from fedlap.training.client_sampling import ClientSampler, Ids, Member
from fedlap.training.cuda_graph import side_by_side
from fedlap.training.engines import Engine, Stacked
from fedlap.training.jobs import differing, one_method
from fedlap.training.placement import PlacedClients
from fedlap.training.run_tables import Places, RunTables
from fedlap.training.state import mapped, moved, nbytes, pieces, rows, written
from fedlap.training.task import StackTask

Kept = tuple[State, State]  # by the server, and by the clients
Sent = tuple[int, int]  # bytes by and to clients
Made = tuple[State, State, list[int]]  # kept and sent by clients, one run after another; bytes they were told

# Draws are made for as many rounds at once as stay below this many row numbers, where who works is known or
# drawn on the device too: starting an operation takes its time, on a GPU above all.
AHEAD = defaultdict(lambda: 4_000_000, cpu=200_000)
MOST_STEPS = 4_000  # in a round that is recorded


@dataclass(frozen=True, eq=False)
class Turn:
    """Who works in a round, and the work of all of them as one stack."""

    places: Places
    task: StackTask

    def tensors(self) -> tuple[State, ...]:
        """What differs from turn to turn where shapes are the same."""
        plan, who = self.task.plan, self.task.cohort
        return (
            self.places.everyone,
            (who.ids, who.digests, who.first, who.count),
            (plan.rows, plan.weight),
        )

    def holding(self, tensors: tuple[State, ...]) -> "Turn":
        """The same with these tensors."""
        everyone, who, (rows, weight) = tensors
        task, plan = self.task, self.task.plan
        cohort = replace(task.cohort, **dict(zip(("ids", "digests", "first", "count"), who, strict=True)))
        given = BatchPlan(rows, weight, plan.active, plan.repeat)
        return Turn(
            replace(self.places, everyone=everyone),
            StackTask(task.clients, cohort, task.round, task.work, given),
        )


@dataclass(frozen=True, eq=False)
class Stack:
    """Runs of one method on one engine. What they keep is at `home`, which is the device or the host."""

    members: list[Member]
    engine: Engine
    work: LocalWork
    home: torch.device

    @property
    def clients(self) -> PlacedClients:
        """Those of all runs."""
        return self.engine.clients

    @cached_property
    def _room(self) -> BufferPool:
        return BufferPool(self.home)

    @cached_property
    def _pool(self) -> RunTables:
        return RunTables(self._sizes)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """How many clients of each run work in a round."""
        return tuple(member.working for member in self.members)

    @cached_property
    def _lots(self) -> ClientSampler:
        return ClientSampler.of(self.members)

    @cached_property
    def _begin(self) -> Ids:
        """For each client that works, where those of its run begin among all."""
        begin = torch.tensor([member.begin for member in self.members])
        return begin.repeat_interleave(torch.tensor(self._sizes))

    @cached_property
    def replays(self) -> bool:
        """Whether every round is the same sequence of operations on tensors that stay on a GPU."""
        some = any(member.sampled for member in self.members)
        near = self.clients.train.store.device == self.home
        alike = not (self.work.epochs and some) and not self.clients.model.mixes  # sizes of batches are read
        return self._steady and near and alike and self._steps <= MOST_STEPS

    @cached_property
    def ends_alike(self) -> bool:
        """Whether, of rounds that differ, at least the ends of several runs are the same on a GPU."""
        return self._steady and not self.replays and len(self.members) > 1

    @cached_property
    def _steady(self) -> bool:
        first = self.members[0].algorithm
        steady = isinstance(first, Steady) and first.steady == "round"
        return steady and self.home.type == "cuda" and isinstance(self.engine, Stacked)

    @cached_property
    def _all_work(self) -> bool:
        """Whether all clients work in every round, as one stack, where their rows are."""
        near = self.clients.train.store.device == self.clients.device
        return near and isinstance(self.engine, Stacked) and not any(m.sampled for m in self.members)

    @cached_property
    def _in_place(self) -> bool:
        """Whether a CPU need not copy what the server keeps: all make as many steps, in the table's order."""
        on_host = self.clients.device.type == "cpu" and self._all_work and not self.work.epochs
        return on_host and len(self.members) == 1 and isinstance(self.members[0].algorithm, Overwriting)

    @cached_property
    def _steps(self) -> int:
        """The most steps of a round."""
        return self.work.steps(int(self.clients.train.count.max()), self.clients.batch)

    def turns(self, rounds: range) -> Iterator[Turn]:
        """Who works, round after round."""
        ahead = self.replays or self._all_work
        at_once = self._rounds_at_once() if ahead else max(1, AHEAD["cpu"] // self._lots.numbers)
        for begin in range(0, len(rounds), at_once):
            some = rounds[begin : begin + at_once]
            yield from self._drawn_ahead(some) if ahead else self._drawn_on_host(some)

    def _drawn_on_host(self, rounds: range) -> Iterator[Turn]:
        """The turns of several rounds; those with most rows come first, where it matters, in the stack."""
        for number, everyone in zip(rounds, self._lots.drawn(rounds, torch.device("cpu")), strict=True):
            apart = len(self.members) == 1 and not self._in_place
            ids = self.clients.by_count(everyone) if apart else everyone
            union = ids + self._begin
            order = self._order(union)
            stack = union if order is None else union[order]
            clients = self.clients.brought(stack)
            at = stack if clients is self.clients else torch.arange(len(stack))
            places = Places(ids.to(self.home), self._sizes, *self._both_ways(order))
            yield Turn(places, StackTask(clients, clients.cohort(at), number, self.work))

    def _order(self, union: Ids) -> Ids | None:
        """Those with most rows first, over all runs; one run's are sorted before its state is read."""
        if len(self.members) == 1:
            return None
        return self.clients.train.count[union].argsort(descending=True, stable=True)

    def _both_ways(self, order: Ids | None) -> tuple[Ids | None, Ids | None]:
        if order is None:
            return None, None
        at = order.to(self.home)
        return at, at.argsort()

    def _rounds_at_once(self) -> int:
        """For how many rounds draws are made together."""
        batch = self.clients.batch
        largest = int(self.clients.train.count.max())
        rows = sum(member.working for member in self.members) * self._steps
        rows *= largest if batch == "all" else min(batch, largest)
        everyone = sum(member.size for member in self.members if member.sampled)
        return max(1, AHEAD[self.clients.device.type] // max(1, rows, everyone))

    def _drawn_ahead(self, rounds: range) -> Iterator[Turn]:
        """The turns of several rounds, drawn together on the device."""
        device, clients = self.clients.device, self.clients
        if self._all_work:
            turn = self._everyone
            for number, plan in zip(rounds, clients.plans(turn.task.cohort, rounds, self.work), strict=True):
                task = StackTask(clients, turn.task.cohort, number, self.work, plan)
                yield Turn(turn.places, task)
            return
        everyone = self._lots.drawn(rounds, device)
        union = everyone + self._begin.to(device)
        plans = clients.plans(clients.unsorted(union), rounds, self.work)
        for number, ids, stack, plan in zip(rounds, everyone, union, plans, strict=True):
            task = StackTask(clients, clients.unsorted(stack), number, self.work, plan)
            yield Turn(Places(ids, self._sizes), task)

    @cached_property
    def _everyone(self) -> Turn:
        """All clients of all runs; sorted only where they differ in how many steps they make."""
        if self.work.epochs or len(self.members) == 1 or not self.replays:
            return next(self._drawn_on_host(range(1, 2)))
        places = Places(self._lots.drawn(range(1, 2), self.home)[0], self._sizes)
        union = torch.arange(len(self.clients.train.count), device=self.home)
        return Turn(places, StackTask(self.clients, self.clients.unsorted(union), 1, self.work))

    def laid(self, kept: Sequence[Kept]) -> list[Kept]:
        """A copy of what runs keep, where rounds may write, and such that all runs are read at once."""
        return self._pool.laid(kept)

    def at_work(self, kept: Sequence[Kept], turn: Turn, method: Algorithm | None = None) -> Made:
        """Local work of a round: what each run's clients keep and send, and how much they were told."""
        places = turn.places
        method = method or self.shared(places)
        given = [_given(*run) for run in zip(self.members, kept, places.ids, strict=True)]
        if len(given) == 1:
            states = self._room.filled(given[0], tuple(kept), self._in_place)
        else:
            states = self._pool.read(given, places)
        worked = self.engine.each(method.local, moved(states, self.clients.device), turn.task)
        made = moved(worked, self.home)  # where `back` is, too
        own, ups = made if places.back is None else rows(made, places.back)
        return own, ups, [nbytes(told) for _, told in given]

    def settled(self, kept: Sequence[Kept], places: Places, made: Made) -> tuple[list[Kept], list[Sent]]:
        """What servers and clients keep after a round, and the bytes sent."""
        own, ups, downs = made
        private = self._pool.put([each for _, each in kept], places, own)
        servers = [server for server, _ in kept]
        apart = pieces(ups, places.sizes)
        each = zip(self.members, servers, private, places.ids, apart, downs, strict=True)
        after, sent = zip(*side_by_side([partial(_settled, self.engine, *run) for run in each]), strict=True)
        return list(after), list(sent)

    def recorded(self, turn: Turn) -> Callable[[State, State], tuple[State, list[Sent]]]:
        """A round as a function of what is kept and of the tensors of a turn like this one."""
        method = self.shared(turn.places)

        def function(kept: State, tensors: State) -> tuple[State, list[Sent]]:
            now = turn.holding(tensors)
            after, sent = self.settled(kept, now.places, self.at_work(kept, now, method))
            return tuple(after), sent

        return function

    def recorded_end(self, told: list[int]) -> Callable[[State, State], tuple[State, list[Sent]]]:
        """The end of a round as a function of what is kept, and of who has worked and what they made."""

        def function(kept: State, inputs: State) -> tuple[State, list[Sent]]:
            everyone, own, ups = inputs
            after, sent = self.settled(kept, Places(everyone, self._sizes), (own, ups, told))
            return tuple(after), sent

        return function

    @cached_property
    def _differing(self) -> dict[str, list[Any]]:
        """Settings that differ between runs."""
        return differing([member.algorithm for member in self.members])

    def shared(self, places: Places) -> Algorithm:
        """One method for a stack of these clients, with columns for settings that differ."""
        return one_method(self.members[0].algorithm, self._differing, partial(self._column, places))

    def _column(self, places: Places, values: Sequence[float]) -> PerRun:
        numbers = torch.tensor(values, dtype=torch.float64)
        placed = torch.repeat_interleave(numbers, torch.tensor(places.sizes)).unsqueeze(1)
        placed = placed.to(self.home, self.clients.dtype)
        return PerRun((placed if places.order is None else placed[places.order]).to(self.clients.device))


def _given(member: Member, kept: Kept, ids: Ids) -> tuple[State, State]:
    """What the clients of a round keep, and what they are told."""
    algorithm: Any = member.algorithm
    server, private = kept
    own = mapped(lambda table: Own(table, ids), private)
    return own, algorithm.send(server, ids) if member.served else None


def _settled(
    engine: Engine, member: Member, server: State, private: State, ids: Ids, up: State, down: int
) -> tuple[Kept, Sent]:
    """What a run keeps after a round, from what its clients keep and sent, and the bytes sent in it."""
    algorithm: Any = member.algorithm
    if member.served:
        return (written(server, algorithm.merge(server, ids, up)), private), (nbytes(up), down)
    # Without a server every message is sent by a client and to a client.
    crossed = algorithm.messages() * nbytes(up) // len(ids)
    return (server, engine.mix(algorithm, private)), (crossed, crossed)
