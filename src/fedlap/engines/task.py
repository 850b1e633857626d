"""The work of a stack of clients in one round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.column import Number, at_rows
from fedlap.engines.clients import Clients
from fedlap.models import Batch, Memory
from fedlap.work import Cohort, Plan, Work

Stack = Float[Tensor, "client param"]
Some = Float[Tensor, "_ param"]
Read = Callable[[], Float[Tensor, "client batch *feature"]]

# On a device the features of several steps are read together, up to this many values (256 MB in float32). A
# CPU reads those of one when they are used, where its cache has just held those of the step before.
TOGETHER = 64_000_000
GOALS = 2_000_000  # values of what a loss wants, up to which a CPU makes them for all steps at once


class LazyBatch(Batch):
    """A batch whose features are read when they are asked for; what is forgotten is read again."""

    def __init__(self, read: Read, y: Tensor, weight: Tensor, goal: Tensor | None) -> None:
        """With a function that reads them."""
        vars(self).update(_read=read, y=y, weight=weight, goal=goal)

    def __getattr__(self, name: str) -> Any:
        if name != "x":
            raise AttributeError(f"a batch has no {name}")
        vars(self)["x"] = x = vars(self)["_read"]()
        return x

    def forget(self) -> None:
        """Give the memory of the features back, for those of the next batch."""
        vars(self).pop("x", None)


@dataclass(frozen=True, eq=False)
class StackTask:
    """A round's work of some of the clients; `given` is their plan, where it was drawn before."""

    clients: Clients
    cohort: Cohort
    round: int
    work: Work
    given: Plan | None = None

    @cached_property
    def plan(self) -> Plan:
        """Which rows each client uses in each step."""
        return self.given or self.clients.plans(self.cohort, [self.round], self.work)[0]

    def alone(self, place: int) -> "StackTask":
        """The work of one client of the stack."""
        c, one = self.cohort, slice(place, place + 1)
        cohort = Cohort(c.ids[one], c.digests[one], c.first[one], c.count[one], c.most[one])
        return StackTask(self.clients, cohort, self.round, self.work)

    @property
    def count(self) -> Float[Tensor, "client 1"]:
        """How many training rows each client has."""
        return self.cohort.count.unsqueeze(1).to(self.clients.dtype)

    @property
    def steps(self) -> Float[Tensor, "client 1"]:
        """How many mini-batches each client has in this round."""
        used = (self.plan.weight.sum(-1) > 0).sum(0) * self.plan.repeat
        return used.unsqueeze(1).to(self.clients.dtype)

    def batches(self) -> Iterator[Batch]:
        """The round's mini-batches."""
        for batch, _ in self._drawn():
            yield batch

    def numbered(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """The same, each with the numbers of its rows among the client's own."""
        for batch, rows in self._drawn():
            yield batch, rows - self.cohort.first[: len(rows)].unsqueeze(1)

    def _drawn(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        for _, rows, read, label, weight, goal in self._steps():
            made = LazyBatch(read, label, weight, goal)
            for _ in range(self.plan.repeat):
                yield made, rows
            made.forget()

    def _steps(
        self, memory: Memory | None = None, wide: Tensor | None = None
    ) -> Iterator[tuple[int, Tensor, Read, Tensor, Tensor, Tensor | None]]:
        """Of each step clients, rows, how features are read, labels, weights, and the goal of the loss."""
        plan, clients, train = self.plan, self.clients, self.clients.train
        at = plan.rows.flatten()
        stored = train.row.index_select(0, at).view(plan.rows.shape)
        y = train.y.index_select(0, at).unflatten(0, plan.rows.shape)
        weight = plan.weight.to(clients.dtype)
        # Cut into steps once: each view that Python makes takes as long as a small product.
        steps = zip(plan.active, plan.rows.unbind(0), y.unbind(0), weight.unbind(0), strict=True)
        if clients.device.type == "cpu":
            at, store = (stored, train.store) if wide is None else (plan.rows, wide)
            seen = self._when_read(at, store, y, weight, memory)
        else:
            seen = self._together(stored, y, weight)
        every = plan.rows.shape[1]
        for (n, rows, label, w), (read, goal) in zip(steps, seen, strict=True):
            if n == every:
                yield n, rows, read, label, w, goal
            else:
                yield n, rows[:n], read, label[:n], w[:n], None if goal is None else goal[:n]

    def _when_read(
        self, rows: Tensor, store: Tensor, y: Tensor, weight: Tensor, memory: Memory | None
    ) -> Iterator[tuple[Read, Tensor | None]]:
        """How the features of each step are read and, where it is worth while, the goal of its loss."""
        clients, (_, every, batch), before = self.clients, rows.shape, -1
        loss, outputs, active = clients.model.loss_of, clients.model.network.outputs, self.plan.active
        goals: Sequence[Tensor | None] = [None] * len(active)
        if y.numel() * outputs <= GOALS:
            goals = loss.goal(y, weight, outputs).unbind(0)
        for most, at, goal in zip(active, rows.flatten(1).unbind(0), goals, strict=True):
            if most != before:
                read, before = clients.reader(store, self.cohort.ids, (most, batch), memory), most
            yield partial(read, at if most == every else at[: most * batch]), goal

    def _together(self, stored: Tensor, y: Tensor, weight: Tensor) -> Iterator[tuple[Read, Tensor | None]]:
        """The same, with features and goals of several steps made at once."""
        clients, train, active = self.clients, self.clients.train, self.plan.active
        loss, outputs = clients.model.loss_of, clients.model.network.outputs
        together = max(1, TOGETHER // (stored[0].numel() * train.store[0].numel()))
        for begin in range(0, len(active), together):
            some = stored[begin : begin + together, : active[begin]]
            ids = self.cohort.ids[: active[begin]].repeat(len(some))
            x = clients.features(train, ids, some.flatten(0, 1)).unflatten(0, some.shape[:2])
            now = slice(begin, begin + together)
            for most, each, goal in zip(active[now], x, loss.goal(y[now], weight[now], outputs), strict=True):
                yield partial(each.narrow, 0, 0, most), goal

    def descend(self, w: Stack, batch: Batch, lr: Number) -> Stack:
        """A step at the clients of the batch, in place: the stack is the task's own."""
        active = len(batch.x)
        self.clients.model.descend(w[:active], batch, at_rows(lr, active))
        return w

    def descended(self, w: Stack, lr: Number) -> Stack:
        """All steps of the round, in place, with as little between them as can be."""
        clients, plan, before = self.clients, self.plan, -1
        model, memory, more = clients.model, clients.memory, range(plan.repeat - 1)
        wide = clients.wide if len(w) > 1 else None
        held = model.network.hold(w, len(plan.active) * plan.repeat, memory, wide is not None)
        for active, _, read, label, weight, goal in self._steps(memory, wide):
            if active != before:
                before, descend, rate = active, held.first(active), at_rows(lr, active)
            batch = Batch(read(), label, weight, goal)
            model.step(descend, batch, rate)
            for _ in more:
                model.step(descend, batch, rate)
        held.give()
        return w

    def gradient(self, w: Some, batch: Batch) -> Stack:
        """The gradient at the clients of the batch."""
        return self.clients.model.gradient(w[: len(batch.x)], batch)

    def curvature(self, w: Some, batch: Batch, v: Some) -> Stack:
        """The Hessian times v, at the clients of the batch, by differentiating twice."""
        active = len(batch.x)
        with torch.enable_grad():
            at = w[:active].detach().clone().requires_grad_()
            loss = self.clients.model.loss(at, batch).sum()
            (gradient,) = torch.autograd.grad(loss, at, create_graph=True)
            (product,) = torch.autograd.grad((gradient * v[:active]).sum(), at)
        return product

    def slope(self, w: Stack) -> Stack:
        """The gradient over all training rows of every client."""
        model = self.clients.model
        total = model.l2 * w
        for batch, _ in self.rows():
            active = len(batch.x)
            total[:active] += model.gradient(w[:active], batch) - model.l2 * w[:active]
        return total

    def loss(self, w: Stack) -> Float[Tensor, "client 1"]:
        """The loss over all training rows of every client."""
        model = self.clients.model
        total = model.ridge(w)
        for batch, _ in self.rows():
            active = len(batch.x)
            total[:active] += model.loss(w[:active], batch) - model.ridge(w[:active])
        return total.unsqueeze(1)

    def rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """All training rows in blocks, weighted by one over their client's count, with their numbers."""
        first = 0
        for x, y, inside in self.clients.blocks(self.clients.train, self.cohort):
            number = torch.arange(first, first + x.shape[1], device=x.device)
            first += x.shape[1]
            batch = Batch(x, y, inside.to(self.clients.dtype) / self.count[: len(x)])
            yield batch, torch.where(inside, number, 0)
