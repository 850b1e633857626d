"""The work of one client in one round, as plain as can be: autograd, no kernel, no buffer, no padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.held_out_rows import select_held_out
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.algorithms.task import ClientScalars, LocalUpdate
from fedlap.models import Batch, Model
from fedlap.models.model import Stack
from fedlap.randomness import Draws, derive_keys
from fedlap.training.batches import Cohort, draw_batches

HOST = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class PlainTask:
    """The work of one client in one round: its rows, the rows of each mini-batch, and the rows' weights."""

    model: Model
    x: Tensor  # (1, row, *feature), standardised
    y: Tensor  # (1, row)
    plan: Sequence[Tensor]  # the row numbers of each mini-batch
    weight: Tensor | None = None  # (row,), in double precision, with mean one

    @property
    def count(self) -> ClientScalars:
        """Number of training rows."""
        return self.x.new_full((1, 1), self.x.shape[1])

    @property
    def steps(self) -> ClientScalars:
        """Number of mini-batches in this round."""
        return self.x.new_full((1, 1), len(self.plan))

    def run(self, update: LocalUpdate, w: Stack, **values: Any) -> Any:
        """Run the update as it is written."""
        return update(w, self, **values)

    def batches(self) -> Iterator[Batch]:
        """Yield the round's mini-batches."""
        for batch, _ in self.batches_with_rows():
            yield batch

    def batches_with_rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "1 batch"]]]:
        """Yield the round's mini-batches, each with the indices of its rows."""
        for rows in self.plan:
            yield Batch(self.x[:, rows], self.y[:, rows], self._weigh(rows)), rows.unsqueeze(0)

    def rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "1 batch"]]]:
        """Yield all training rows as one batch."""
        rows = torch.arange(self.x.shape[1], device=self.x.device)
        yield Batch(self.x, self.y, self._weigh(rows)), rows.unsqueeze(0)

    def _weigh(self, rows: Int64[Tensor, "batch"]) -> Float[Tensor, "1 batch"]:
        """Return the weights of a batch: 1/|B| for each row, times its weight."""
        if self.weight is None:
            return self.x.new_full((1, len(rows)), 1 / len(rows))
        return (self.weight.to(self.x.device)[rows] / len(rows)).to(self.x).unsqueeze(0)

    def gradient(self, w: Stack, batch: Batch) -> Stack:
        """Return ∇F̃(w) by autograd."""
        with torch.enable_grad():
            at = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.model.loss(at, batch).sum(), at)
        return gradient

    def curvature(self, w: Stack, batch: Batch, v: Stack) -> Stack:
        """Return ∇²F̃(w) v by differentiating twice."""
        with torch.enable_grad():
            at = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.model.loss(at, batch).sum(), at, create_graph=True)
            (product,) = torch.autograd.grad((gradient * v).sum(), at)
        return product

    def full_gradient(self, w: Stack) -> Stack:
        """Return ∇F(w)."""
        ((batch, _),) = self.rows()
        return self.gradient(w, batch)

    def loss(self, w: Stack) -> ClientScalars:
        """Return F(w)."""
        ((batch, _),) = self.rows()
        return self.model.loss(w, batch).unsqueeze(1)

    def validation_losses(self, models: Sequence[Stack], every: int) -> Float[Tensor, "1 model"]:
        """Return the mean losses on every `every`-th training row."""
        ((batch, rows),) = self.rows()
        held = select_held_out(batch, rows, every)
        totals = torch.stack([self.model.loss(w, held) - self.model.ridge(w) for w in models], 1)
        weight = held.weight.sum(1, keepdim=True)
        return totals / weight.where(weight > 0, 1.0)


def draw_client_batches(
    seed: int, round: int, digest: Int64[Tensor, "1"], rows: int, work: LocalWork, batch: BatchSize
) -> list[Tensor]:
    """Draw the mini-batches of one client in a round, as row numbers, without padding."""
    count = torch.tensor([rows])
    cohort = Cohort(torch.tensor([0]), digest, torch.tensor([0]), count, count)
    keys = derive_keys([seed], "batches", [round], HOST)
    (plan,) = draw_batches(Draws(keys), cohort, work, batch)
    steps = zip(plan.rows[:, 0], plan.weight[:, 0], strict=True)
    return [step[weight > 0] for step, weight in steps] * plan.repeat
