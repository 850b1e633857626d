"""The rows of many clients, as indices into one shared store of features."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Num
from scipy.sparse import csc_array
from torch import Tensor

from fedlap.errors import InputError
from fedlap.summaries import summarise_fields

VALUES_PER_COMPARISON = 4_000_000  # features are compared in blocks of about this many values (32 MB)


def group_rows(
    owner: Int64[Tensor, "row"], clients: int
) -> tuple[Int64[Tensor, "owned"], Int64[Tensor, "client"]]:
    """Return each client's rows in rising order, client by client, and their counts; −1 means no owner.

    A sparse matrix with a one per row, in its owner's line, is converted from columns to lines: this counts
    rows, which is faster than sorting them.
    """
    rows = len(owner)
    if (wrong := find_outside(owner, -1, clients)) is not None:
        raise InputError(
            f"a row belongs to client {wrong}; expected 0 to {clients - 1}, or -1 for no client", scope="data"
        )
    line = owner.numpy() + 1
    ones = np.ones(rows, dtype=np.int8)
    lines = csc_array((ones, line, np.arange(rows + 1)), shape=(clients + 1, rows)).tocsr()
    first = torch.from_numpy(lines.indptr[1:].astype(np.int64))
    return torch.from_numpy(lines.indices[int(first[0]) :].astype(np.int64)), first.diff()


def concatenate_ranges(
    first: Int64[Tensor, "client"], count: Int64[Tensor, "client"]
) -> Int64[Tensor, "row"]:
    """Concatenate the ranges first_k, first_k + 1, …, first_k + count_k − 1 of all clients k."""
    shift = first - (count.cumsum(0) - count)
    total = int(count.sum())
    return torch.arange(total).add_(torch.repeat_interleave(shift, count, output_size=total))


def find_outside(values: Tensor, least: int, end: int) -> int | None:
    """Return the first of the integers that is not in [least, end), or None."""
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
    """The training or the test rows of all clients, client by client.

    Features stay in a store, which several ClientRows may share and which may be a memory-mapped file; each
    row is an index into it. Splitting and reordering clients therefore copies no features.

    Test rows have no weights: scores count every test row once.
    """

    store: Num[Tensor, "stored *feature"]
    row: Int64[Tensor, "row"]  # each row's index in the store
    y: Num[Tensor, "row *output"]
    count: Int64[Tensor, "client"]
    weight: Float64[Tensor, "row"] | None = None  # sample weights of training rows; None if all are equal

    __repr__ = summarise_fields

    @staticmethod
    def of(
        x: Num[Tensor, "row *feature"],
        y: Num[Tensor, "row *output"],
        count: Int64[Tensor, "client"],
        weight: Float64[Tensor, "row"] | None = None,
    ) -> "ClientRows":
        """Rows whose store is `x`, in order."""
        return ClientRows(x, torch.arange(len(x), device=x.device), y, count, weight)

    @staticmethod
    def concatenate(client_rows: Sequence["ClientRows"]) -> "ClientRows":
        """Concatenate the rows of several federations; a store that they share is not copied."""
        if len(client_rows) == 1:
            return client_rows[0]
        stores = list({id(part.store): part.store for part in client_rows}.values())
        sizes = torch.tensor([0, *(len(store) for store in stores)]).cumsum(0).tolist()
        begin = {id(store): size for store, size in zip(stores, sizes, strict=False)}
        return ClientRows(
            stores[0] if len(stores) == 1 else torch.cat(stores),
            torch.cat([part.row + begin[id(part.store)] for part in client_rows]),
            torch.cat([part.y for part in client_rows]),
            torch.cat([part.count for part in client_rows]),
            _concatenate_weights(client_rows),
        )

    @property
    def x(self) -> Num[Tensor, "row *feature"]:
        """A copy of all rows' features, in order."""
        return self.store[self.row]

    @cached_property
    def first(self) -> Int64[Tensor, "client"]:
        """The index of each client's first row."""
        return self.count.cumsum(0) - self.count

    @cached_property
    def target_moments(self) -> tuple[Float64[Tensor, "client output"], Float64[Tensor, "client output"]]:
        """The mean of each client's real targets, and the sum of squared deviations from it.

        Targets are taken relative to the client's first one, so that constant targets deviate by exactly 0.
        """
        y, owner, count = self.y.double().cpu(), self.find_owners(), self.count.clamp(min=1).unsqueeze(1)
        origin = y.new_zeros(len(count), y.shape[1])
        filled = self.count > 0
        origin[filled] = y[self.first[filled]]
        y = y - origin[owner]
        mean = torch.zeros_like(origin).index_add_(0, owner, y) / count
        spread = torch.zeros_like(origin).index_add_(0, owner, (y - mean[owner]).square())
        return origin + mean, spread

    def sum_weights(self) -> Float64[Tensor, "client"]:
        """Return the sum of each client's weights; its number of rows without weights."""
        if self.weight is None:
            return self.count.double()
        total = torch.zeros(len(self.count), dtype=torch.float64)
        return total.index_add_(0, self.find_owners(), self.weight.cpu())

    @cached_property
    def relative_weight(self) -> Float64[Tensor, "row"] | None:
        """Weights divided by the mean weight of their client; None if they are equal within every client."""
        if self.weight is None:
            return None
        owner, weight = self.find_owners(), self.weight.cpu()
        filled = self.count > 0
        first = torch.zeros(len(self.count), dtype=torch.float64)
        first[filled] = weight[self.first[filled]]
        if torch.equal(weight, first[owner]):
            return None
        mean = self.sum_weights() / self.count.clamp(min=1)
        return (weight / mean[owner]).to(self.weight.device)

    def without_weights(self) -> "ClientRows":
        """Return the rows without weights, as test rows are."""
        return self if self.weight is None else replace(self, weight=None)

    def check(self, where: str, clients: int, labels: int | None) -> None:
        """Raise InputError unless every row of every client is in the store and has a label in range.

        labels: the number of classes; None where targets are real numbers.
        """
        store, row, y, count = self.store, self.row, self.y, self.count
        if store.dim() < 2 or not (store.dtype == torch.uint8 or store.is_floating_point()):
            raise InputError(
                f"{where}: the store is {describe_tensor(store)}; "
                "expected bytes or real numbers, with rows along the first of two or more axes",
                scope="data",
            )
        if row.dim() != 1 or row.dtype != torch.int64:
            raise InputError(
                f"{where}: row indices are {describe_tensor(row)}; expected a vector of torch.int64",
                scope="data",
            )
        wanted = (len(row),) if labels is not None else (len(row), *y.shape[1:2])
        if y.shape != wanted or (y.dtype != torch.int64 if labels is not None else not y.is_floating_point()):
            kind = "labels of torch.int64" if labels is not None else "real targets, one column each"
            raise InputError(
                f"{where}: labels are {describe_tensor(y)}; expected {kind}, for {len(row)} rows",
                scope="data",
            )
        if count.shape != (clients,) or count.dtype != torch.int64:
            raise InputError(
                f"{where}: counts are {describe_tensor(count)}; expected torch.int64 of shape ({clients},)",
                scope="data",
            )
        if bool((count < 0).any()) or int(count.sum()) != len(row):
            raise InputError(
                f"{where}: counts sum to {int(count.sum())} and the smallest is {int(count.min())}; expected "
                f"the number of rows of each client, {len(row)} in all",
                scope="data",
            )
        if (weight := self.weight) is not None and (
            weight.shape != row.shape
            or weight.dtype != torch.float64
            or not bool((weight.isfinite() & (weight >= 0)).all())
        ):
            raise InputError(
                f"{where}: weights are {describe_tensor(weight)}; expected torch.float64 of shape "
                f"({len(row)},), finite and at least 0",
                scope="data",
            )
        for values, end, name in ((row, len(store), "index in the store"), (y, labels, "label")):
            if end is not None and (wrong := find_outside(values, 0, end)) is not None:
                raise InputError(f"{where}: a row has {name} {wrong}; expected 0 to {end - 1}", scope="data")

    def locate_client(self, client: int) -> slice:
        """Return the slice of one client's rows."""
        return slice(int(self.first[client]), int(self.first[client] + self.count[client]))

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the features and labels of one client."""
        rows = self.locate_client(index)
        return self.store[self.row[rows]], self.y[rows]

    def get_client_weight(self, index: int) -> Float64[Tensor, "_"] | None:
        """Return the weights of one client's rows, or None."""
        return None if self.weight is None else self.weight[self.locate_client(index)]

    def find_owners(self) -> Int64[Tensor, "row"]:
        """Return the index of each row's client."""
        return torch.repeat_interleave(torch.arange(len(self.count), device=self.count.device), self.count)

    def select(self, mask: Bool[Tensor, "row"]) -> "ClientRows":
        """Return only the rows in the mask."""
        count = torch.zeros_like(self.count).index_add_(0, self.find_owners(), mask.long())
        weight = None if self.weight is None else self.weight[mask]
        return ClientRows(self.store, self.row[mask], self.y[mask], count, weight)

    def reorder(self, order: Sequence[int]) -> "ClientRows":
        """Return the rows with clients in another order."""
        index = torch.tensor(order, dtype=torch.int64)
        count = self.count[index]
        rows = concatenate_ranges(self.first[index], count)
        weight = None if self.weight is None else self.weight[rows]
        return ClientRows(self.store, self.row[rows], self.y[rows], count, weight)

    def find_difference(self, other: "ClientRows") -> int | None:
        """Return the index of the first client whose rows differ in value or in order, or None."""
        wrong = self.count != other.count
        if not bool(wrong.any()):
            unequal = torch.zeros(len(self.row), dtype=torch.bool)
            if self.y.dtype != other.y.dtype or self.y.shape != other.y.shape:
                unequal[:] = True
            elif len(self.row):
                weights = _concatenate_weights([self, other])
                if weights is not None:
                    unequal |= torch.ne(*weights.split(len(self.row)))
                unequal |= (self.y != other.y).view(len(self.row), -1).any(1)
                size = max(1, VALUES_PER_COMPARISON // math.prod(self.store.shape[1:]))
                for rows in torch.arange(len(self.row)).split(size):
                    features, other_features = self.store[self.row[rows]], other.store[other.row[rows]]
                    unequal[rows] |= (features != other_features).flatten(1).any(1)
            wrong = torch.zeros_like(self.count).index_add_(0, self.find_owners(), unequal.long()) > 0
        different = wrong.nonzero().flatten()
        return int(different[0]) if len(different) else None

    def to_device(
        self,
        store: Num[Tensor, "stored *feature"],
        row: Int64[Tensor, "row"],
        device: torch.device,
        dtype: torch.dtype,
    ) -> "ClientRows":
        """Copy the rows to a device, with the features at `row` of `store`; real targets become `dtype`."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        weight = None if self.weight is None else self.weight.to(device)
        return ClientRows(store.to(device), row.to(device), y, self.count, weight)


def _concatenate_weights(client_rows: Sequence[ClientRows]) -> Float64[Tensor, "row"] | None:
    """Concatenate weights; None if no row has one, and ones for rows without weights if others have them."""
    if all(part.weight is None for part in client_rows):
        return None
    return torch.cat(
        [
            torch.ones(len(part.row), dtype=torch.float64, device=part.row.device)
            if part.weight is None
            else part.weight
            for part in client_rows
        ]
    )
