"""The clients of one run or of several, their rows where they are used, and how these are read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.federation import Federation
from fedlap.models import CrossEntropy, Model
from fedlap.parts import Part, Scale
from fedlap.randomness import Draws, keys_of
from fedlap.scores import Tally
from fedlap.work import BatchSize, Cohort, Plan, Work, drawn, in_order

# Evaluation takes clients and rows in blocks of about this many values at most (32 MB in float32), counted
# where the network is widest.
BLOCK = 8_000_000
BLOCK_CLIENTS = 256


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of some runs, one run after another, the model they train, and what fixes their batches.

    Rows may lie on the host while they are computed with on a device.
    """

    train: Part
    test: Part
    scale: Scale
    digests: Int64[Tensor, "client"]
    run: Int64[Tensor, "client"]  # which run each belongs to
    seeds: tuple[int, ...]  # of the runs
    model: Model
    batch: BatchSize
    device: torch.device
    dtype: torch.dtype

    @staticmethod
    def of(
        federations: Sequence[Federation],
        seeds: Sequence[int],
        model: Model,
        batch: BatchSize,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "Clients":
        """Those of federations that are resident where they will be read."""
        sizes = torch.tensor([len(each.clients) for each in federations])
        scales = [each.scale for each in federations]
        return Clients(
            Part.joined([each.train for each in federations]),
            Part.joined([each.test for each in federations]),
            Scale.joined(scales, sizes.tolist()),
            torch.cat([each.digests for each in federations]),
            torch.repeat_interleave(torch.arange(len(sizes)), sizes),
            tuple(seeds),
            model,
            batch,
            device,
            dtype,
        )

    @cached_property
    def _placed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers for draws, first rows, counts and runs, where batches are used."""
        every = (self.digests, self.train.first, self.train.count, self.run)
        return tuple(each.to(self.device) for each in every)  # type: ignore[return-value]

    def by_count(self, ids: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
        """Those with most training rows first, so that clients at work are always the first of a stack."""
        return ids[self.train.count[ids].argsort(descending=True, stable=True)]

    def cohort(self, ids: Int64[Tensor, "client"]) -> Cohort:
        """Clients that are known on the host, sorted `by_count`."""
        digests, first, count, _ = self._placed
        at = ids.to(self.device)
        return Cohort(at, digests[at], first[at], count[at], self.train.count[ids])

    def unsorted(self, ids: Int64[Tensor, "*round client"]) -> Cohort:
        """Clients in any order that are known on the device alone; each may have as many rows as any has."""
        digests, first, count, _ = self._placed
        most = self.train.count.max().expand(ids.shape[-1])
        return Cohort(ids, digests[ids], first[ids], count[ids], most)

    def plans(self, cohort: Cohort, rounds: Sequence[int], work: Work) -> list[Plan]:
        """The mini-batches of these rounds."""
        first, second = keys_of(self.seeds, "batches", rounds, self.device)
        if len(self.seeds) > 1:
            run = self._placed[3][cohort.ids]
            first, second = (key.gather(1, run.expand(len(rounds), -1)) for key in (first, second))
        return drawn(Draws((first, second)), cohort, work, self.batch)

    def brought(self, ids: Int64[Tensor, "client"]) -> "Clients":
        """These clients alone with their training rows on the device, copied there while it may be busy."""
        if self.train.store.device == self.device:
            return self
        own = self.train.reordered(ids.tolist())
        x = torch.empty(len(own.row), *own.store.shape[1:], dtype=own.store.dtype, pin_memory=True)
        torch.index_select(own.store, 0, own.row, out=x)
        y, digests = own.y.pin_memory(), self.digests[ids]
        train = Part.of(x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True), own.count)
        return replace(
            self, train=train, scale=self.scale.reordered(ids.tolist()), digests=digests, run=self.run[ids]
        )

    def take(
        self, part: Part, ids: Int64[Tensor, "client"], rows: Int64[Tensor, "client batch"]
    ) -> tuple[Float[Tensor, "client batch *feature"], Tensor]:
        """Features, in the units that models see, and labels of these rows."""
        at = rows.flatten().to(part.row.device)
        y = part.y.index_select(0, at).unflatten(0, rows.shape)
        return self.features(part, ids, part.row.index_select(0, at).view(rows.shape)), y.to(self.device)

    def features(
        self, part: Part, ids: Int64[Tensor, "_"], stored: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch *feature"]:
        """What models see of these places of the store, which belong to the first of these clients."""
        x = part.store.index_select(0, stored.reshape(-1)).view(*stored.shape, *part.store.shape[1:])
        if self.scale.kind == "none" and x.dtype == self.dtype:
            return x if x.device == self.device else x.to(self.device)
        return self.scale.apply(x.to(self.device), ids[: len(stored)], self.dtype)

    def blocks(
        self, part: Part, cohort: Cohort
    ) -> Iterator[tuple[Float[Tensor, "active row *feature"], Tensor, Bool[Tensor, "active row"]]]:
        """All rows of these clients, a block at a time: features, labels, and which are rows and not padding.

        Later blocks may hold fewer clients, always the first.
        """
        width = self.model.network.widest * len(cohort.most)
        rows = max(1, min(int(cohort.most.max()), BLOCK // width))
        plan = in_order(cohort.first, cohort.count, cohort.most, rows)
        for step, active in enumerate(plan.active):
            x, y = self.take(part, cohort.ids[:active], plan.rows[step, :active])
            yield x, y, plan.weight[step, :active] > 0

    def tally(self, W: Float[Tensor, "client param"], part: Part, ids: Int64[Tensor, "client"]) -> Tally:
        """Sums of loss and right answers over the rows of clients `ids`, whose models are in W."""
        loss = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        hits = torch.zeros_like(loss)
        place = part.count[ids].argsort(descending=True, stable=True)
        for some in place.split(BLOCK_CLIENTS):
            at, own = some.to(self.device), ids[some].to(self.device)
            count = part.count[ids[some]]
            first = part.first[ids[some]].to(self.device)
            cohort = Cohort(own, own, first, count.to(self.device), count)
            self._tally_block(W[some.to(W.device)].to(self.device), part, cohort, at, loss, hits)
        counted = isinstance(self.model.loss_of, CrossEntropy)
        return Tally(loss.cpu(), hits.cpu() if counted else None, part.count[ids])

    def _tally_block(
        self, W: Tensor, part: Part, cohort: Cohort, place: Tensor, loss: Tensor, hits: Tensor
    ) -> None:
        for x, y, inside in self.blocks(part, cohort):
            active = len(x)
            scores = self.model.scores(W[:active], x)
            loss[place[:active]] += (self.model.loss_of.values(scores, y) * inside).double().sum(1)
            if not y.is_floating_point():
                answers = scores.mT.max(-2).indices  # the first of equals, as argmax, in a tenth of the time
                hits[place[:active]] += ((answers == y) & inside).double().sum(1)
