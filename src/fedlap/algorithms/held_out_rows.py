"""Validation rows within a client's training rows: every fifth row, for example."""

from jaxtyping import Int64
from torch import Tensor

from fedlap.models import Batch


def select_held_out(batch: Batch, rows: Int64[Tensor, "client batch"], every: int) -> Batch:
    """Return the batch with weights on rows `every` − 1, 2·`every` − 1, … of each client alone."""
    return Batch(batch.x, batch.y, batch.weight * ((rows + 1) % every == 0))


def drop_held_out(batch: Batch, rows: Int64[Tensor, "client batch"], every: int) -> Batch:
    """Return the batch without these rows; the others' weights keep their sum."""
    weight = batch.weight * ((rows + 1) % every != 0)
    total = weight.sum(1, keepdim=True)
    scale = batch.weight.sum(1, keepdim=True) / total.where(total > 0, 1.0)
    return Batch(batch.x, batch.y, weight * scale)
