"""Standardisation: constants from training rows, for all clients or for one client."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int64, Num, UInt8
from torch import Tensor

from fedlap.data.client_rows import ClientRows, describe_tensor
from fedlap.errors import InputError
from fedlap.models import Memory

Scaling = Literal["none", "pooled", "client"]

VALUES_PER_BLOCK = 4_000_000  # features are converted in blocks of about this many values (32 MB)
FEW_BYTES = 4_096  # clients with fewer bytes are converted together


@dataclass(frozen=True, eq=False)
class Standardizer:
    """x ← (x − shift) · factor, with one row of constants for all clients or one for each."""

    kind: Scaling
    shift: Float[Tensor, "constants ..."]
    factor: Float[Tensor, "constants ..."]

    @staticmethod
    def of(kind: Scaling, train: ClientRows) -> "Standardizer":
        """Constants that standardise training rows: a pair for each feature, or for each channel of images.

        Images are bytes of shape (channel, height, width), or (height, width) for one channel. What never
        changes is only shifted.
        """
        if kind == "none":
            return UNSCALED
        if kind not in ("pooled", "client"):
            raise InputError(
                f"scale = {kind!r}; it must be none, pooled or client", field="scale", scope="data"
            )
        image = train.store.dtype == torch.uint8 and train.store.dim() > 2
        moments = _of_pixels if image else _of_features
        if kind == "pooled":
            mean, std = moments(train.store, train.row.unsqueeze(0))
            return Standardizer(kind, mean, torch.where(std > 0, 1 / std, 1.0))
        shape = moments(train.store, train.row[:1].unsqueeze(0))[0].shape[1:]
        mean, std = torch.empty(2, len(train.count), *shape, dtype=torch.float64).unbind()
        for some, rows in _of_one_size(train):
            mean[some], std[some] = moments(train.store, rows)
        return Standardizer(kind, mean, torch.where(std > 0, 1 / std, 1.0))

    @staticmethod
    def joined(scales: Sequence["Standardizer"], sizes: Sequence[int]) -> "Standardizer":
        """The constants of several federations of these sizes, one after another."""
        if all(scale is scales[0] for scale in scales) and scales[0].kind != "client":
            return scales[0]
        if all(scale.kind == "none" for scale in scales):
            return scales[0]
        of_each = [
            [
                c if scale.kind == "client" else c.expand(size, *c.shape[1:])
                for c in (scale.shift, scale.factor)
            ]
            for scale, size in zip(scales, sizes, strict=True)
        ]
        shift, factor = (torch.cat(constants) for constants in zip(*of_each, strict=True))
        return Standardizer("client", shift, factor)

    def check(self, clients: int, inputs: tuple[int, ...]) -> None:
        """Raise InputError unless there are constants for the features of so many clients."""
        if self.kind == "none":
            return
        rows = clients if self.kind == "client" else 1
        for constants in (self.shift, self.factor):
            own = tuple(constants.shape[1:])
            fits = len(own) == len(inputs) and all(n in (1, m) for n, m in zip(own, inputs, strict=True))
            if constants.shape[:1] != (rows,) or not fits or not constants.is_floating_point():
                raise InputError(
                    f"constants of scale {self.kind!r} are {describe_tensor(constants)} for {clients} clients "
                    f"with features of shape {inputs}; scale again with federation.scaled(...)",
                    scope="data",
                )

    def moved(self, device: torch.device, dtype: torch.dtype) -> "Standardizer":
        """The same constants where they are used for every batch."""
        return Standardizer(self.kind, self.shift.to(device, dtype), self.factor.to(device, dtype))

    def reordered(self, places: Sequence[int]) -> "Standardizer":
        """The same constants with clients in another order."""
        if self.kind != "client":
            return self
        return Standardizer(self.kind, self.shift[list(places)], self.factor[list(places)])

    def apply(
        self,
        x: Num[Tensor, "client batch *feature"],
        clients: Int64[Tensor, "client"],
        dtype: torch.dtype,
        memory: Memory | None = None,
    ) -> Float[Tensor, "client batch *feature"]:
        """Raw features of these clients in the units that models see, in memory that is lent or in new."""
        if self.kind == "none":
            return x.to(dtype) if memory is None else memory("seen", tuple(x.shape), dtype).copy_(x)
        # Bytes are exact in any precision; other values lose digits unless shifted before they are rounded.
        wide = dtype if x.dtype == torch.uint8 else torch.float64
        shift, factor = (
            (c.to(x.device)[clients] if self.kind == "client" else c.to(x.device)).unsqueeze(1).to(wide)
            for c in (self.shift, self.factor)
        )
        if memory is not None:
            seen = memory("wide", tuple(x.shape), wide).copy_(x).sub_(shift).mul_(factor)
            return seen if wide == dtype else memory("seen", tuple(x.shape), dtype).copy_(seen)
        # In place on what was made here: one pass through memory less.
        seen = x.to(wide).sub_(shift) if x.dtype != wide else x - shift
        return seen.mul_(factor).to(dtype)

    def whole(self, part: ClientRows, dtype: torch.dtype) -> Float[Tensor, "row *feature"]:
        """All of a part's features in the units that models see, a block at a time."""
        out = torch.empty(len(part.row), *part.store.shape[1:], dtype=dtype, device=part.store.device)
        size = max(1, VALUES_PER_BLOCK // math.prod(part.store.shape[1:]))
        # Every row is a stack of one here, so that each meets its own client's constants.
        for x, row, owner in zip(
            out.split(size), part.row.split(size), part.owner().split(size), strict=True
        ):
            x.copy_(self.apply(part.store[row].unsqueeze(1), owner, dtype).squeeze(1))
        return out


Moments = tuple[Float64[Tensor, "client ..."], Float64[Tensor, "client ..."]]


def _of_one_size(part: ClientRows) -> Iterator[tuple[Int64[Tensor, "client"], Int64[Tensor, "client row"]]]:
    """Clients with equally many rows, and the places of these.

    Together they are a block at most where images are counted, 256 places a channel, and fit a cache where
    features are summed.
    """
    values = math.prod(part.store.shape[1:])
    for size in part.count.unique().tolist():
        most = VALUES_PER_BLOCK // (16 * values * max(size, 16))
        for some in (part.count == size).nonzero().flatten().split(max(1, most)):
            yield some, part.row[part.first[some].unsqueeze(1) + torch.arange(size)]


def _of_features(store: Num[Tensor, "stored *feature"], rows: Int64[Tensor, "client row"]) -> Moments:
    """Mean and population standard deviation of each feature of each client.

    Values are taken relative to the first row's, so that what never changes has a deviation of exactly zero.
    """
    origin = store[rows[:, :1]].double()

    def mean(shift: Tensor | float, power: int) -> Tensor:
        total = torch.zeros_like(origin)
        for x in _blocks(store, rows):
            total += ((x.double() - origin - shift) ** power).sum(1, keepdim=True)
        return total / rows.shape[1]

    shift = mean(0.0, 1)
    return (origin + shift).squeeze(1), mean(shift, 2).sqrt().squeeze(1)


def _of_pixels(store: UInt8[Tensor, "stored *feature"], rows: Int64[Tensor, "client row"]) -> Moments:
    """Mean and population standard deviation of each channel of images, from how often each byte occurs."""
    channels = store.shape[1] if store.dim() > 3 else 1
    times = _times(store, rows, channels)
    value, share = torch.arange(256.0, dtype=torch.float64), times / times.sum(1, keepdim=True).double()
    mean = (share * value).sum(1, keepdim=True)
    variance = (share * (value - mean) ** 2).sum(1)
    shape = (len(rows), channels if store.dim() > 3 else 1, *[1] * (store.dim() - 2))
    return mean.view(shape), variance.sqrt().view(shape)


def _times(
    store: UInt8[Tensor, "stored *feature"], rows: Int64[Tensor, "client row"], channels: int
) -> Int64[Tensor, "line 256"]:
    """How often each byte occurs, in a line for each client and channel."""
    lines = len(rows) * channels
    if len(rows) > 1 and rows.shape[1] * math.prod(store.shape[1:]) > FEW_BYTES:
        return torch.cat([_times(store, own, channels) for own in rows.split(1)])
    times = torch.zeros(lines, 256, dtype=torch.int64)
    for x in _blocks(store, rows):
        by_line = x.reshape(*x.shape[:2], channels, -1).transpose(1, 2).reshape(lines, -1)
        if len(rows) == 1:  # bytes are counted as they are
            times += torch.stack([torch.bincount(pixels, minlength=256) for pixels in by_line])
        else:
            at = by_line + 256 * torch.arange(lines).unsqueeze(1)
            times += torch.bincount(at.flatten(), minlength=256 * lines).view(lines, 256)
    return times


def _blocks(
    store: Num[Tensor, "stored *feature"], rows: Int64[Tensor, "client row"]
) -> Iterator[Num[Tensor, "client some *feature"]]:
    for at in rows.split(max(1, VALUES_PER_BLOCK // (len(rows) * math.prod(store.shape[1:]))), dim=1):
        yield store[at.flatten()].unflatten(0, at.shape)


UNSCALED = Standardizer("none", torch.zeros(1), torch.ones(1))
