"""Runs side by side: seeds and settings as further blocks of one stack of clients."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from fedlap.algorithms import Algorithm, Own, State, Steady
from fedlap.algorithms.column import Column
from fedlap.engines import Clients, Engine, Stacked
from fedlap.engines.replay import side_by_side
from fedlap.engines.room import Room
from fedlap.engines.state import joined, mapped, moved, nbytes, pieces, put, read, rows, written
from fedlap.engines.task import StackTask
from fedlap.members import Ids, Member, sampled_on
from fedlap.trials import one_method
from fedlap.work import Plan, Work

Kept = tuple[State, State]  # by the server, and by the clients
Sent = tuple[int, int]  # bytes by and to clients
Made = tuple[list[State], list[State], list[int]]  # kept and sent by clients, and bytes they were told

# Draws are made for as many rounds at once as stay below this many row numbers, where who works is known or
# drawn on the device too: starting an operation takes its time, on a GPU above all.
AHEAD = defaultdict(lambda: 4_000_000, cpu=200_000)
MOST_STEPS = 4_000  # in a round that is recorded


@dataclass(frozen=True, eq=False)
class Turn:
    """Who works in a round, run by run, and the work of all of them as one stack.

    `order` sorts the runs' clients, one run after another, into the stack; `back` undoes it.
    """

    ids: list[Ids]  # numbers of each run's own
    order: Ids | None
    back: Ids | None
    task: StackTask

    def tensors(self) -> tuple[State, ...]:
        """What differs from turn to turn where shapes are the same."""
        plan, who = self.task.plan, self.task.cohort
        return tuple(self.ids), (who.ids, who.digests, who.first, who.count), (plan.rows, plan.weight)

    def holding(self, tensors: tuple[State, ...]) -> "Turn":
        """The same with these tensors."""
        ids, who, (rows, weight) = tensors
        task, plan = self.task, self.task.plan
        cohort = replace(task.cohort, **dict(zip(("ids", "digests", "first", "count"), who, strict=True)))
        given = Plan(rows, weight, plan.active, plan.repeat)
        return replace(
            self, ids=list(ids), task=StackTask(task.clients, cohort, task.round, task.work, given)
        )


@dataclass(frozen=True, eq=False)
class Stack:
    """Runs of one method on one engine. What they keep is at `home`, which is the device or the host."""

    members: list[Member]
    engine: Engine
    work: Work
    home: torch.device

    @property
    def clients(self) -> Clients:
        """Those of all runs."""
        return self.engine.clients

    @cached_property
    def _room(self) -> Room:
        return Room(self.home)

    @cached_property
    def replays(self) -> bool:
        """Whether every round is the same sequence of operations on tensors that stay on a GPU."""
        first = self.members[0].algorithm
        some = any(member.sampled for member in self.members)
        return (
            self.home.type == "cuda"
            and self.clients.train.store.device == self.home
            and isinstance(self.engine, Stacked)
            and isinstance(first, Steady)
            and first.steady == "round"
            and not (self.work.epochs and some)
            and self._steps <= MOST_STEPS
        )

    @cached_property
    def _all_work(self) -> bool:
        """Whether all clients work in every round, as one stack, where their rows are."""
        near = self.clients.train.store.device == self.clients.device
        return near and isinstance(self.engine, Stacked) and not any(m.sampled for m in self.members)

    @cached_property
    def _steps(self) -> int:
        """The most steps of a round."""
        return self.work.steps(int(self.clients.train.count.max()), self.clients.batch)

    def turns(self, rounds: range) -> Iterator[Turn]:
        """Who works, round after round."""
        if not self.replays and not self._all_work:
            yield from map(self.turn, rounds)
            return
        at_once = self._rounds_at_once()
        for begin in range(0, len(rounds), at_once):
            yield from self._drawn_ahead(rounds[begin : begin + at_once])

    def turn(self, number: int) -> Turn:
        """Who works in a round, known on the host; those with most rows come first in the stack."""
        ids = [member.chosen(number) for member in self.members]
        if len(ids) == 1:
            ids = [self.clients.by_count(ids[0])]
        union = torch.cat([own + member.begin for own, member in zip(ids, self.members, strict=True)])
        order = self._order(union)
        stack = union if order is None else union[order]
        clients = self.clients.brought(stack)
        places = stack if clients is self.clients else torch.arange(len(stack))
        return Turn(
            [own.to(self.home) for own in ids],
            *self._both_ways(order),
            StackTask(clients, clients.cohort(places), number, self.work),
        )

    def _order(self, union: Ids) -> Ids | None:
        """Those with most rows first, over all runs; one run's are sorted before its state is read."""
        if len(self.members) == 1:
            return None
        return self.clients.train.count[union].argsort(descending=True, stable=True)

    def _both_ways(self, order: Ids | None) -> tuple[Ids | None, Ids | None]:
        if order is None:
            return None, None
        at = order.to(self.clients.device)
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
                yield Turn(turn.ids, turn.order, turn.back, task)
            return
        ids = [sampled_on(device, member, rounds) for member in self.members]
        union = torch.cat([own + member.begin for own, member in zip(ids, self.members, strict=True)], 1)
        plans = clients.plans(clients.unsorted(union), rounds, self.work)
        for place, (number, plan) in enumerate(zip(rounds, plans, strict=True)):
            task = StackTask(clients, clients.unsorted(union[place]), number, self.work, plan)
            yield Turn([own[place] for own in ids], None, None, task)

    @cached_property
    def _everyone(self) -> Turn:
        """All clients of all runs; sorted only where they differ in how many steps they make."""
        if self.work.epochs or len(self.members) == 1 or not self.replays:
            return self.turn(1)
        ids = [torch.arange(member.size, device=self.home) for member in self.members]
        union = torch.arange(len(self.clients.train.count), device=self.home)
        return Turn(ids, None, None, StackTask(self.clients, self.clients.unsorted(union), 1, self.work))

    def at_work(self, kept: Sequence[Kept], turn: Turn, method: Algorithm | None = None) -> Made:
        """Local work of a round: what each run's clients keep and send, and how much they were told."""
        sizes = [len(ids) for ids in turn.ids]
        method = method or self.shared(sizes, turn.order)
        runs = list(zip(self.members, kept, turn.ids, strict=True))
        if len(runs) == 1:
            given = [_given(*runs[0])]
            states = self._room.filled(given[0], tuple(kept))
        else:
            given = side_by_side([partial(_read, *run) for run in runs])
            states = joined(given)
        states = moved(states, self.clients.device)
        if turn.order is not None:
            states = rows(states, turn.order)
        made = self.engine.each(method.local, states, turn.task)
        if turn.back is not None:
            made = rows(made, turn.back)
        kept_anew, ups = (pieces(moved(state, self.home), sizes) for state in made)
        return kept_anew, ups, [nbytes(told) for _, told in given]

    def settled(self, kept: Sequence[Kept], turn: Turn, made: Made) -> tuple[list[Kept], list[Sent]]:
        """What servers and clients keep after a round, and the bytes sent."""
        each = zip(self.members, kept, turn.ids, *made, strict=True)
        after, sent = zip(*side_by_side([partial(_settled, self.engine, *run) for run in each]), strict=True)
        return list(after), list(sent)

    def recorded(self, turn: Turn) -> Callable[[State, State], tuple[State, list[Sent]]]:
        """A round as a function of what is kept and of the tensors of a turn like this one."""
        method = self.shared([len(ids) for ids in turn.ids], turn.order)

        def function(kept: State, tensors: State) -> tuple[State, list[Sent]]:
            now = turn.holding(tensors)
            after, sent = self.settled(kept, now, self.at_work(kept, now, method))
            return tuple(after), sent

        return function

    def shared(self, sizes: Sequence[int], order: Ids | None) -> Algorithm:
        """One method for a stack of so many clients of each run, with columns for settings that differ."""
        methods = [member.algorithm for member in self.members]
        return methods[0] if len(methods) == 1 else one_method(methods, partial(self._column, sizes, order))

    def _column(self, sizes: Sequence[int], order: Ids | None, values: Sequence[float]) -> Column:
        numbers = torch.tensor(values, dtype=torch.float64)
        placed = torch.repeat_interleave(numbers, torch.tensor(sizes)).unsqueeze(1)
        placed = placed.to(self.clients.device, self.clients.dtype)
        return Column(placed if order is None else placed[order])


def _given(member: Member, kept: Kept, ids: Ids) -> tuple[State, State]:
    """What the clients of a round keep, and what they are told."""
    algorithm: Any = member.algorithm
    server, private = kept
    own = mapped(lambda table: Own(table, ids), private)
    return own, algorithm.send(server, ids) if member.served else None


def _read(member: Member, kept: Kept, ids: Ids) -> tuple[State, State]:
    """The same, with rows read."""
    own, told = _given(member, kept, ids)
    return read(own), read(told)


def _settled(
    engine: Engine, member: Member, kept: Kept, ids: Ids, own: State, up: State, down: int
) -> tuple[Kept, Sent]:
    """What a run keeps after a round, and the bytes sent in it."""
    algorithm: Any = member.algorithm
    server, private = kept
    if member.served:
        server = written(server, algorithm.merge(server, ids, up))
        return (server, put(private, ids, own)), (nbytes(up), down)
    # Without a server every message is sent by a client and to a client.
    crossed = algorithm.messages() * nbytes(up) // len(ids)
    return (server, engine.mix(algorithm, put(private, ids, own))), (crossed, crossed)
