"""Rows of many clients, and the units their features are in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int64, Num, UInt8
from torch import Tensor

from fedlap.errors import InputError

Scaling = Literal["none", "pooled", "client"]

BLOCK = 4_000_000  # features are converted in blocks of about this many values (32 MB)


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the test rows of all clients, one client after another.

    Features stay where they were found, in a store that parts may share and that may be a file mapped into
    memory: a part knows the place of each of its rows there. So to cut, split or reorder clients moves none.
    """

    store: Num[Tensor, "stored *feature"]
    row: Int64[Tensor, "row"]  # where in the store each row's features are
    y: Num[Tensor, "row *output"]
    count: Int64[Tensor, "client"]

    @staticmethod
    def of(
        x: Num[Tensor, "row *feature"], y: Num[Tensor, "row *output"], count: Int64[Tensor, "client"]
    ) -> "Part":
        """Rows with a store of their own, in order."""
        return Part(x, torch.arange(len(x), device=x.device), y, count)

    @staticmethod
    def chosen(
        store: Num[Tensor, "stored *feature"],
        y: Num[Tensor, "stored *output"],
        rows: Sequence[Int64[Tensor, "_"]],
    ) -> "Part":
        """Each client's own rows of a store."""
        row = torch.cat([*rows])
        return Part(store, row, y[row], torch.tensor([len(own) for own in rows]))

    @property
    def x(self) -> Num[Tensor, "row *feature"]:
        """A copy of all rows' features, in order."""
        return self.store[self.row]

    @cached_property
    def first(self) -> Int64[Tensor, "client"]:
        """Where each client's rows begin."""
        return self.count.cumsum(0) - self.count

    def places(self, client: int) -> slice:
        """Where the rows of one client are."""
        return slice(int(self.first[client]), int(self.first[client] + self.count[client]))

    def client(self, place: int) -> tuple[Tensor, Tensor]:
        """Features and labels of one client."""
        own = self.places(place)
        return self.store[self.row[own]], self.y[own]

    def owner(self) -> Int64[Tensor, "row"]:
        """The place of each row's client."""
        return torch.repeat_interleave(torch.arange(len(self.count), device=self.count.device), self.count)

    def kept(self, keep: Bool[Tensor, "row"]) -> "Part":
        """Only these rows."""
        count = torch.zeros_like(self.count).index_add_(0, self.owner(), keep.long())
        return Part(self.store, self.row[keep], self.y[keep], count)

    def reordered(self, places: Sequence[int]) -> "Part":
        """The same rows with clients in another order."""
        own = torch.arange(len(self.row)).split(self.count.tolist())
        at = torch.cat([own[place] for place in places])
        return Part(self.store, self.row[at], self.y[at], self.count[list(places)])

    def moved(
        self,
        store: Num[Tensor, "stored *feature"],
        row: Int64[Tensor, "row"],
        device: torch.device,
        dtype: torch.dtype,
    ) -> "Part":
        """The same rows, their features found here, on a device; real targets in this precision."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        return Part(store.to(device), row.to(device), y, self.count)


@dataclass(frozen=True, eq=False)
class Scale:
    """x ← (x − shift) · factor, with one row of constants for all clients or one for each."""

    kind: Scaling
    shift: Float[Tensor, "constants ..."]
    factor: Float[Tensor, "constants ..."]

    @staticmethod
    def of(kind: Scaling, train: Part) -> "Scale":
        """Constants that standardise training rows: a pair for each feature, or for each channel of images.

        Images are bytes of shape (channel, height, width), or (height, width) for one channel. What never
        changes is only shifted.
        """
        if kind == "none":
            return UNSCALED
        if kind not in ("pooled", "client"):
            raise InputError(f"data: scale = {kind!r}; it must be none, pooled or client")
        image = train.store.dtype == torch.uint8 and train.store.dim() > 2
        moments = _of_pixels if image else _of_features
        places = range(len(train.count))
        groups = [train.row] if kind == "pooled" else [train.row[train.places(place)] for place in places]
        pairs = [moments(train.store, rows) for rows in groups]
        mean, std = (torch.cat(constants) for constants in zip(*pairs, strict=True))
        return Scale(kind, mean, torch.where(std > 0, 1 / std, 1.0))

    def moved(self, device: torch.device, dtype: torch.dtype) -> "Scale":
        """The same constants where they are used for every batch."""
        return Scale(self.kind, self.shift.to(device, dtype), self.factor.to(device, dtype))

    def reordered(self, places: Sequence[int]) -> "Scale":
        """The same constants with clients in another order."""
        if self.kind != "client":
            return self
        return Scale(self.kind, self.shift[list(places)], self.factor[list(places)])

    def apply(
        self, x: Num[Tensor, "client batch *feature"], clients: Int64[Tensor, "client"], dtype: torch.dtype
    ) -> Float[Tensor, "client batch *feature"]:
        """Raw features of these clients in the units that models see."""
        if self.kind == "none":
            return x.to(dtype)
        # Bytes are exact in any precision; other values lose digits unless shifted before they are rounded.
        wide = dtype if x.dtype == torch.uint8 else torch.float64
        at = clients if self.kind == "client" else torch.zeros_like(clients[:1])
        shift, factor = (c.to(x.device)[at].unsqueeze(1).to(wide) for c in (self.shift, self.factor))
        return ((x.to(wide) - shift) * factor).to(dtype)

    def whole(self, part: Part, dtype: torch.dtype) -> Float[Tensor, "row *feature"]:
        """All of a part's features in the units that models see, a block at a time."""
        out = torch.empty(len(part.row), *part.store.shape[1:], dtype=dtype, device=part.store.device)
        size = max(1, BLOCK // math.prod(part.store.shape[1:]))
        # Every row is a stack of one here, so that each meets its own client's constants.
        for x, row, owner in zip(
            out.split(size), part.row.split(size), part.owner().split(size), strict=True
        ):
            x.copy_(self.apply(part.store[row].unsqueeze(1), owner, dtype).squeeze(1))
        return out


Moments = tuple[Float64[Tensor, "one ..."], Float64[Tensor, "one ..."]]


def _of_features(store: Num[Tensor, "stored *feature"], rows: Int64[Tensor, "row"]) -> Moments:
    """Mean and population standard deviation of each feature.

    Values are taken relative to the first row's, so that what never changes has a deviation of exactly zero.
    """
    origin = store[rows[:1]].double()

    def mean(shift: Tensor | float, power: int) -> Tensor:
        total = torch.zeros_like(origin)
        for x in _blocks(store, rows):
            total += ((x.double() - origin - shift) ** power).sum(0, keepdim=True)
        return total / len(rows)

    shift = mean(0.0, 1)
    return origin + shift, mean(shift, 2).sqrt()


def _of_pixels(store: UInt8[Tensor, "stored *feature"], rows: Int64[Tensor, "row"]) -> Moments:
    """Mean and population standard deviation of each channel of images, from how often each byte occurs."""
    channels = store.shape[1] if store.dim() > 3 else 1
    times = torch.zeros(channels, 256, dtype=torch.int64)
    for x in _blocks(store, rows):
        by_channel = x.reshape(len(x), channels, -1).transpose(0, 1)
        times += torch.stack([torch.bincount(pixels.flatten(), minlength=256) for pixels in by_channel])
    value, share = torch.arange(256.0, dtype=torch.float64), times / times.sum(1, keepdim=True).double()
    mean = (share * value).sum(1, keepdim=True)
    variance = (share * (value - mean) ** 2).sum(1)
    shape = (1, channels, *[1] * (store.dim() - 2)) if store.dim() > 3 else (1,) * store.dim()
    return mean.view(shape), variance.sqrt().view(shape)


def _blocks(store: Num[Tensor, "stored *feature"], rows: Int64[Tensor, "row"]) -> Iterator[Tensor]:
    for at in rows.split(max(1, BLOCK // math.prod(store.shape[1:]))):
        yield store[at]


UNSCALED = Scale("none", torch.zeros(1), torch.ones(1))
