"""Tables of labelled rows, before they are assigned to clients."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Num
from torch import Tensor

from fedlap.data.client_rows import find_outside, group_rows
from fedlap.data.columns import RawColumns
from fedlap.data.partition import OwnerPartition, Partition
from fedlap.data.places import Places
from fedlap.data.row_weights import collect_weights
from fedlap.data.splits import RANDOM_SPLIT, Split
from fedlap.data.validate import (
    LABELS_ADVICE,
    ArrayPair,
    check_row_values,
    check_uniform,
    check_unique_names,
    convert_pair,
    is_uniform,
    name_labels,
    refuse_text,
    validate_pair,
)
from fedlap.errors import InputError
from fedlap.summaries import summarise_fields

RowsByClient = dict[str, Int64[Tensor, "_"]]  # each client's rows, by its name


@dataclass(frozen=True, eq=False)
class Table:
    """Features and labels of every row and, if known, its client and whether it is a test row."""

    x: Num[Tensor, "row *feature"]
    y: Num[Tensor, "row *output"]
    labels: tuple[str, ...] | None  # names of the classes; None where targets are real numbers
    clients: tuple[str, ...] = ()  # the natural clients, if the data has any
    owner: Int64[Tensor, "row"] | None = None  # each row's index in `clients`
    test: Bool[Tensor, "row"] | None = None  # the test rows, if they are not drawn at random
    features: tuple[str, ...] | None = None  # names of the features, where these are columns
    target: str | None = None  # the name of the predicted column
    places: Places | None = None  # where the natural clients are, if known
    raw: RawColumns | None = None  # columns to encode after the split; `x` are then their values
    split: Split = RANDOM_SPLIT  # chooses the test rows, unless `test` does
    skip_empty: bool = False  # leave out clients without training rows
    notes: tuple[str, ...] = ()  # remarks about rows that were dropped, or cells to fill
    weight: Float64[Tensor, "row"] | None = None  # sample weights; those of test rows are not used

    __repr__ = summarise_fields

    @staticmethod
    def of(
        pair: ArrayPair,
        client: Iterable[Any] | None = None,
        *,
        labels: Sequence[str] | int | None = None,
        test: Bool[Tensor, "row"] | None = None,
        where: str = "data",
    ) -> "Table":
        """Build a table of checked rows, optionally with each row's client; errors begin with `where`."""
        x, y = validate_pair(where, pair, len(labels) if isinstance(labels, Sequence) else labels)
        if not len(x):
            raise InputError(f"{where} has no rows; expected at least one")
        if client is None:
            return Table(x, y, name_labels(labels, y), test=test)
        names, owner = index_clients(client, len(x), where)
        return Table(x, y, name_labels(labels, y), names, owner, test)

    @staticmethod
    def of_numbered_clients(
        x: Num[np.ndarray, "row *feature"],
        y: Int64[np.ndarray, "row"],
        labels: tuple[str, ...],
        client: Int64[np.ndarray, "row"],
    ) -> "Table":
        """Build a table of clients that are identified by numbers, in rising order."""
        numbers, owner = np.unique(client, return_inverse=True)
        rows = torch.from_numpy(x), torch.from_numpy(y)
        return Table(*rows, labels, tuple(str(number) for number in numbers), torch.from_numpy(owner))

    def cut(self, partition: Any, seed: int) -> RowsByClient:
        """Return each client's rows, as the data or a partition assigns them."""
        clients, row, count = self.assign_rows(partition, seed)
        return dict(zip(clients, row.split(count.tolist()), strict=True))

    def assign_rows(
        self, partition: Any, seed: int
    ) -> tuple[tuple[str, ...], Int64[Tensor, "owned"], Int64[Tensor, "client"]]:
        """Return the clients' names, their rows client by client, and the number of rows of each."""
        if isinstance(partition, type) or not isinstance(partition, Partition | None):
            raise InputError(
                f"partition = {partition!r}; expected a partition such as fedlap.partition.Iid(20)",
                field="partition",
                scope="data",
            )
        # A subclass may override `cut`, which then decides.
        if isinstance(partition, OwnerPartition) and type(partition).cut is OwnerPartition.cut:
            row, count = group_rows(
                _check_owners(partition.assign_owners(self.y, seed), len(self.y)), partition.clients
            )
        elif partition is not None:
            rows_per_client = _check_cut(partition.cut(self.y, seed), len(self.y))
            row, count = torch.cat(rows_per_client), torch.tensor([len(rows) for rows in rows_per_client])
        elif self.owner is not None:
            return self.clients, *group_rows(self.owner, len(self.clients))
        else:
            raise InputError(
                "the rows have no clients; name the column of clients, or choose a partition",
                scope="data",
            )
        return tuple(str(k) for k in range(len(count))), row, count


def _check_cut(cut: Any, rows: int) -> list[Int64[Tensor, "_"]]:
    """Return the rows of each client from a partition; raise InputError unless they are rows of the table."""
    rows_per_client = list(cut) if isinstance(cut, Iterable) else []
    if not rows_per_client or any(
        not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.dim() != 1
        for indices in rows_per_client
    ):
        raise InputError(
            f"`cut` returned a {type(cut).__name__}; expected a list of one torch.int64 vector per client",
            scope="partition",
        )
    for client, indices in enumerate(rows_per_client):
        if (wrong := find_outside(indices, 0, rows)) is not None:
            raise InputError(
                f"`cut` returned row {wrong} for client {client}; expected 0 to {rows - 1}",
                scope="partition",
            )
    return rows_per_client


def _check_owners(owner: Any, rows: int) -> Int64[Tensor, "row"]:
    """Return the client of each row from a partition; raise InputError unless every row has an entry."""
    if isinstance(owner, Tensor) and owner.dtype == torch.int64 and owner.shape == (rows,):
        return owner
    form = f"{owner.dtype} of shape {tuple(owner.shape)}" if isinstance(owner, Tensor) else repr(type(owner))
    raise InputError(
        f"`assign_owners` returned {form}; expected torch.int64 of shape ({rows},)", scope="partition"
    )


def table_from_arrays(
    arrays: Mapping[Any, ArrayPair],
    test: Mapping[Any, ArrayPair] | None,
    labels: tuple[str, ...] | int | None,
    weight: Mapping[Any, Any] | None = None,
) -> Table:
    """Build a table from arrays per client, {name: (x, y)}, and optionally test rows and row weights."""
    if not isinstance(arrays, Mapping):
        raise InputError(
            f"clients are of type {type(arrays).__name__}; expected a dictionary {{name: (x, y)}}",
            scope="data",
        )
    if not arrays:
        raise InputError("there are no clients; pass at least one", scope="data")
    names = tuple(str(name) for name in arrays)
    check_unique_names(names)
    classes = len(labels) if isinstance(labels, tuple) else labels
    index = {name: k for k, name in enumerate(names)}
    named_pairs = [
        (str(name), pair, row_name)
        for mapping, row_name in ((arrays, "row"), (test or {}, "test row"))
        for name, pair in mapping.items()
    ]
    try:
        x, y, count = _concatenate_pairs(named_pairs, index, classes)
    except InputError:
        for name, pair, row_name in named_pairs:  # Client by client, so that the error names the client.
            _check_has_training_rows(name, index)
            validate_pair(f"data: client {name!r}", pair, classes, row_name)
        raise
    owner = torch.tensor([index[name] for name, _, _ in named_pairs]).repeat_interleave(count)
    is_test = None if test is None else torch.arange(len(x)) >= int(count[: len(names)].sum())
    table = Table(x, y, name_labels(labels, y), names, owner, is_test)
    if weight is None:
        return table
    counts = count.tolist()
    weights = collect_weights(weight, names, counts[: len(names)], sum(counts[len(names) :]))
    return replace(table, weight=weights)


def _concatenate_pairs(
    named_pairs: Sequence[tuple[str, ArrayPair, str]], index: Mapping[str, int], labels: int | None
) -> tuple[Tensor, Tensor, Int64[Tensor, "pair"]]:
    """Concatenate all features and labels, and return the number of rows of each pair.

    The values are checked all at once.
    """
    for name, _, _ in named_pairs:
        _check_has_training_rows(name, index)
    pairs = [pair for _, pair, _ in named_pairs]
    if is_uniform(pairs):
        xs, ys = zip(*pairs, strict=True)
        x, y = convert_pair("data", (np.concatenate(xs), np.concatenate(ys)))
        count = torch.tensor([len(x_k) for x_k, _ in pairs])
    else:
        converted = [convert_pair("data", pair) for pair in pairs]
        check_uniform([name for name, _, _ in named_pairs], converted)
        x, y = (torch.cat(tensors) for tensors in zip(*converted, strict=True))
        count = torch.tensor([x_k.shape[0] for x_k, _ in converted])
    check_row_values("data", x, y, labels, "row")
    return x, y, count


def _check_has_training_rows(name: str, known: Container[str]) -> None:
    if name not in known:
        raise InputError(
            f"client {name!r} has test rows but no training rows; add training rows", scope="data"
        )


def index_clients(
    client: Iterable[Any], rows: int, where: str
) -> tuple[tuple[str, ...], Int64[Tensor, "row"]]:
    """Return the clients' names in order of first appearance, and the index of each row's client."""
    names = list(client.tolist() if isinstance(client, np.ndarray | Tensor) else client)
    kinds = set(map(type, names))
    if kinds == {float} and all(map(float.is_integer, names)):
        names = list(map(int, names))
    elif kinds not in ({int}, {str}):  # Equal integers or strings, and only these, have the same text.
        names = _format_names(names, where)
    if len(names) != rows:
        raise InputError(f"{where}: {len(names)} client names for {rows} rows; expected one per row")
    index = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return tuple(map(str, index)), torch.tensor([index[name] for name in names], dtype=torch.int64)


def _format_names(names: Iterable[Any], where: str) -> list[str]:
    """Format names of any type as text."""
    for row, name in enumerate(names):
        if name is None or (isinstance(name, float) and not math.isfinite(name)):
            raise InputError(f"{where}, row {row}: the client is missing; fill in or remove such rows")
    whole = all(isinstance(name, float) and name.is_integer() for name in names)
    return [str(int(name) if whole else name) for name in names]


def check_test_clients(train: Iterable[Any], test: Iterable[Any], where: str, test_where: str) -> None:
    """Raise InputError if a client has test rows but no training rows."""
    trained = {str(name) for name in train}
    for stranger in sorted({str(name) for name in test} - trained):
        raise InputError(
            f"{test_where}: client {stranger!r} has no rows in {where}; add training rows, "
            "remove its test rows, or leave such clients out (skip_empty, --skip-empty)"
        )


def table_from_dataset(
    dataset: Any, client: Iterable[Any] | Mapping[Any, Iterable[int]], labels: Sequence[str] | int | None
) -> Table:
    """Build a table from a PyTorch dataset of pairs (features, label), read once.

    `client` lists the client of each item, or maps clients to items: {name: [0, 5, …]}.
    """
    try:
        pairs = [
            (_convert_features(x), _convert_label(y))
            for x, y in (dataset[item] for item in range(len(dataset)))
        ]
        x, y = (torch.stack(values) for values in zip(*pairs, strict=True))
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"the dataset cannot be read ({error}); it needs a length, and items that are pairs "
            "(features, label) of numbers, all of one shape",
            scope="data",
        ) from error
    if not isinstance(client, Mapping):
        return Table.of((x, y), client, labels=labels, where="the dataset")
    owner_of_item = [-1] * len(x)
    for k, (name, rows) in enumerate(client.items()):
        for item in rows.tolist() if isinstance(rows, np.ndarray | Tensor) else rows:
            if not (
                isinstance(item, Integral)
                and 0 <= int(item) < len(owner_of_item)
                and owner_of_item[int(item)] < 0
            ):
                raise InputError(
                    f"client {str(name)!r} has item {item!r}, which does not exist or has a client already; "
                    f"expected items 0 to {len(x) - 1}, each for one client",
                    scope="data",
                )
            owner_of_item[int(item)] = k
    owner = torch.tensor(owner_of_item)
    assigned = owner >= 0  # Items without a client are dropped.
    return _build_owned_table(
        (x[assigned], y[assigned]), [str(name) for name in client], owner[assigned], labels, "the dataset"
    )


def _build_owned_table(
    pair: ArrayPair,
    names: Sequence[str],
    owner: Int64[Tensor, "row"],
    labels: Sequence[str] | int | None,
    where: str,
) -> Table:
    """Build a table of clients in this order; clients without rows are refused later, by Federation."""
    check_unique_names(names)
    return replace(Table.of(pair, labels=labels, where=where), clients=tuple(names), owner=owner)


def _convert_label(y: Any) -> Tensor:
    if isinstance(y, Tensor):
        return y
    array = np.array(y)
    refuse_text(array, "data", LABELS_ADVICE)
    return torch.from_numpy(array)


def _convert_features(x: Any) -> Tensor:
    """Convert one item's features to a tensor; an image becomes bytes, channels first."""
    if isinstance(x, Tensor):
        return x
    array = np.array(x)
    picture = array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (1, 3, 4)
    return torch.from_numpy(array.transpose(2, 0, 1).copy() if picture else array)


def table_from_partitioner(
    partitioner: Any, features: str | Sequence[str], label: str, labels: Sequence[str] | int | None
) -> Table:
    """Build a table from a Flower Datasets partitioner; client k is partition k."""
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    owner: list[int] = []
    try:
        for k in range(partitioner.num_partitions):
            rows = partitioner.load_partition(k)
            for column in [label, *([features] if isinstance(features, str) else features)]:
                if column not in rows.column_names:
                    known = ", ".join(rows.column_names)
                    raise InputError(f"there is no column {column!r}; use one of {known}", scope="data")
            if labels is None:
                labels = getattr(rows.features[label], "names", None)
            if isinstance(features, str):
                xs += [_convert_features(value) for value in rows[features]]
            else:
                columns = [np.array(list(rows[column])) for column in features]
                xs += list(torch.from_numpy(np.stack(columns, 1)))
            ys += [_convert_label(value) for value in rows[label]]
            owner += [k] * len(rows)
        pair = torch.stack(xs), torch.stack(ys)
    except (TypeError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the partitions cannot be read ({error}); use features of one shape, and numbers as labels",
            scope="data",
        ) from error
    names = [str(k) for k in range(partitioner.num_partitions)]
    table = _build_owned_table(pair, names, torch.tensor(owner), labels, "the partitions")
    feature_names = None if isinstance(features, str) else tuple(map(str, features))
    return replace(table, features=feature_names, target=label)
