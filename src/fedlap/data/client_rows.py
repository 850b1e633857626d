"""Rows of many clients, and the units their features are in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int64, Num
from scipy.sparse import csc_array
from torch import Tensor

from fedlap.errors import InputError

VALUES_PER_COMPARISON = 4_000_000  # features are compared in blocks of about this many values (32 MB)


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


def describe_tensor(tensor: Tensor) -> str:
    """Return a tensor's type and shape, for messages."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


@dataclass(frozen=True, eq=False)
class ClientRows:
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
    ) -> "ClientRows":
        """Rows with a store of their own, in order."""
        return ClientRows(x, torch.arange(len(x), device=x.device), y, count)

    @staticmethod
    def joined(parts: Sequence["ClientRows"]) -> "ClientRows":
        """Parts one after another; those that share a store go on sharing it."""
        if len(parts) == 1:
            return parts[0]
        stores = list({id(part.store): part.store for part in parts}.values())
        sizes = torch.tensor([0, *(len(store) for store in stores)]).cumsum(0).tolist()
        begin = {id(store): size for store, size in zip(stores, sizes, strict=False)}
        return ClientRows(
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
                f"{what}: the store is {describe_tensor(store)}; pass bytes or real numbers, a row each",
                scope="data",
            )
        if row.dim() != 1 or row.dtype != torch.int64:
            raise InputError(
                f"{what}: places of rows are {describe_tensor(row)}; pass a vector of torch.int64",
                scope="data",
            )
        wanted = (len(row),) if labels is not None else (len(row), *y.shape[1:2])
        if y.shape != wanted or (y.dtype != torch.int64 if labels is not None else not y.is_floating_point()):
            kind = "labels of torch.int64" if labels is not None else "real targets, a column each"
            raise InputError(
                f"{what}: labels are {describe_tensor(y)}; pass {kind}, for {len(row)} rows", scope="data"
            )
        if count.shape != (clients,) or count.dtype != torch.int64:
            raise InputError(
                f"{what}: counts are {describe_tensor(count)}; pass torch.int64 of shape ({clients},)",
                scope="data",
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

    def kept(self, keep: Bool[Tensor, "row"]) -> "ClientRows":
        """Only these rows."""
        count = torch.zeros_like(self.count).index_add_(0, self.owner(), keep.long())
        return ClientRows(self.store, self.row[keep], self.y[keep], count)

    def reordered(self, places: Sequence[int]) -> "ClientRows":
        """The same rows with clients in another order."""
        order = torch.tensor(places, dtype=torch.int64)
        count = self.count[order]
        at = spans(self.first[order], count)
        return ClientRows(self.store, self.row[at], self.y[at], count)

    def first_difference(self, other: "ClientRows") -> int | None:
        """Return the place of the first client whose rows are not the same values in the same order."""
        wrong = self.count != other.count
        if not bool(wrong.any()):
            unequal = torch.zeros(len(self.row), dtype=torch.bool)
            if self.y.dtype != other.y.dtype or self.y.shape != other.y.shape:
                unequal[:] = True
            elif len(self.row):
                unequal |= (self.y != other.y).view(len(self.row), -1).any(1)
                size = max(1, VALUES_PER_COMPARISON // math.prod(self.store.shape[1:]))
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
    ) -> "ClientRows":
        """The same rows, their features found here, on a device; real targets in this precision."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        return ClientRows(store.to(device), row.to(device), y, self.count)
