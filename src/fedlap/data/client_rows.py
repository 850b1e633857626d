"""Rows of many clients, and the units their features are in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Num, UInt8
from scipy.sparse import csc_array
from torch import Tensor

from fedlap.errors import InputError
from fedlap.models import Memory

Scaling = Literal["none", "pooled", "client"]

BLOCK = 4_000_000  # features are converted in blocks of about this many values (32 MB)
FEW = 4_096  # bytes; clients with fewer are counted together


def grouped(
    owner: Int64[Tensor, "row"], clients: int
) -> tuple[Int64[Tensor, "owned"], Int64[Tensor, "client"]]:
    """The rows of each client in rising order, one client after another, and how many; −1 owns nothing.

    A matrix with a one for each row in its owner's line, turned from columns to lines: to count is faster
    than to sort.
    """
    rows = len(owner)
    if (wrong := first_outside(owner, -1, clients)) is not None:
        raise InputError(
            f"a row belongs to client {wrong}; pass one of 0 to {clients - 1}, or -1 for nobody", scope="data"
        )
    place = owner.numpy() + 1
    ones = np.ones(rows, dtype=np.int8)
    lines = csc_array((ones, place, np.arange(rows + 1)), shape=(clients + 1, rows)).tocsr()
    first = torch.from_numpy(lines.indptr[1:].astype(np.int64))
    return torch.from_numpy(lines.indices[int(first[0]) :].astype(np.int64)), first.diff()


def spans(first: Int64[Tensor, "client"], count: Int64[Tensor, "client"]) -> Int64[Tensor, "row"]:
    """first_k, first_k + 1, … as many as count_k says, for one client after another."""
    shift = first - (count.cumsum(0) - count)
    total = int(count.sum())
    return torch.arange(total).add_(torch.repeat_interleave(shift, count, output_size=total))


def first_outside(values: Tensor, least: int, end: int) -> int | None:
    """The first of these whole numbers that is below `least` or not below `end`, if there is one."""
    if not len(values):
        return None
    low, high = values.aminmax()
    if least <= int(low) and int(high) < end:
        return None
    return int(values[(values < least) | (values >= end)][0])


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


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
    def joined(parts: Sequence["Part"]) -> "Part":
        """Parts one after another; those that share a store go on sharing it."""
        if len(parts) == 1:
            return parts[0]
        stores = list({id(part.store): part.store for part in parts}.values())
        sizes = torch.tensor([0, *(len(store) for store in stores)]).cumsum(0).tolist()
        begin = {id(store): size for store, size in zip(stores, sizes, strict=False)}
        return Part(
            stores[0] if len(stores) == 1 else torch.cat(stores),
            torch.cat([part.row + begin[id(part.store)] for part in parts]),
            torch.cat([part.y for part in parts]),
            torch.cat([part.count for part in parts]),
        )

    @property
    def x(self) -> Num[Tensor, "row *feature"]:
        """A copy of all rows' features, in order."""
        return self.store[self.row]

    @cached_property
    def first(self) -> Int64[Tensor, "client"]:
        """Where each client's rows begin."""
        return self.count.cumsum(0) - self.count

    def check(self, what: str, clients: int, labels: int | None) -> None:
        """Raise InputError unless every row of so many clients is in the store and has a label in range.

        labels: how many there are; None where targets are real numbers.
        """
        store, row, y, count = self.store, self.row, self.y, self.count
        if store.dim() < 2 or not (store.dtype == torch.uint8 or store.is_floating_point()):
            raise InputError(
                f"{what}: the store is {_form(store)}; pass bytes or real numbers, a row each", scope="data"
            )
        if row.dim() != 1 or row.dtype != torch.int64:
            raise InputError(
                f"{what}: places of rows are {_form(row)}; pass a vector of torch.int64", scope="data"
            )
        wanted = (len(row),) if labels is not None else (len(row), *y.shape[1:2])
        if y.shape != wanted or (y.dtype != torch.int64 if labels is not None else not y.is_floating_point()):
            kind = "labels of torch.int64" if labels is not None else "real targets, a column each"
            raise InputError(f"{what}: labels are {_form(y)}; pass {kind}, for {len(row)} rows", scope="data")
        if count.shape != (clients,) or count.dtype != torch.int64:
            raise InputError(
                f"{what}: counts are {_form(count)}; pass torch.int64 of shape ({clients},)", scope="data"
            )
        if bool((count < 0).any()) or int(count.sum()) != len(row):
            raise InputError(
                f"{what}: counts are {int(count.min())} and more, {int(count.sum())} in all, for {len(row)} "
                "rows; pass how many rows each client has",
                scope="data",
            )
        for values, end, name in ((row, len(store), "place in the store"), (y, labels, "label")):
            if end is not None and (wrong := first_outside(values, 0, end)) is not None:
                raise InputError(
                    f"{what}: a row has {name} {wrong}; pass one of 0 to {end - 1}", scope="data"
                )

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
        order = torch.tensor(places, dtype=torch.int64)
        count = self.count[order]
        at = spans(self.first[order], count)
        return Part(self.store, self.row[at], self.y[at], count)

    def first_difference(self, other: "Part") -> int | None:
        """Return the place of the first client whose rows are not the same values in the same order."""
        wrong = self.count != other.count
        if not bool(wrong.any()):
            unequal = torch.zeros(len(self.row), dtype=torch.bool)
            if self.y.dtype != other.y.dtype or self.y.shape != other.y.shape:
                unequal[:] = True
            elif len(self.row):
                unequal |= (self.y != other.y).view(len(self.row), -1).any(1)
                size = max(1, BLOCK // math.prod(self.store.shape[1:]))
                for at in torch.arange(len(self.row)).split(size):
                    own, theirs = self.store[self.row[at]], other.store[other.row[at]]
                    unequal[at] |= (own != theirs).flatten(1).any(1)
            wrong = torch.zeros_like(self.count).index_add_(0, self.owner(), unequal.long()) > 0
        places = wrong.nonzero().flatten()
        return int(places[0]) if len(places) else None

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
            raise InputError(
                f"scale = {kind!r}; it must be none, pooled or client", field="scale", scope="data"
            )
        image = train.store.dtype == torch.uint8 and train.store.dim() > 2
        moments = _of_pixels if image else _of_features
        if kind == "pooled":
            mean, std = moments(train.store, train.row.unsqueeze(0))
            return Scale(kind, mean, torch.where(std > 0, 1 / std, 1.0))
        shape = moments(train.store, train.row[:1].unsqueeze(0))[0].shape[1:]
        mean, std = torch.empty(2, len(train.count), *shape, dtype=torch.float64).unbind()
        for some, rows in _of_one_size(train):
            mean[some], std[some] = moments(train.store, rows)
        return Scale(kind, mean, torch.where(std > 0, 1 / std, 1.0))

    @staticmethod
    def joined(scales: Sequence["Scale"], sizes: Sequence[int]) -> "Scale":
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
        return Scale("client", shift, factor)

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
                    f"constants of scale {self.kind!r} are {_form(constants)} for {clients} clients "
                    f"with features of shape {inputs}; scale again with federation.scaled(...)",
                    scope="data",
                )

    def moved(self, device: torch.device, dtype: torch.dtype) -> "Scale":
        """The same constants where they are used for every batch."""
        return Scale(self.kind, self.shift.to(device, dtype), self.factor.to(device, dtype))

    def reordered(self, places: Sequence[int]) -> "Scale":
        """The same constants with clients in another order."""
        if self.kind != "client":
            return self
        return Scale(self.kind, self.shift[list(places)], self.factor[list(places)])

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


Moments = tuple[Float64[Tensor, "client ..."], Float64[Tensor, "client ..."]]


def _of_one_size(part: Part) -> Iterator[tuple[Int64[Tensor, "client"], Int64[Tensor, "client row"]]]:
    """Clients with equally many rows, and the places of these.

    Together they are a block at most where images are counted, 256 places a channel, and fit a cache where
    features are summed.
    """
    values = math.prod(part.store.shape[1:])
    for size in part.count.unique().tolist():
        most = BLOCK // (16 * values * max(size, 16))
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
    if len(rows) > 1 and rows.shape[1] * math.prod(store.shape[1:]) > FEW:
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
    for at in rows.split(max(1, BLOCK // (len(rows) * math.prod(store.shape[1:]))), dim=1):
        yield store[at.flatten()].unflatten(0, at.shape)


UNSCALED = Scale("none", torch.zeros(1), torch.ones(1))
