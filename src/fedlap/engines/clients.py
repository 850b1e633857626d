"""The clients' rows where they are used, and the work on them, for a stack of any size."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.federation import Federation
from fedlap.models import CrossEntropy, Model
from fedlap.parts import Part
from fedlap.scores import Tally
from fedlap.work import BatchSize, in_order

# Evaluation takes clients and rows in blocks of about this many values at most (32 MB in float32), counted
# where the network is widest.
BLOCK = 8_000_000
BLOCK_CLIENTS = 256


@dataclass(frozen=True, eq=False)
class Clients:
    """A federation on a device, the model its clients train, and what fixes their batches."""

    given: Federation
    model: Model
    seed: int
    batch: BatchSize
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def federation(self) -> Federation:
        """The rows on the device, in the precision asked for."""
        return self.given.resident(self.device, self.dtype)

    def take(
        self, part: Part, ids: Int64[Tensor, "client"], rows: Int64[Tensor, "client batch"]
    ) -> tuple[Float[Tensor, "client batch *feature"], Tensor]:
        """Features, in the units that models see, and labels of these rows."""
        at = rows.flatten()
        x = part.store.index_select(0, part.row.index_select(0, at)).unflatten(0, rows.shape)
        y = part.y.index_select(0, at).unflatten(0, rows.shape)
        return self.federation.scale.apply(x, ids, self.dtype), y

    def by_count(self, ids: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
        """Those with most training rows first, so that clients at work are always the first of a stack."""
        return ids[self.given.train.count[ids].argsort(descending=True, stable=True)]

    def blocks(
        self, part: Part, ids: Int64[Tensor, "client"]
    ) -> Iterator[tuple[Float[Tensor, "active row *feature"], Tensor, Bool[Tensor, "active row"]]]:
        """All rows of these clients, a block at a time: features, labels, and which are rows and not padding.

        The clients must be sorted by falling number of rows; later blocks may hold fewer, always the first.
        """
        count = part.count[ids]
        rows = max(1, min(int(count[0]), BLOCK // (self.model.network.widest * len(ids))))
        plan = in_order(part.first[ids], count, rows, self.device)
        ids = ids.to(self.device)
        for step, active in enumerate(plan.active):
            x, y = self.take(part, ids[:active], plan.rows[step, :active])
            yield x, y, plan.weight[step, :active] > 0

    def tally(self, W: Float[Tensor, "client param"], part: Part, ids: Int64[Tensor, "client"]) -> Tally:
        """Sums of loss and right answers over the rows of clients `ids`, whose models are in W."""
        loss = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        hits = torch.zeros_like(loss)
        place = torch.arange(len(ids))[part.count[ids].argsort(descending=True, stable=True)]
        for some in place.split(BLOCK_CLIENTS):
            self._tally_block(W[some.to(self.device)], part, ids[some], some.to(self.device), loss, hits)
        counted = isinstance(self.model.loss_of, CrossEntropy)
        return Tally(loss.cpu(), hits.cpu() if counted else None, part.count[ids])

    def _tally_block(
        self, W: Tensor, part: Part, ids: Tensor, place: Tensor, loss: Tensor, hits: Tensor
    ) -> None:
        for x, y, inside in self.blocks(part, ids):
            active = len(x)
            scores = self.model.scores(W[:active], x)
            loss[place[:active]] += (self.model.loss_of.values(scores, y) * inside).double().sum(1)
            if not y.is_floating_point():
                hits[place[:active]] += ((scores.argmax(-1) == y) & inside).double().sum(1)
