"""The clients of one run or of several, their rows where they are used, and how these are read."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.data.standardize import Standardizer
from fedlap.errors import InputError
from fedlap.kernels.dense import Fused
from fedlap.models import CrossEntropy, DenseNetwork, Memory, Model, widened
from fedlap.randomness import Draws, keys_of
from fedlap.training import stored_scores
from fedlap.training.batches import BatchPlan, Cohort, drawn, in_order
from fedlap.training.scores import Tally

# Evaluation takes clients and rows in blocks of about this many values at most (32 MB in float32), counted
# where the network is widest.
BLOCK = 8_000_000
BLOCK_CLIENTS = 256
# From this many steps of a round on, a copy of features by which they are faster is worth its memory, up to
# so many values (256 MB in float32).
STEPS, WIDE = 8, 64_000_000
REMEMBERED = 1_000_000  # rows of a part, of which it is remembered how they are scored (33 MB)

# Clients, where rows are stored, labels, which are no padding, and spans of rows that are read in the store.
Block = tuple[Tensor, Tensor, Tensor, Tensor, list[stored_scores.Span] | None]
Piece = tuple[Tensor, Tensor, Iterable[Block]]


class Lent:
    """Memory that is lent again and again, one block under each name, as large as was ever asked for."""

    def __init__(self) -> None:
        """None so far."""
        self._blocks: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A block of this shape, in which the last to have it has left something."""
        size = math.prod(shape)
        block = self._blocks.get((name, dtype))
        if block is None or len(block) < size:
            self._blocks[name, dtype] = block = torch.empty(size, dtype=dtype)
        return block[:size].view(shape)


@dataclass(frozen=True, eq=False)
class PlacedClients:
    """The clients of some runs, one run after another, the model they train, and what fixes their batches.

    Rows may lie on the host while they are computed with on a device.
    """

    train: ClientRows
    test: ClientRows
    scale: Standardizer
    digests: Int64[Tensor, "client"]
    run: Int64[Tensor, "client"]  # which run each belongs to
    seeds: tuple[int, ...]  # of the runs
    model: Model
    batch: BatchSize
    device: torch.device
    dtype: torch.dtype
    wide: Float[Tensor, "row wide"] | None = None  # training rows as steps on a CPU read them fastest

    @staticmethod
    def of(
        federations: Sequence[Federation],
        seeds: Sequence[int],
        model: Model,
        batch: BatchSize,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "PlacedClients":
        """Those of federations that are resident where they will be read."""
        sizes = torch.tensor([len(each.clients) for each in federations])
        scales = [each.scale for each in federations]
        return PlacedClients(
            ClientRows.joined([each.train for each in federations]),
            ClientRows.joined([each.test for each in federations]),
            Standardizer.joined(scales, sizes.tolist()),
            torch.cat([each.digests for each in federations]),
            torch.repeat_interleave(torch.arange(len(sizes)), sizes),
            tuple(seeds),
            model,
            batch,
            device,
            dtype,
        )

    def ready(self, steps: int) -> "PlacedClients":
        """The same made ready for rounds of so many steps.

        On a CPU the kernel for all of them is compiled by then; without it, many are faster on wide rows, if
        there is room for a copy.
        """
        network, train = self.model.network, self.train
        if self.device.type != "cpu" or (self.fused and self.fused.make(0)):
            return self
        if steps < STEPS or self.scale.kind != "none" or not isinstance(network, DenseNetwork):
            return self
        features = network.widths[0]
        if train.store.dtype != self.dtype or len(train.row) * widened(features) > WIDE:
            return self
        wide = torch.zeros(len(train.row), widened(features), dtype=self.dtype)
        wide[:, :features] = train.store.index_select(0, train.row).flatten(1)
        wide[:, features] = 1
        return replace(self, wide=wide)

    @cached_property
    def _placed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers for draws, first rows, counts and runs, where batches are used."""
        every = (self.digests, self.train.first, self.train.count, self.run)
        return tuple(each.to(self.device) for each in every)  # type: ignore[return-value]

    @cached_property
    def memory(self) -> Memory | None:
        """On a CPU, memory for what a step makes and the next makes anew: new memory comes page by page."""
        return Lent() if self.device.type == "cpu" else None

    @cached_property
    def fused(self) -> Fused | None:
        """All steps of a round as one kernel, where there is one for them."""
        return Fused.of(self)

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

    def plans(self, cohort: Cohort, rounds: Sequence[int], work: LocalWork) -> list[BatchPlan]:
        """The mini-batches of these rounds."""
        first, second = keys_of(self.seeds, "batches", rounds, self.device)
        if len(self.seeds) > 1:
            run = self._placed[3][cohort.ids]
            first, second = (key.gather(1, run.expand(len(rounds), -1)) for key in (first, second))
        return drawn(Draws((first, second)), cohort, work, self.batch)

    def brought(self, ids: Int64[Tensor, "client"]) -> "PlacedClients":
        """These clients alone with their training rows on the device, copied there while it may be busy."""
        if self.train.store.device == self.device:
            return self
        own = self.train.reordered(ids.tolist())
        x = torch.empty(len(own.row), *own.store.shape[1:], dtype=own.store.dtype, pin_memory=True)
        torch.index_select(own.store, 0, own.row, out=x)
        y, digests = own.y.pin_memory(), self.digests[ids]
        train = ClientRows.of(
            x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True), own.count
        )
        return replace(
            self, train=train, scale=self.scale.reordered(ids.tolist()), digests=digests, run=self.run[ids]
        )

    def take(
        self, part: ClientRows, ids: Int64[Tensor, "client"], rows: Int64[Tensor, "client batch"]
    ) -> tuple[Float[Tensor, "client batch *feature"], Tensor]:
        """Features, in the units that models see, and labels of these rows."""
        at = rows.flatten().to(part.row.device)
        y = part.y.index_select(0, at).unflatten(0, rows.shape)
        return self.features(part, ids, part.row.index_select(0, at).view(rows.shape)), y.to(self.device)

    def features(
        self, part: ClientRows, ids: Int64[Tensor, "_"], stored: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch *feature"]:
        """What models see of these places of the store, which belong to the first of these clients."""
        return self.reader(part.store, ids, tuple(stored.shape))(stored.reshape(-1))

    def reader(
        self,
        store: Num[Tensor, "stored *feature"],
        ids: Int64[Tensor, "_"],
        shape: tuple[int, ...],
        memory: Memory | None = None,
    ) -> Callable[[Int64[Tensor, "_"]], Float[Tensor, "client batch *feature"]]:
        """The same as a function of places, for one batch of this shape (client, batch) after another.

        What is read into memory that is lent is lost with the next.
        """
        ids, shape = ids[: shape[0]], (*shape, *store.shape[1:])
        rows = None if memory is None else memory("rows", shape, store.dtype).flatten(0, 1)
        if self.scale.kind == "none" and store.dtype == self.dtype:
            if rows is not None and store.device == self.device:
                return partial(_read_again, store, rows, rows.view(shape))
            return partial(_read, store, self.device, rows, shape)
        return partial(self._read_scaled, store, ids, rows, shape, memory)

    def _read_scaled(
        self,
        store: Tensor,
        ids: Tensor,
        rows: Tensor | None,
        shape: tuple[int, ...],
        memory: Memory | None,
        at: Tensor,
    ) -> Tensor:
        return self.scale.apply(_read(store, self.device, rows, shape, at), ids, self.dtype, memory)

    def blocks(
        self, part: ClientRows, cohort: Cohort, memory: Memory | None = None
    ) -> Iterator[tuple[Float[Tensor, "active row *feature"], Tensor, Bool[Tensor, "active row"]]]:
        """All rows of these clients, a block at a time: features, labels, and which are rows and not padding.

        Later blocks may hold fewer clients, always the first. What is read into memory that is lent is lost
        with the next.
        """
        for own, at, y, inside, _ in self._laid_out(part, cohort):
            yield self.reader(part.store, own, tuple(inside.shape), memory)(at), y, inside

    def _laid_out(self, part: ClientRows, cohort: Cohort) -> Iterator[Block]:
        """Where the rows of these blocks are stored."""
        width = self.model.network.widest * len(cohort.most)
        rows = max(1, min(int(cohort.most.max()), BLOCK // width))
        if self.model.mixes:  # statistics are over all of a client's rows
            rows = max(1, int(cohort.most.max()))
        plan = in_order(cohort.first, cohort.count, cohort.most, rows)
        for step, active in enumerate(plan.active):
            at = plan.rows[step, :active].flatten().to(part.row.device)
            y = part.y.index_select(0, at).unflatten(0, (active, -1)).to(self.device)
            stored, inside = part.row.index_select(0, at), plan.weight[step, :active] > 0
            yield cohort.ids[:active], stored, y, inside, self._spans(part, stored, inside)

    def _spans(self, part: ClientRows, stored: Tensor, inside: Tensor) -> list[stored_scores.Span] | None:
        """Of rows that a CPU may read in the store, as they are."""
        as_they_are = self.scale.kind == "none" and part.store.dtype == self.dtype
        near = self.device.type == "cpu" and as_they_are
        return stored_scores.spans(self.model.network, stored, inside) if near else None

    def _scores(self, W: Tensor, part: ClientRows, block: Block) -> Float[Tensor, "client row output"]:
        """What the models of a block's clients say of its rows, and anything finite of its padding."""
        clients, stored, _, inside, each = block
        if each is not None and isinstance(self.model.network, DenseNetwork):
            return stored_scores.scores(self.model.network, W, part.store, each, inside.shape[1])
        x = self.reader(part.store, clients, tuple(inside.shape), self.memory)(stored)
        return self.model.scores(W, x, inside)

    def tally(
        self, W: Float[Tensor, "client param"], part: ClientRows, ids: Int64[Tensor, "client"]
    ) -> Tally:
        """Sums of loss and right answers over the rows of clients `ids`, whose models are in W."""
        loss = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        hits = torch.zeros_like(loss)
        for some, at, blocks in self._in_pieces(part, ids):
            own = W[some.to(W.device)].to(self.device)
            for block in blocks:
                _, _, y, inside, _ = block
                active = len(y)
                scores = self._scores(own[:active], part, block)
                loss[at[:active]] += (self.model.loss_of.values(scores, y) * inside).double().sum(1)
                if not y.is_floating_point():
                    # The first of equals, as argmax, in a tenth of the time.
                    answers = scores.mT.max(-2).indices
                    hits[at[:active]] += ((answers == y) & inside).double().sum(1)
        counted = isinstance(self.model.loss_of, CrossEntropy)
        return Tally(loss.cpu(), hits.cpu() if counted else None, part.count[ids])

    @cached_property
    def _remembered(self) -> dict[int, list[Piece]]:
        """Of parts all of whose clients are scored again and again, in what pieces."""
        return {}

    def _in_pieces(self, part: ClientRows, ids: Int64[Tensor, "client"]) -> Iterable[Piece]:
        """Places among `ids`, on the host and where they are used, with blocks of their rows."""
        if not len(part.row):
            return []
        if len(part.row) > REMEMBERED or not torch.equal(ids, torch.arange(len(part.count))):
            return self._pieces(part, ids)
        if id(part) not in self._remembered:
            self._remembered[id(part)] = [(s, at, list(blocks)) for s, at, blocks in self._pieces(part, ids)]
        return self._remembered[id(part)]

    def _pieces(self, part: ClientRows, ids: Int64[Tensor, "client"]) -> Iterator[Piece]:
        place = part.count[ids].argsort(descending=True, stable=True)
        together = BLOCK_CLIENTS
        if self.model.mixes:  # whole clients, as many as fit a block
            most = self.model.network.widest * max(1, int(part.count[ids].max()))
            together = min(together, max(1, BLOCK // most))
        for some in place.split(together):
            own, count = ids[some].to(self.device), part.count[ids[some]]
            first = part.first[ids[some]].to(self.device)
            cohort = Cohort(own, own, first, count.to(self.device), count)
            yield some, some.to(self.device), self._laid_out(part, cohort)


def check_models(
    what: str,
    W: Any,
    clients: int,
    model: Model,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> None:
    """Raise InputError unless these are models of so many clients, of this type, on this device if any."""
    if not isinstance(W, Tensor):
        raise InputError(f"{what} is of type {type(W).__name__}; pass a tensor with a model in each row")
    if W.shape != (clients, model.size) or W.dtype != dtype or (device is not None and W.device != device):
        where = "" if device is None else f" on {device}"
        raise InputError(
            f"{what} is {W.dtype} of shape {tuple(W.shape)} on {W.device}; pass {dtype} of shape "
            f"({clients}, {model.size}), a model for each client{where}"
        )


def _read(
    store: Tensor, device: torch.device, rows: Tensor | None, shape: tuple[int, ...], at: Tensor
) -> Tensor:
    x = torch.index_select(store, 0, at, out=rows).view(shape)
    return x if x.device == device else x.to(device)


def _read_again(store: Tensor, rows: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Into the same rows, seen as x, every time."""
    torch.index_select(store, 0, at, out=rows)
    return x
