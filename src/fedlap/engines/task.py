"""The work of a stack of clients in one round."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.engines.clients import Clients
from fedlap.models import Batch
from fedlap.randomness import draws
from fedlap.work import Plan, Work, drawn

Stack = Float[Tensor, "client param"]
Some = Float[Tensor, "_ param"]


@dataclass(frozen=True, eq=False)
class StackTask:
    """A round's work of some clients of a federation, sorted by falling number of rows."""

    clients: Clients
    ids: Int64[Tensor, "client"]
    round: int
    work: Work

    @cached_property
    def plan(self) -> Plan:
        """Which rows each client uses in each step."""
        clients, train = self.clients, self.clients.federation.train
        stream = draws(clients.seed, "batches", self.round)
        digests, first, count = (each[self.ids] for each in (clients.given.digests, train.first, train.count))
        return drawn(stream, digests, first, count, self.work, clients.batch, clients.device)

    @property
    def count(self) -> Float[Tensor, "client 1"]:
        """How many training rows each client has."""
        count = self.clients.given.train.count[self.ids].unsqueeze(1)
        return count.to(self.clients.device, self.clients.dtype)

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
        first = self.clients.federation.train.first[self.ids].to(self.clients.device)
        for batch, rows in self._drawn():
            yield batch, rows - first[: len(rows)].unsqueeze(1)

    def _drawn(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        plan, train = self.plan, self.clients.federation.train
        weight, ids = plan.weight.to(self.clients.dtype), self.ids.to(self.clients.device)
        for step, active in enumerate(plan.active):
            rows = plan.rows[step, :active]
            x, y = self.clients.take(train, ids[:active], rows)
            batch = Batch(x, y, weight[step, :active])
            for _ in range(plan.repeat):
                yield batch, rows

    def descend(self, w: Stack, batch: Batch, lr: float) -> Stack:
        """A step at the clients of the batch, in place: the stack is the task's own."""
        self.clients.model.descend(w[: len(batch.x)], batch, lr)
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
        for x, y, inside in self.clients.blocks(self.clients.federation.train, self.ids):
            number = torch.arange(first, first + x.shape[1], device=x.device)
            first += x.shape[1]
            batch = Batch(x, y, inside.to(self.clients.dtype) / self.count[: len(x)])
            yield batch, torch.where(inside, number, 0)
