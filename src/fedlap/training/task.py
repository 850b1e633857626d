"""The local work of a stack of clients in one round."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import ClientScalars, LocalUpdate
from fedlap.models import Batch, BufferFactory, WeightedTargets
from fedlap.models.model import Stack
from fedlap.training.batched_updates import UPDATES
from fedlap.training.batches import BatchPlan, Cohort
from fedlap.training.buffers import BufferPool
from fedlap.training.placement import PlacedClients, check_models
from fedlap.training.state import concatenate_states

FeatureReader = Callable[[], Float[Tensor, "client batch *feature"]]
# Consecutive steps with equally many clients: the number of clients, the reader of features, the places of
# each step, and its weighted targets or None.
StepGroup = tuple[int, Callable[[Tensor], Tensor], Sequence[Tensor], Sequence[Any]]

# On a GPU the features of several steps are gathered together, up to this many values (256 MB in float32). A
# CPU gathers one step when it is used, into the memory that its cache holds from the step before.
MAX_GATHERED_VALUES = 64_000_000
MAX_TARGET_VALUES = 2_000_000  # up to which a CPU computes the targets of all steps at once


class LazyBatch(Batch):
    """A batch whose features are read on first use, and again after `forget`."""

    def __init__(
        self, read: FeatureReader, y: Tensor, weight: Tensor, targets: WeightedTargets | None
    ) -> None:
        """Store the function that reads the features."""
        vars(self).update(_read=read, y=y, weight=weight, targets=targets)

    def __getattr__(self, name: str) -> Any:
        if name != "x":
            raise AttributeError(f"a batch has no attribute {name!r}")
        vars(self)["x"] = x = vars(self)["_read"]()
        return x

    def forget(self) -> None:
        """Release the features, so that the next batch can reuse their memory."""
        vars(self).pop("x", None)


@dataclass(frozen=True, eq=False)
class StackTask:
    """The work of a stack of clients in a round.

    known_plan: the batches, if they were drawn before.
    in_place: whether `run` may overwrite the models that it is given.
    buffers: memory for the copies that `run` trains otherwise.
    step_by_step: do not use a kernel that runs all steps at once.
    """

    clients: PlacedClients
    cohort: Cohort
    round: int
    work: LocalWork
    known_plan: BatchPlan | None = None
    in_place: bool = False
    buffers: BufferPool | None = None
    step_by_step: bool = False

    @cached_property
    def plan(self) -> BatchPlan:
        """The rows that each client uses in each step."""
        return self.known_plan or self.clients.draw_plans(self.cohort, [self.round], self.work)[0]

    @property
    def count(self) -> ClientScalars:
        """Number of training rows of each client."""
        return self.cohort.count.unsqueeze(1).to(self.clients.dtype)

    @property
    def steps(self) -> ClientScalars:
        """Number of mini-batches of each client in this round."""
        used = (self.plan.weight.sum(-1) > 0).sum(0) * self.plan.repeat
        return used.unsqueeze(1).to(self.clients.dtype)

    def batches(self) -> Iterator[Batch]:
        """Iterate over the mini-batches of the round."""
        for batch, _ in self._iterate_batches():
            yield batch

    def batches_with_rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Iterate over the mini-batches, each with the indices of its rows among the client's rows."""
        for batch, rows in self._iterate_batches():
            yield batch, rows - self.cohort.first[: len(rows)].unsqueeze(1)

    def _iterate_batches(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        numbers = _group_steps(self.plan.active, self.plan.rows)
        for (_, batch), (_, (rows,)) in zip(self.iterate_steps(), _iterate_groups(numbers), strict=True):
            for _ in range(self.plan.repeat):
                yield batch, rows
            batch.forget()

    def iterate_steps(
        self, memory: BufferFactory | None = None, wide: Tensor | None = None
    ) -> Iterator[tuple[int, LazyBatch]]:
        """Iterate over the steps: the number of active clients, and their batch."""
        y, weight = self._labels
        if self.clients.device.type == "cpu":
            inputs = self._read_lazily(memory, wide)
        else:
            inputs = self._read_together(y, weight)
        parts = _iterate_groups(_group_steps(self.plan.active, y, weight))
        for (active, (label, w)), (read, targets) in zip(parts, inputs, strict=True):
            yield active, LazyBatch(read, label, w, targets)

    @cached_property
    def _labels(self) -> tuple[Tensor, Float[Tensor, "step client batch"]]:
        """The labels and weights of every step."""
        rows = self.plan.rows
        train, weight = self.clients.train, self.plan.weight
        y = train.y.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        if train.weight is not None:
            weight = weight * train.weight.index_select(0, rows.flatten()).view(rows.shape)
        return y, weight.to(self.clients.dtype)

    @property
    def _stored_places(self) -> Int64[Tensor, "step client batch"]:
        """The places in the store of the rows of the plan."""
        rows = self.plan.rows
        return self.clients.train.row.index_select(0, rows.flatten()).view(rows.shape)

    @property
    def precomputes_targets(self) -> bool:
        """Return whether a CPU computes the weighted targets of all steps at once."""
        return self._labels[0].numel() * self.clients.model.network.outputs <= MAX_TARGET_VALUES

    def group_batches(self, memory: BufferFactory | None, wide: Tensor | None) -> Iterator[StepGroup]:
        """Iterate over the steps of the round on a CPU, in groups of equally many clients."""
        clients, (y, weight) = self.clients, self._labels
        model, batch = clients.model, y.shape[2]
        at, store = (self._stored_places, clients.train.store) if wide is None else (self.plan.rows, wide)
        tensors = [at]
        if self.precomputes_targets:
            tensors += [
                model.loss_function.weighted_targets(y, weight, model.network.outputs),
                weight.unsqueeze(2),
            ]
        for active, (places, *targets) in _group_steps(self.plan.active, *tensors):
            read = clients.make_reader(store, self.cohort.ids, (active, batch), memory)
            steps = places.flatten(1).unbind(0)
            yield active, read, steps, list(_unbind(targets)) if targets else [None] * len(steps)

    def _read_lazily(
        self, memory: BufferFactory | None, wide: Tensor | None
    ) -> Iterator[tuple[FeatureReader, WeightedTargets | None]]:
        """Iterate over the steps: a function that reads the features, and the weighted targets or None."""
        for _, read, places, targets_per_step in self.group_batches(memory, wide):
            for at, targets in zip(places, targets_per_step, strict=True):
                yield partial(read, at), targets

    def _read_together(
        self, y: Tensor, weight: Tensor
    ) -> Iterator[tuple[FeatureReader, WeightedTargets | None]]:
        """Iterate over the steps like `_read_lazily`, but gather features of several steps at once."""
        clients, train, active = self.clients, self.clients.train, self.plan.active
        loss, outputs = clients.model.loss_function, clients.model.network.outputs
        stored = self._stored_places
        together = max(1, MAX_GATHERED_VALUES // (stored[0].numel() * train.store[0].numel()))
        for begin in range(0, len(active), together):
            places = stored[begin : begin + together, : active[begin]]
            ids = self.cohort.ids[: active[begin]].repeat(len(places))
            x = clients.read_features(train, ids, places.flatten(0, 1)).unflatten(0, places.shape[:2])
            now = slice(begin, begin + together)
            targets_per_step = loss.weighted_targets(y[now], weight[now], outputs)
            steps = zip(active[now], x, targets_per_step, weight[now].unsqueeze(2), strict=True)
            for size, features, targets, w in steps:
                yield partial(features.narrow, 0, 0, size), (targets[:size], w[:size])

    def run(self, update: LocalUpdate, w: Stack, **values: Any) -> Any:
        """Run a local update of all clients: batched if it is known, else as written, group by group."""
        self.check("w", w)
        batched = UPDATES.get(update)
        if batched is not None:
            return batched(self, self.make_writable(w), **values)
        results = []
        for first, last, group in self._split_by_steps():
            rows = {name: take_rows(value, len(w), first, last) for name, value in values.items()}
            results.append(update(w[first:last], group, **rows))
        return concatenate_states(results)

    def make_writable(self, w: Stack) -> Stack:
        """Return models that the update may overwrite: a copy, unless the method never reads them again."""
        return w if self.in_place and w.is_contiguous() else self.copy(w)

    def copy(self, w: Stack) -> Stack:
        """Return a contiguous copy of models that the update may overwrite."""
        if self.buffers is None or w.device != self.buffers.device:
            return w.clone(memory_format=torch.contiguous_format)
        return self.buffers.copy(w)

    def _split_by_steps(self) -> Iterator[tuple[int, int, "StackTask"]]:
        """Split the stack into groups of clients with equally many mini-batches."""
        cohort, plan, first = self.cohort, self.plan, 0
        steps = [sum(active > place for active in plan.active) for place in range(plan.rows.shape[1])]
        for count, members in groupby(steps):
            last = first + len(list(members))
            chosen = slice(first, last)
            tensors = (cohort.ids, cohort.digests, cohort.first, cohort.count, cohort.max_count)
            group = Cohort(*(tensor[chosen] for tensor in tensors))
            batches = BatchPlan(
                plan.rows[:count, chosen], plan.weight[:count, chosen], (last - first,) * count, plan.repeat
            )
            yield first, last, replace(self, cohort=group, known_plan=batches)
            first = last

    def check(self, name: str, w: Tensor) -> None:
        """Raise InputError unless w holds the models of the task's clients."""
        clients, count = self.clients, self.cohort.max_count.shape[0]
        fits = isinstance(w, Tensor) and w.shape == (count, clients.model_size)
        if not fits or w.dtype != clients.dtype or w.device != clients.device:
            check_models(name, w, count, clients.model, clients.dtype, clients.device)

    def gradient(self, w: Stack, batch: Batch) -> Stack:
        """Return the gradient at the clients of the batch."""
        return self.clients.model.gradient(w[: len(batch.x)], batch)

    def curvature(self, w: Stack, batch: Batch, v: Stack) -> Stack:
        """Return the Hessian times v at the clients of the batch, by differentiating twice."""
        active = len(batch.x)
        with torch.enable_grad():
            at = w[:active].detach().clone().requires_grad_()
            loss = self.clients.model.loss(at, batch).sum()
            (gradient,) = torch.autograd.grad(loss, at, create_graph=True)
            (product,) = torch.autograd.grad((gradient * v[:active]).sum(), at)
        return product

    def full_gradient(self, w: Stack) -> Stack:
        """Return the gradient over all training rows of every client."""
        model = self.clients.model
        total = model.l2 * w
        for batch, _ in self.rows():
            active = len(batch.x)
            total[:active] += model.gradient(w[:active], batch) - model.l2 * w[:active]
        return total

    def loss(self, w: Stack) -> ClientScalars:
        """Return the loss over all training rows of every client."""
        model = self.clients.model
        total = model.ridge(w)
        for batch, _ in self.rows():
            active = len(batch.x)
            total[:active] += model.loss(w[:active], batch) - model.ridge(w[:active])
        return total.unsqueeze(1)

    def validation_losses(self, models: Sequence[Stack], every: int) -> Float[Tensor, "client model"]:
        """Return the mean losses on every `every`-th training row of every client."""
        model, first = self.clients.model, 0
        totals = models[0].new_zeros(len(models[0]), len(models))
        weight = totals.new_zeros(len(totals), 1)
        for batch, inside in self.clients.read_batches(self.clients.train, self.cohort):
            active, rows = inside.shape
            chosen = slice((every - 1 - first) % every, None, every)
            first += rows
            held = Batch(batch.x[:, chosen].contiguous(), batch.y[:, chosen], batch.weight[:, chosen])
            if held.weight.shape[1]:
                losses = [model.loss(w[:active], held) - model.ridge(w[:active]) for w in models]
                totals[:active] += torch.stack(losses, 1)
                weight[:active] += held.weight.sum(1, keepdim=True)
        return totals / weight.where(weight > 0, 1.0)

    def rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Iterate over all training rows in blocks, weighted by 1/n_k, with the indices of the rows."""
        first = 0
        for batch, inside in self.clients.read_batches(self.clients.train, self.cohort):
            number = torch.arange(first, first + inside.shape[1], device=inside.device)
            first += inside.shape[1]
            yield batch, torch.where(inside, number, 0)


def _group_steps(active: Sequence[int], *tensors: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
    """Group consecutive steps with equally many active clients: their number, and slices of the tensors."""
    begin = 0
    for clients, steps in groupby(active):
        end = begin + len(list(steps))
        yield clients, [tensor[begin:end, :clients] for tensor in tensors]
        begin = end


def _iterate_groups(
    groups: Iterable[tuple[int, list[Tensor]]],
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Iterate over single steps; one `unbind` per group is faster than indexing step by step in Python."""
    for active, tensors in groups:
        for parts in _unbind(tensors):
            yield active, parts


def _unbind(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.unbind(0) for tensor in tensors), strict=True)


def take_rows(value: Any, clients: int, first: int, last: int) -> Any:
    """Return the rows of some clients if a value has one row per client, else the value unchanged."""
    per_client = isinstance(value, Tensor) and value.dim() > 0 and len(value) == clients
    return value[first:last] if per_client else value
