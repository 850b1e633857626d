"""The work of a stack of clients in one round."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.conjugates import Conjugate
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.per_run import Number, PerRun, at_rows
from fedlap.errors import InputError, whole
from fedlap.kernels.dense import Ahead, Ascent, Pulled, Way
from fedlap.models import Batch, Goal, Memory
from fedlap.training.batches import BatchPlan, Cohort
from fedlap.training.placement import PlacedClients, check_models

Stack = Float[Tensor, "client param"]
Some = Float[Tensor, "_ param"]
Rows = Float[Tensor, "client 1"]
Dual = Float[Tensor, "client row output"]
Read = Callable[[], Float[Tensor, "client batch *feature"]]
# Steps in a row with as many clients: how many, how features are read, where, and goals, if any are made.
Stretch = tuple[int, Callable[[Tensor], Tensor], Sequence[Tensor], Sequence[Any]]

# On a device the features of several steps are read together, up to this many values (256 MB in float32). A
# CPU reads those of one when they are used, where its cache has just held those of the step before.
TOGETHER = 64_000_000
GOALS = 2_000_000  # values of what a loss wants, up to which a CPU makes them for all steps at once


class LazyBatch(Batch):
    """A batch whose features are read when they are asked for; what is forgotten is read again."""

    def __init__(self, read: Read, y: Tensor, weight: Tensor, goal: Goal | None) -> None:
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
    """A round's work of some of the clients.

    given: their plan, where it was drawn before.
    plainly: step by step, whatever could make all steps at once.
    """

    clients: PlacedClients
    cohort: Cohort
    round: int
    work: LocalWork
    given: BatchPlan | None = None
    plainly: bool = False

    @cached_property
    def plan(self) -> BatchPlan:
        """Which rows each client uses in each step."""
        return self.given or self.clients.plans(self.cohort, [self.round], self.work)[0]

    def alone(self, place: int) -> "StackTask":
        """The work of one client of the stack."""
        c, one = self.cohort, slice(place, place + 1)
        cohort = Cohort(c.ids[one], c.digests[one], c.first[one], c.count[one], c.most[one])
        return StackTask(self.clients, cohort, self.round, self.work, plainly=True)

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
        numbers = _cut(self.plan.active, self.plan.rows)
        for (_, made), (_, (rows,)) in zip(self._steps(), _each(numbers), strict=True):
            for _ in range(self.plan.repeat):
                yield made, rows
            made.forget()

    def _steps(
        self, memory: Memory | None = None, wide: Tensor | None = None
    ) -> Iterator[tuple[int, LazyBatch]]:
        """How many clients are at work in each step, and their batch."""
        y, weight = self._truth
        if self.clients.device.type == "cpu":
            seen = self._when_read(memory, wide)
        else:
            seen = self._together(y, weight)
        parts = _each(_cut(self.plan.active, y, weight))
        for (active, (label, w)), (read, goal) in zip(parts, seen, strict=True):
            yield active, LazyBatch(read, label, w, goal)

    @cached_property
    def _truth(self) -> tuple[Tensor, Float[Tensor, "step client batch"]]:
        """Labels and weights of every step."""
        rows = self.plan.rows
        y = self.clients.train.y.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        return y, self.plan.weight.to(self.clients.dtype)

    @property
    def _stored(self) -> Int64[Tensor, "step client batch"]:
        """Where the features of the plan's rows are."""
        rows = self.plan.rows
        return self.clients.train.row.index_select(0, rows.flatten()).view(rows.shape)

    @property
    def _few(self) -> bool:
        """Whether goals of all steps are made at once on a CPU."""
        return self._truth[0].numel() * self.clients.model.network.outputs <= GOALS

    def _stretches(self, memory: Memory | None, wide: Tensor | None) -> Iterator[Stretch]:
        """The steps of the round, on a CPU."""
        clients, (y, weight) = self.clients, self._truth
        model, batch = clients.model, y.shape[2]
        at, store = (self._stored, clients.train.store) if wide is None else (self.plan.rows, wide)
        tensors = [at]
        if self._few:
            tensors += [model.loss_of.goal(y, weight, model.network.outputs), weight.unsqueeze(2)]
        for active, (places, *goals) in _cut(self.plan.active, *tensors):
            read = clients.reader(store, self.cohort.ids, (active, batch), memory)
            steps = places.flatten(1).unbind(0)
            yield active, read, steps, list(_unbound(goals)) if goals else [None] * len(steps)

    def _when_read(self, memory: Memory | None, wide: Tensor | None) -> Iterator[tuple[Read, Goal | None]]:
        """How the features of each step are read and, where it is worth while, the goal of its loss."""
        for _, read, places, goals in self._stretches(memory, wide):
            for at, goal in zip(places, goals, strict=True):
                yield partial(read, at), goal

    def _together(self, y: Tensor, weight: Tensor) -> Iterator[tuple[Read, Goal | None]]:
        """The same, with features and goals of several steps made at once."""
        clients, train, active = self.clients, self.clients.train, self.plan.active
        loss, outputs, stored = clients.model.loss_of, clients.model.network.outputs, self._stored
        together = max(1, TOGETHER // (stored[0].numel() * train.store[0].numel()))
        for begin in range(0, len(active), together):
            some = stored[begin : begin + together, : active[begin]]
            ids = self.cohort.ids[: active[begin]].repeat(len(some))
            x = clients.features(train, ids, some.flatten(0, 1)).unflatten(0, some.shape[:2])
            now = slice(begin, begin + together)
            goals = loss.goal(y[now], weight[now], outputs)
            for most, each, goal, own in zip(active[now], x, goals, weight[now].unsqueeze(2), strict=True):
                yield partial(each.narrow, 0, 0, most), (goal[:most], own[:most])

    def descend(self, w: Stack, batch: Batch, lr: Number) -> Stack:
        """A step at the clients of the batch, in place: the stack is the task's own."""
        active = len(batch.x)
        self.clients.model.descend(w[:active], batch, at_rows(lr, active))
        return w

    def descended(self, w: Stack, lr: Number) -> Stack:
        """All steps of the round, in place, with as little between them as can be."""
        self._check("w", w)
        if self._fused(w, lr):
            return w
        if self.clients.model.mixes:
            for batch in self.batches():
                self.descend(w, batch, lr)
            return w
        clients, plan, before = self.clients, self.plan, -1
        model, memory, more = clients.model, clients.memory, range(plan.repeat)
        wide = clients.wide if len(w) > 1 else None
        held = model.network.hold(w, len(plan.active) * plan.repeat, memory, wide is not None)
        if clients.device.type == "cpu" and self._few and not isinstance(lr, PerRun):
            # Products leave no room in a cache: whatever else a step touches is waited for.
            for active, read, places, goals in self._stretches(memory, wide):
                descend = held.first(active)
                for at, goal in zip(places, goals, strict=True):
                    x = read(at)
                    for _ in more:
                        model.step_to(descend, x, goal, lr)
        else:
            for active, batch in self._steps(memory, wide):
                if active != before:
                    before, descend, rate = active, held.first(active), at_rows(lr, active)
                for _ in more:
                    model.step(descend, batch, rate)
        held.give()
        return w

    def pulled(
        self, w: Stack, lr: Number, to: Stack, by: Number, times: int = 1, drag: Number | None = None
    ) -> Stack:
        """All steps of the round, in place, each with a step towards other models."""
        self._check("w", w)
        self._check("to", to)
        whole("times", times, 1, scope="pulled")
        if to.is_contiguous() and self._fused(w, lr, times, Pulled(to, by, drag)):
            return w
        for batch in self.batches():
            active = len(batch.x)
            for _ in range(times):
                back = w[:active] - to[:active]
                w = self.descend(w, batch, lr)
                w[:active] -= by * back
            if drag is not None:
                to[:active] -= drag * (to[:active] - w[:active])
        return w

    def ahead(self, w: Stack, lr: Number, then: Number) -> Stack:
        """Steps of two mini-batches each, in place: the second's gradient is that where the first leads."""
        self._check("w", w)
        if self._fused(w, lr, 1, Ahead(then)):
            return w
        for here, there in zip(*[self.batches()] * 2, strict=True):  # one iterator, in turn
            reached = self.descend(w.clone(), here, lr)
            step = self.gradient(reached[: len(there.x)], there)
            w[: len(step)] -= then * step
        return w

    def ascended(self, w: Stack, alpha: Dual, scale: Rows, share: Rows, loss: Conjugate) -> bool:
        """Coordinate ascent through all of the round's rows, in place, where it can be made at once."""
        self._check("w", w)
        return self._fused(w, 0.0, 1, Ascent(loss, alpha, scale, share))

    def _check(self, name: str, w: Tensor) -> None:
        """Raise InputError unless these are models of the task's clients that steps can change in place."""
        clients = self.clients
        check_models(name, w, self.cohort.most.shape[0], clients.model, clients.dtype, clients.device)
        if w.shape[0] > 1 and not w.stride()[0]:
            raise InputError(f"{name} has rows that share one memory; pass a copy, {name}.clone()")

    def _fused(self, w: Stack, lr: Number, times: int = 1, way: Way = None) -> bool:
        """Whether all steps were made at once."""
        fused, plan = None if self.plainly else self.clients.fused, self.plan
        if fused is None or (plan.repeat > 1 and way is not None):
            return False
        return fused(w, self.cohort, plan, lr, plan.repeat * times, way)

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


def _cut(active: Sequence[int], *tensors: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
    """Steps in a row with as many clients at work: how many, and what the tensors hold of these."""
    begin = 0
    for most, alike in groupby(active):
        end = begin + len(list(alike))
        yield most, [each[begin:end, :most] for each in tensors]
        begin = end


def _each(stretches: Iterable[tuple[int, list[Tensor]]]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """The same step by step, cut apart by one operation: views that Python makes take their time."""
    for active, tensors in stretches:
        for parts in _unbound(tensors):
            yield active, parts


def _unbound(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(each.unbind(0) for each in tensors), strict=True)
