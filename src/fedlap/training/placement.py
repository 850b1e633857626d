"""The clients of one or several runs, where their rows are placed, and how rows are read."""

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
from fedlap.kernels.dense import DenseKernel
from fedlap.models import Batch, BufferFactory, CrossEntropy, DenseNetwork, Model, compute_padded_width
from fedlap.randomness import Draws, derive_keys
from fedlap.training import stored_scores
from fedlap.training.batches import BatchPlan, Cohort, draw_batches, plan_pass
from fedlap.training.scores import Tally

# Evaluation takes clients and rows in blocks of at most about this many values (32 MB in float32), counted at
# the widest layer of the network.
EVALUATION_BLOCK_VALUES = 8_000_000
CLIENTS_PER_BLOCK = 256
# From this many steps per round on, a padded copy of the features, which makes steps faster, is worth its
# memory, up to this many values (256 MB in float32).
MIN_WIDE_STEPS, MAX_WIDE_VALUES = 8, 64_000_000
MAX_CACHED_ROWS = 1_000_000  # of a split, up to which its blocks for scoring are cached (33 MB)

# Clients, positions of their rows in the store, labels, a mask of rows that are not padding, spans of rows
# that are scored in the store, and the rows' weights (zero for padding) or None.
RowBlock = tuple[Tensor, Tensor, Tensor, Tensor, list[stored_scores.Span] | None, Tensor | None]
# Positions of clients among those that are tallied, on the host and on the device, and blocks of their rows.
ClientChunk = tuple[Tensor, Tensor, Iterable[RowBlock]]


class NamedBuffers:
    """Reusable scratch buffers, one per name, as large as the largest request so far."""

    def __init__(self) -> None:
        """Start without buffers."""
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a buffer of this shape, with arbitrary content."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < size:
            self._buffers[name, dtype] = buffer = torch.empty(size, dtype=dtype)
        return buffer[:size].view(shape)


@dataclass(frozen=True, eq=False)
class PlacedClients:
    """The clients of several runs, one run after another, their model, and what determines their batches.

    Rows may be stored on the host while the computation runs on a device. Weights of training rows are
    relative to the mean weight of their client.
    """

    train: ClientRows
    test: ClientRows
    scale: Standardizer
    digests: Int64[Tensor, "client"]
    run: Int64[Tensor, "client"]  # the run of each client
    seeds: tuple[int, ...]  # of the runs
    model: Model
    batch: BatchSize
    device: torch.device
    dtype: torch.dtype
    wide_rows: Float[Tensor, "row wide"] | None = None  # training rows, padded for fast steps on a CPU

    @staticmethod
    def of(
        federations: Sequence[Federation],
        seeds: Sequence[int],
        model: Model,
        batch: BatchSize,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "PlacedClients":
        """Concatenate the clients of federations that are resident where rows will be read."""
        sizes = torch.tensor([len(federation.clients) for federation in federations])
        scales = [federation.scale for federation in federations]
        train = ClientRows.concatenate([federation.train for federation in federations])
        return PlacedClients(
            replace(train, weight=train.relative_weight) if train.weight is not None else train,
            ClientRows.concatenate([federation.test for federation in federations]),
            Standardizer.concatenate(scales, sizes.tolist()),
            torch.cat([federation.digests for federation in federations]),
            torch.repeat_interleave(torch.arange(len(sizes)), sizes),
            tuple(seeds),
            model,
            batch,
            device,
            dtype,
        )

    def prepare(self, steps: int) -> "PlacedClients":
        """Prepare for rounds of this many steps.

        On a CPU the kernel for a whole round is compiled here; without it, many steps are faster on wide
        rows, if their copy is small enough.
        """
        network, train = self.model.network, self.train
        if self.device.type != "cpu" or (self.fused and self.fused.compile(0, False)):
            return self
        if steps < MIN_WIDE_STEPS or self.scale.kind != "none" or not isinstance(network, DenseNetwork):
            return self
        features = network.widths[0]
        if (
            train.store.dtype != self.dtype
            or len(train.row) * compute_padded_width(features) > MAX_WIDE_VALUES
        ):
            return self
        wide = torch.zeros(len(train.row), compute_padded_width(features), dtype=self.dtype)
        wide[:, :features] = train.store.index_select(0, train.row).flatten(1)
        wide[:, features] = 1
        return replace(self, wide_rows=wide)

    @cached_property
    def _on_device(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Digests, first rows, row counts and runs of all clients, where batches are used."""
        tensors = (self.digests, self.train.first, self.train.count, self.run)
        return tuple(tensor.to(self.device) for tensor in tensors)  # type: ignore[return-value]

    @cached_property
    def memory(self) -> BufferFactory | None:
        """On a CPU, buffers that every step reuses, since new memory is allocated page by page."""
        return NamedBuffers() if self.device.type == "cpu" else None

    @cached_property
    def model_size(self) -> int:
        """Number of parameters of a client's model."""
        return self.model.size

    @cached_property
    def fused(self) -> DenseKernel | None:
        """The kernel that runs all steps of a round, or None if none supports them."""
        return DenseKernel.of(self)

    def sort_by_count(self, ids: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
        """Sort by decreasing number of training rows, so that active clients always come first in a stack."""
        return ids[self.train.count[ids].argsort(descending=True, stable=True)]

    def build_cohort(self, ids: Int64[Tensor, "client"]) -> Cohort:
        """Build the cohort of clients that are known on the host, in the order of `sort_by_count`."""
        digests, first, count, _ = self._on_device
        at = ids.to(self.device)
        return Cohort(at, digests[at], first[at], count[at], self.train.count[ids])

    def build_unsorted_cohort(self, ids: Int64[Tensor, "*round client"]) -> Cohort:
        """Build a cohort in any order that only the device knows; the largest row count bounds all."""
        digests, first, count, _ = self._on_device
        max_count = self.train.count.max().expand(ids.shape[-1])
        return Cohort(ids, digests[ids], first[ids], count[ids], max_count)

    def draw_plans(self, cohort: Cohort, rounds: Sequence[int], work: LocalWork) -> list[BatchPlan]:
        """Draw the mini-batches of some rounds."""
        first, second = derive_keys(self.seeds, "batches", rounds, self.device)
        if len(self.seeds) > 1:
            run = self._on_device[3][cohort.ids]
            first, second = (key.gather(1, run.expand(len(rounds), -1)) for key in (first, second))
        return draw_batches(Draws((first, second)), cohort, work, self.batch)

    def copy_to_device(self, ids: Int64[Tensor, "client"]) -> "PlacedClients":
        """Return clients `ids` alone, with their training rows copied to the device asynchronously."""
        if self.train.store.device == self.device:
            return self
        rows = self.train.reorder(ids.tolist())
        x = torch.empty(len(rows.row), *rows.store.shape[1:], dtype=rows.store.dtype, pin_memory=True)
        torch.index_select(rows.store, 0, rows.row, out=x)
        y, digests = rows.y.pin_memory(), self.digests[ids]
        train = ClientRows.of(
            x.to(self.device, non_blocking=True),
            y.to(self.device, non_blocking=True),
            rows.count,
            None if rows.weight is None else rows.weight.to(self.device),
        )
        return replace(
            self, train=train, scale=self.scale.reorder(ids.tolist()), digests=digests, run=self.run[ids]
        )

    def take(
        self, client_rows: ClientRows, ids: Int64[Tensor, "client"], rows: Int64[Tensor, "client batch"]
    ) -> tuple[Float[Tensor, "client batch *feature"], Tensor]:
        """Return the features, standardised as models see them, and the labels of some rows."""
        at = rows.flatten().to(client_rows.row.device)
        y = client_rows.y.index_select(0, at).unflatten(0, rows.shape)
        return self.read_features(
            client_rows, ids, client_rows.row.index_select(0, at).view(rows.shape)
        ), y.to(self.device)

    def read_features(
        self, client_rows: ClientRows, ids: Int64[Tensor, "_"], stored: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch *feature"]:
        """Return the standardised features at places of the store that belong to the first clients."""
        return self.make_reader(client_rows.store, ids, tuple(stored.shape))(stored.reshape(-1))

    def make_reader(
        self,
        store: Num[Tensor, "stored *feature"],
        ids: Int64[Tensor, "_"],
        shape: tuple[int, ...],
        memory: BufferFactory | None = None,
    ) -> Callable[[Int64[Tensor, "_"]], Float[Tensor, "client batch *feature"]]:
        """Return a function that reads the features of a batch of this shape (client, batch) from its places.

        With `memory`, each call overwrites the batch before.
        """
        ids, shape = ids[: shape[0]], (*shape, *store.shape[1:])
        rows = None if memory is None else memory("rows", shape, store.dtype).flatten(0, 1)
        if self.scale.kind == "none" and store.dtype == self.dtype:
            if rows is not None and store.device == self.device:
                return partial(_gather_into, store, rows, rows.view(shape))
            return partial(_gather, store, self.device, rows, shape)
        return partial(self._read_scaled, store, ids, rows, shape, memory)

    def _read_scaled(
        self,
        store: Tensor,
        ids: Tensor,
        rows: Tensor | None,
        shape: tuple[int, ...],
        memory: BufferFactory | None,
        at: Tensor,
    ) -> Tensor:
        return self.scale.apply(_gather(store, self.device, rows, shape, at), ids, self.dtype, memory)

    def read_batches(
        self, client_rows: ClientRows, cohort: Cohort
    ) -> Iterator[tuple[Batch, Bool[Tensor, "active row"]]]:
        """Read all rows of a cohort in blocks, each weighted by 1/n_k times its weight.

        The mask marks rows that are not padding. Later blocks may hold fewer clients, always the first.
        """
        for ids, at, y, inside, _, weight in self._locate_blocks(client_rows, cohort):
            x = self.make_reader(client_rows.store, ids, tuple(inside.shape))(at)
            counted = inside if weight is None else weight
            count = cohort.count[: len(x)].unsqueeze(1).to(self.dtype)
            yield Batch(x, y, counted.to(self.dtype) / count), inside

    def _locate_blocks(self, client_rows: ClientRows, cohort: Cohort) -> Iterator[RowBlock]:
        """Locate the rows of every block in the store."""
        width = self.model.network.widest * len(cohort.max_count)
        rows = max(1, min(int(cohort.max_count.max()), EVALUATION_BLOCK_VALUES // width))
        if self.model.is_batch_dependent:  # batch statistics are over all rows of a client
            rows = max(1, int(cohort.max_count.max()))
        plan = plan_pass(cohort.first, cohort.count, cohort.max_count, rows)
        for step, active in enumerate(plan.active):
            at = plan.rows[step, :active].flatten().to(client_rows.row.device)
            y = client_rows.y.index_select(0, at).unflatten(0, (active, -1)).to(self.device)
            stored, inside = client_rows.row.index_select(0, at), plan.weight[step, :active] > 0
            weight = None
            if client_rows.weight is not None:
                weight = client_rows.weight.index_select(0, at).view(inside.shape).to(self.device) * inside
            spans = self._find_spans(client_rows, stored, inside)
            yield cohort.ids[:active], stored, y, inside, spans, weight

    def _find_spans(
        self, client_rows: ClientRows, stored: Tensor, inside: Tensor
    ) -> list[stored_scores.Span] | None:
        """Return the spans of rows that a CPU can score in the store, unchanged, or None."""
        unchanged = self.scale.kind == "none" and client_rows.store.dtype == self.dtype
        readable = self.device.type == "cpu" and unchanged
        return stored_scores.find_spans(self.model.network, stored, inside) if readable else None

    def _score_block(
        self, W: Tensor, client_rows: ClientRows, block: RowBlock
    ) -> Float[Tensor, "client row output"]:
        """Return the scores of a block's rows under their clients' models; padding gets finite numbers."""
        clients, stored, _, inside, spans, _ = block
        if spans is not None and isinstance(self.model.network, DenseNetwork):
            return stored_scores.score_spans(self.model.network, W, client_rows.store, spans, inside.shape[1])
        x = self.make_reader(client_rows.store, clients, tuple(inside.shape), self.memory)(stored)
        return self.model.scores(W, x, inside)

    def tally(
        self, W: Float[Tensor, "client param"], client_rows: ClientRows, ids: Int64[Tensor, "client"]
    ) -> Tally:
        """Sum losses and correct answers, or errors, over the rows of `ids`, whose models are in W.

        Losses and errors of weighted rows are sums of weighted terms.
        """
        if not isinstance(self.model.loss_function, CrossEntropy):
            return self._tally_errors(W, client_rows, ids)
        loss = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        hits = torch.zeros_like(loss)
        for at, scores, y, inside, weight in self._score_rows(W, client_rows, ids):
            values = self.model.loss_function.values(scores, y) * inside
            loss[at] += _weigh(values.double(), weight).sum(1)
            # The first of equal scores, as with argmax, in a tenth of the time.
            answers = scores.mT.max(-2).indices
            hits[at] += ((answers == y) & inside).double().sum(1)
        return Tally(loss.cpu(), hits.cpu(), client_rows.count[ids])

    def _tally_errors(self, W: Tensor, client_rows: ClientRows, ids: Tensor) -> Tally:
        """Sum the squared and the absolute errors of each output over the rows of clients `ids`."""
        shape = len(ids), 2, self.model.network.outputs
        errors = torch.zeros(shape, dtype=torch.float64, device=self.device)
        for at, scores, y, inside, weight in self._score_rows(W, client_rows, ids):
            error = ((scores - y) * inside.unsqueeze(-1)).double()
            sums = [_weigh(terms, weight).sum(1) for terms in (error.square(), error.abs())]
            errors[at] += torch.stack(sums, 1)
        return Tally.of_errors(errors.cpu(), client_rows, ids)

    def _score_rows(
        self, W: Tensor, client_rows: ClientRows, ids: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]:
        """Yield for each block the positions of its clients in `ids`, scores, labels, and a mask of its rows.

        The last entry are the weights of its rows, or None.
        """
        for chunk, at, blocks in self._list_chunks(client_rows, ids):
            models = W[chunk.to(W.device)].to(self.device)
            for block in blocks:
                _, _, y, inside, _, weight = block
                active = len(y)
                yield at[:active], self._score_block(models[:active], client_rows, block), y, inside, weight

    @cached_property
    def _cached_chunks(self) -> dict[int, list[ClientChunk]]:
        """Chunks of splits that are scored repeatedly, by the id of the split."""
        return {}

    def _list_chunks(self, client_rows: ClientRows, ids: Int64[Tensor, "client"]) -> Iterable[ClientChunk]:
        """List chunks of `ids`: positions, on the host and where they are used, with blocks of their rows."""
        if not len(client_rows.row):
            return []
        if len(client_rows.row) > MAX_CACHED_ROWS or not torch.equal(
            ids, torch.arange(len(client_rows.count))
        ):
            return self._split_chunks(client_rows, ids)
        if id(client_rows) not in self._cached_chunks:
            self._cached_chunks[id(client_rows)] = [
                (chunk, at, list(blocks)) for chunk, at, blocks in self._split_chunks(client_rows, ids)
            ]
        return self._cached_chunks[id(client_rows)]

    def _split_chunks(self, client_rows: ClientRows, ids: Int64[Tensor, "client"]) -> Iterator[ClientChunk]:
        place = client_rows.count[ids].argsort(descending=True, stable=True)
        together = CLIENTS_PER_BLOCK
        if self.model.is_batch_dependent:  # whole clients only, as many as fit into a block
            most = self.model.network.widest * max(1, int(client_rows.count[ids].max()))
            together = min(together, max(1, EVALUATION_BLOCK_VALUES // most))
        for chunk in place.split(together):
            clients, count = ids[chunk].to(self.device), client_rows.count[ids[chunk]]
            first = client_rows.first[ids[chunk]].to(self.device)
            cohort = Cohort(clients, clients, first, count.to(self.device), count)
            yield chunk, chunk.to(self.device), self._locate_blocks(client_rows, cohort)


def check_models(
    name: str,
    W: Any,
    clients: int,
    model: Model,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> None:
    """Raise InputError unless W has one model per client, of this dtype and, if given, on this device."""
    if not isinstance(W, Tensor):
        raise InputError(f"{name} is of type {type(W).__name__}; expected a tensor with one model per row")
    if W.shape != (clients, model.size) or W.dtype != dtype or (device is not None and W.device != device):
        where = "" if device is None else f" on {device}"
        raise InputError(
            f"{name} is {W.dtype} of shape {tuple(W.shape)} on {W.device}; expected {dtype} of shape "
            f"({clients}, {model.size}), one model per client{where}"
        )


def _weigh(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return values per client and row, or per client, row and output, times the weights of the rows."""
    return values if weight is None else values * weight.view(*weight.shape, *[1] * (values.dim() - 2))


def _gather(
    store: Tensor, device: torch.device, rows: Tensor | None, shape: tuple[int, ...], at: Tensor
) -> Tensor:
    x = torch.index_select(store, 0, at, out=rows).view(shape)
    return x if x.device == device else x.to(device)


def _gather_into(store: Tensor, rows: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Gather into `rows`, whose view x is returned by every call."""
    torch.index_select(store, 0, at, out=rows)
    return x
