"""Standardise features with constants from training rows, one pair for all clients or one per client."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int64, Num, UInt8
from torch import Tensor

from fedlap.data.client_rows import ClientRows, describe_tensor
from fedlap.errors import InputError
from fedlap.models import BufferFactory
from fedlap.summaries import summarise_fields

Scaling = Literal["none", "pooled", "client"]

VALUES_PER_BLOCK = 4_000_000  # Features are converted in blocks of about this many values (32 MB).
SMALL_CLIENT_BYTES = 4_096  # The bytes of clients up to this size are counted together.


@dataclass(frozen=True, eq=False)
class Standardizer:
    """x ← (x − shift) · factor, with one row of constants for all clients or one per client."""

    kind: Scaling
    shift: Float[Tensor, "constants ..."]
    factor: Float[Tensor, "constants ..."]

    __repr__ = summarise_fields

    @staticmethod
    def of(kind: Scaling, train: ClientRows) -> "Standardizer":
        """Compute constants from training rows: one pair per feature, or per channel of images.

        Images are bytes of shape (channel, height, width), or (height, width) for one channel. A constant
        feature is only shifted. Weighted rows count by their weights.
        """
        if kind == "none":
            return UNSCALED
        if kind not in ("pooled", "client"):
            raise InputError(f"scale = {kind!r}; use none, pooled or client", field="scale", scope="data")
        image = train.store.dtype == torch.uint8 and train.store.dim() > 2
        moments = _compute_channel_moments if image else compute_feature_moments
        if kind == "pooled":
            weight = None if train.weight is None else train.weight.unsqueeze(0)
            mean, std = moments(train.store, train.row.unsqueeze(0), weight)
            return Standardizer(kind, mean, torch.where(std > 0, 1 / std, 1.0))
        shape = moments(train.store, train.row[:1].unsqueeze(0))[0].shape[1:]
        mean, std = torch.empty(2, len(train.count), *shape, dtype=torch.float64).unbind()
        for clients, at in _group_by_count(train):
            weight = None if train.weight is None else train.weight[at]
            mean[clients], std[clients] = moments(train.store, train.row[at], weight)
        return Standardizer(kind, mean, torch.where(std > 0, 1 / std, 1.0))

    @staticmethod
    def concatenate(standardizers: Sequence["Standardizer"], sizes: Sequence[int]) -> "Standardizer":
        """Concatenate the constants of several federations; `sizes` are their numbers of clients."""
        if all(scale is standardizers[0] for scale in standardizers) and standardizers[0].kind != "client":
            return standardizers[0]
        if all(scale.kind == "none" for scale in standardizers):
            return standardizers[0]
        constants_per_federation = [
            [
                c if scale.kind == "client" else c.expand(size, *c.shape[1:])
                for c in (scale.shift, scale.factor)
            ]
            for scale, size in zip(standardizers, sizes, strict=True)
        ]
        shift, factor = (torch.cat(constants) for constants in zip(*constants_per_federation, strict=True))
        return Standardizer("client", shift, factor)

    def check(self, clients: int, inputs: tuple[int, ...]) -> None:
        """Raise InputError unless the constants match the number of clients and the shape of features."""
        if self.kind == "none":
            return
        rows = clients if self.kind == "client" else 1
        for constants in (self.shift, self.factor):
            shape = tuple(constants.shape[1:])
            fits = len(shape) == len(inputs) and all(n in (1, m) for n, m in zip(shape, inputs, strict=True))
            if constants.shape[:1] != (rows,) or not fits or not constants.is_floating_point():
                raise InputError(
                    f"constants of scale {self.kind!r} are {describe_tensor(constants)} for "
                    f"{clients} clients with features of shape {inputs}; use federation.standardize(...)",
                    scope="data",
                )

    def to_device(self, device: torch.device, dtype: torch.dtype) -> "Standardizer":
        """Copy the constants to a device."""
        return Standardizer(self.kind, self.shift.to(device, dtype), self.factor.to(device, dtype))

    def reorder(self, order: Sequence[int]) -> "Standardizer":
        """Return the constants with clients in another order."""
        if self.kind != "client":
            return self
        return Standardizer(self.kind, self.shift[list(order)], self.factor[list(order)])

    def apply(
        self,
        x: Num[Tensor, "client batch *feature"],
        clients: Int64[Tensor, "client"],
        dtype: torch.dtype,
        memory: BufferFactory | None = None,
    ) -> Float[Tensor, "client batch *feature"]:
        """Standardise raw features of clients, in buffers from `memory` or in new tensors."""
        if self.kind == "none":
            return x.to(dtype) if memory is None else memory("seen", tuple(x.shape), dtype).copy_(x)
        # Bytes are exact in any precision; other values lose digits unless they are shifted before rounding.
        wide = dtype if x.dtype == torch.uint8 else torch.float64
        shift, factor = (
            (c.to(x.device)[clients] if self.kind == "client" else c.to(x.device)).unsqueeze(1).to(wide)
            for c in (self.shift, self.factor)
        )
        if memory is not None:
            seen = memory("wide", tuple(x.shape), wide).copy_(x).sub_(shift).mul_(factor)
            return seen if wide == dtype else memory("seen", tuple(x.shape), dtype).copy_(seen)
        # The result is updated in place, which saves one pass through memory.
        seen = x.to(wide).sub_(shift) if x.dtype != wide else x - shift
        return seen.mul_(factor).to(dtype)

    def standardize_rows(self, client_rows: ClientRows, dtype: torch.dtype) -> Float[Tensor, "row *feature"]:
        """Standardise the features of all rows, block by block."""
        out = torch.empty(
            len(client_rows.row), *client_rows.store.shape[1:], dtype=dtype, device=client_rows.store.device
        )
        size = max(1, VALUES_PER_BLOCK // math.prod(client_rows.store.shape[1:]))
        # Every row is a stack of one here, so that each gets the constants of its client.
        for x, row, owner in zip(
            out.split(size), client_rows.row.split(size), client_rows.find_owners().split(size), strict=True
        ):
            x.copy_(self.apply(client_rows.store[row].unsqueeze(1), owner, dtype).squeeze(1))
        return out


MeanAndDeviation = tuple[Float64[Tensor, "client ..."], Float64[Tensor, "client ..."]]


def _group_by_count(
    client_rows: ClientRows,
) -> Iterator[tuple[Int64[Tensor, "client"], Int64[Tensor, "client row"]]]:
    """Yield groups of clients with equally many rows, and the indices of their rows.

    A group is at most one block where bytes of images are counted (256 bins per channel), and fits into a
    cache where features are summed.
    """
    values = math.prod(client_rows.store.shape[1:])
    for size in client_rows.count.unique().tolist():
        clients_per_block = VALUES_PER_BLOCK // (16 * values * max(size, 16))
        for clients in (client_rows.count == size).nonzero().flatten().split(max(1, clients_per_block)):
            yield clients, client_rows.first[clients].unsqueeze(1) + torch.arange(size)


def compute_feature_moments(
    store: Num[Tensor, "stored *feature"],
    rows: Int64[Tensor, "client row"],
    weight: Float64[Tensor, "client row"] | None = None,
) -> MeanAndDeviation:
    """Compute the mean and population standard deviation of each feature of each client.

    Values are taken relative to the first row, or to one of the largest weight, so that a constant feature
    has a deviation of exactly zero.
    """
    if weight is not None:
        return _compute_weighted_moments(store, rows, weight)
    origin = store[rows[:, :1]].double()

    def mean(shift: Tensor | float, power: int) -> Tensor:
        total = torch.zeros_like(origin)
        for x in _gather_blocks(store, rows):
            total += ((x.double() - origin - shift) ** power).sum(1, keepdim=True)
        return total / rows.shape[1]

    shift = mean(0.0, 1)
    return (origin + shift).squeeze(1), mean(shift, 2).sqrt().squeeze(1)


def _compute_weighted_moments(
    store: Num[Tensor, "stored *feature"],
    rows: Int64[Tensor, "client row"],
    weight: Float64[Tensor, "client row"],
) -> MeanAndDeviation:
    """Compute the weighted mean and standard deviation of each feature of each client."""
    origin = store[rows.gather(1, weight.argmax(1, keepdim=True))].double()
    share = weight / weight.sum(1, keepdim=True)

    def mean(shift: Tensor | float, power: int) -> Tensor:
        total, begin = torch.zeros_like(origin), 0
        for x in _gather_blocks(store, rows):
            part = share[:, begin : begin + x.shape[1]]
            part = part.view(*part.shape, *[1] * (x.dim() - 2))
            total += (part * (x.double() - origin - shift) ** power).sum(1, keepdim=True)
            begin += x.shape[1]
        return total

    shift = mean(0.0, 1)
    return (origin + shift).squeeze(1), mean(shift, 2).sqrt().squeeze(1)


def _compute_channel_moments(
    store: UInt8[Tensor, "stored *feature"],
    rows: Int64[Tensor, "client row"],
    weight: Float64[Tensor, "client row"] | None = None,
) -> MeanAndDeviation:
    """Compute the mean and population standard deviation of each image channel, from a histogram of bytes.

    With weights they follow from the moments of each pixel.
    """
    if weight is not None:
        pixels = tuple(range(2 if store.dim() > 3 else 1, store.dim()))
        means, deviations = _compute_weighted_moments(store, rows, weight)
        centre = means.mean(pixels, keepdim=True)
        spread = (deviations.square() + (means - centre).square()).mean(pixels, keepdim=True)
        return centre, spread.sqrt()
    channels = store.shape[1] if store.dim() > 3 else 1
    histogram = _count_bytes(store, rows, channels)
    value, share = (
        torch.arange(256.0, dtype=torch.float64),
        histogram / histogram.sum(1, keepdim=True).double(),
    )
    mean = (share * value).sum(1, keepdim=True)
    variance = (share * (value - mean) ** 2).sum(1)
    shape = (len(rows), channels if store.dim() > 3 else 1, *[1] * (store.dim() - 2))
    return mean.view(shape), variance.sqrt().view(shape)


def _count_bytes(
    store: UInt8[Tensor, "stored *feature"], rows: Int64[Tensor, "client row"], channels: int
) -> Int64[Tensor, "line 256"]:
    """Count the occurrences of each byte, one line per client and channel."""
    lines = len(rows) * channels
    if len(rows) > 1 and rows.shape[1] * math.prod(store.shape[1:]) > SMALL_CLIENT_BYTES:
        return torch.cat([_count_bytes(store, client, channels) for client in rows.split(1)])
    histogram = torch.zeros(lines, 256, dtype=torch.int64)
    for x in _gather_blocks(store, rows):
        by_line = x.reshape(*x.shape[:2], channels, -1).transpose(1, 2).reshape(lines, -1)
        if len(rows) == 1:  # Bytes can be counted without an offset.
            histogram += torch.stack([torch.bincount(pixels, minlength=256) for pixels in by_line])
        else:
            bins = by_line + 256 * torch.arange(lines).unsqueeze(1)
            histogram += torch.bincount(bins.flatten(), minlength=256 * lines).view(lines, 256)
    return histogram


def _gather_blocks(
    store: Num[Tensor, "stored *feature"], rows: Int64[Tensor, "client row"]
) -> Iterator[Num[Tensor, "client block *feature"]]:
    for block in rows.split(max(1, VALUES_PER_BLOCK // (len(rows) * math.prod(store.shape[1:]))), dim=1):
        yield store[block.flatten()].unflatten(0, block.shape)


UNSCALED = Standardizer("none", torch.zeros(1), torch.ones(1))
