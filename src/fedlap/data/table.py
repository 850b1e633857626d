"""Labelled rows in one table, before anybody's share of them is fixed."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64, Num
from torch import Tensor

from fedlap.data.client_rows import first_outside, grouped
from fedlap.data.partition import Owning, Partition
from fedlap.data.validate import (
    LABELS,
    Given,
    alike,
    check_alike,
    check_names,
    check_text,
    check_values,
    checked,
    formed,
    label_names,
)
from fedlap.errors import InputError

Own = dict[str, Int64[Tensor, "_"]]  # each client's rows, by its name


@dataclass(frozen=True, eq=False)
class Table:
    """Features and labels of every row and, where known, whose row it is and whether it is for testing."""

    x: Num[Tensor, "row *feature"]
    y: Num[Tensor, "row *output"]
    labels: tuple[str, ...] | None  # names of the classes; None where targets are real numbers
    clients: tuple[str, ...] = ()  # those that rows belong to by nature
    owner: Int64[Tensor, "row"] | None = None  # each row's place among `clients`
    test: Bool[Tensor, "row"] | None = None  # rows kept for testing, where that is not left to chance
    features: tuple[str, ...] | None = None  # names of the features, where these are columns
    target: str | None = None  # the name of what is to be predicted

    @staticmethod
    def of(
        given: Given,
        client: Iterable[Any] | None = None,
        *,
        labels: Sequence[str] | int | None = None,
        test: Bool[Tensor, "row"] | None = None,
        where: str = "data",
    ) -> "Table":
        """Checked rows, with the name of each row's client where there are any; errors say `where`."""
        x, y = checked(where, given, len(labels) if isinstance(labels, Sequence) else labels)
        if not len(x):
            raise InputError(f"{where} has no rows; give it some")
        if client is None:
            return Table(x, y, label_names(labels, y), test=test)
        names, owner = owners(client, len(x), where)
        return Table(x, y, label_names(labels, y), names, owner, test)

    @staticmethod
    def numbered(
        x: Num[np.ndarray, "row *feature"],
        y: Int64[np.ndarray, "row"],
        labels: tuple[str, ...],
        client: Int64[np.ndarray, "row"],
    ) -> "Table":
        """Rows of clients that are known by numbers, in the order of these."""
        numbers, owner = np.unique(client, return_inverse=True)
        rows = torch.from_numpy(x), torch.from_numpy(y)
        return Table(*rows, labels, tuple(str(number) for number in numbers), torch.from_numpy(owner))

    def cut(self, partition: Any, seed: int) -> Own:
        """Each client's rows: by nature, or as a partition deals them out."""
        clients, row, count = self.dealt(partition, seed)
        return dict(zip(clients, row.split(count.tolist()), strict=True))

    def dealt(
        self, partition: Any, seed: int
    ) -> tuple[tuple[str, ...], Int64[Tensor, "owned"], Int64[Tensor, "client"]]:
        """The same as clients' names, their rows one client after another, and how many rows each has."""
        if isinstance(partition, type) or not isinstance(partition, Partition | None):
            raise InputError(
                f"partition = {partition!r}; give one, as in fedlap.partition.Iid(20)",
                field="partition",
                scope="data",
            )
        if isinstance(partition, Owning) and type(partition).cut is Owning.cut:  # nobody's own way to cut
            row, count = grouped(
                _checked_owner(partition.owner(self.y, seed), len(self.y)), partition.clients
            )
        elif partition is not None:
            own = _checked_cut(partition.cut(self.y, seed), len(self.y))
            row, count = torch.cat(own), torch.tensor([len(rows) for rows in own])
        elif self.owner is not None:
            return self.clients, *grouped(self.owner, len(self.clients))
        else:
            raise InputError(
                "nothing says whose rows are whose; name the column of clients, or choose a partition",
                scope="data",
            )
        return tuple(str(k) for k in range(len(count))), row, count


def _checked_cut(given: Any, rows: int) -> list[Int64[Tensor, "_"]]:
    """Each client's rows as a partition has returned them, if they are rows of the table."""
    own = list(given) if isinstance(given, Iterable) else []
    if not own or any(
        not isinstance(its, Tensor) or its.dtype != torch.int64 or its.dim() != 1 for its in own
    ):
        raise InputError(
            "`cut` must return the rows of each client, as vectors of torch.int64", scope="partition"
        )
    for client, its in enumerate(own):
        if (wrong := first_outside(its, 0, rows)) is not None:
            raise InputError(
                f"client {client} is given row {wrong}; `cut` must return rows of 0 to {rows - 1}",
                scope="partition",
            )
    return own


def _checked_owner(given: Any, rows: int) -> Int64[Tensor, "row"]:
    """The client of each row as a partition has returned them, if there is one for each row of the table."""
    if isinstance(given, Tensor) and given.dtype == torch.int64 and given.shape == (rows,):
        return given
    form = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(type(given))
    raise InputError(f"`owner` returned {form}; return torch.int64 of shape ({rows},)", scope="partition")


def of_arrays(
    arrays: Mapping[Any, Given], test: Mapping[Any, Given] | None, labels: tuple[str, ...] | int | None
) -> Table:
    """Each client's own arrays, {name: (x, y)}, and its test rows where they are given, one after another."""
    if not isinstance(arrays, Mapping):
        raise InputError(
            f"clients are given as {type(arrays).__name__}; give a dictionary name: (x, y)", scope="data"
        )
    if not arrays:
        raise InputError("there are no clients; a federation needs at least one", scope="data")
    names = tuple(str(name) for name in arrays)
    check_names(names)
    classes = len(labels) if isinstance(labels, tuple) else labels
    place = {name: k for k, name in enumerate(names)}
    listed = [
        (str(name), pair, what)
        for mapping, what in ((arrays, "row"), (test or {}, "test row"))
        for name, pair in mapping.items()
    ]
    try:
        x, y, count = _one_after_another(listed, place, classes)
    except InputError:
        for name, pair, what in listed:  # one by one, to say whose rows are wrong
            _check_known_here(name, place)
            checked(f"data: client {name!r}", pair, classes, what)
        raise
    owner = torch.tensor([place[name] for name, _, _ in listed]).repeat_interleave(count)
    held = None if test is None else torch.arange(len(x)) >= int(count[: len(names)].sum())
    return Table(x, y, label_names(labels, y), names, owner, held)


def _one_after_another(
    listed: Sequence[tuple[str, Given, str]], place: Mapping[str, int], labels: int | None
) -> tuple[Tensor, Tensor, Int64[Tensor, "given"]]:
    """All features, all labels, and how many rows each gives; values are checked all at once."""
    for name, _, _ in listed:
        _check_known_here(name, place)
    pairs = [pair for _, pair, _ in listed]
    if alike(pairs):
        xs, ys = zip(*pairs, strict=True)
        x, y = formed("data", (np.concatenate(xs), np.concatenate(ys)))
        count = torch.tensor([len(own) for own, _ in pairs])
    else:
        given = [formed("data", pair) for pair in pairs]
        check_alike([name for name, _, _ in listed], given)
        x, y = (torch.cat(tensors) for tensors in zip(*given, strict=True))
        count = torch.tensor([own.shape[0] for own, _ in given])
    check_values("data", x, y, labels, "row")
    return x, y, count


def _check_known_here(name: str, known: Container[str]) -> None:
    if name not in known:
        raise InputError(f"client {name!r} has test rows but no training rows; add some", scope="data")


def owners(client: Iterable[Any], rows: int, where: str) -> tuple[tuple[str, ...], Int64[Tensor, "row"]]:
    """Names of clients in the order in which they first appear, and each row's place among them."""
    given = list(client.tolist() if isinstance(client, np.ndarray | Tensor) else client)
    kinds = set(map(type, given))
    if kinds == {float} and all(map(float.is_integer, given)):
        given = list(map(int, given))
    elif kinds not in ({int}, {str}):  # of which those that are equal, and only those, are written alike
        given = _written(given, where)
    if len(given) != rows:
        raise InputError(f"{where}: {len(given)} client names for {rows} rows; each row needs one")
    places = {name: place for place, name in enumerate(dict.fromkeys(given))}
    return tuple(map(str, places)), torch.tensor([places[name] for name in given], dtype=torch.int64)


def _written(given: Iterable[Any], where: str) -> list[str]:
    """Names of any kind as text."""
    for row, name in enumerate(given):
        if name is None or (isinstance(name, float) and not math.isfinite(name)):
            raise InputError(f"{where}, row {row}: the client is missing; fill in or leave out such rows")
    whole = all(isinstance(name, float) and name.is_integer() for name in given)
    return [str(int(name) if whole else name) for name in given]


def check_known(own: Iterable[Any], test: Iterable[Any], where: str, test_where: str) -> None:
    """Refuse test rows of a client without training rows."""
    trained = {str(name) for name in own}
    for stranger in sorted({str(name) for name in test} - trained):
        raise InputError(
            f"{test_where}: client {stranger!r} has no rows in {where}; a client needs rows to train on, so "
            "add some or leave it out"
        )


def of_dataset(
    dataset: Any, client: Iterable[Any] | Mapping[Any, Iterable[int]], labels: Sequence[str] | int | None
) -> Table:
    """Every item of a PyTorch dataset, read once; an item is a pair of features and label.

    `client` names each item's client, in order, or gives each client's items: {name: [0, 5, …]}.
    """
    try:
        pairs = [(_features(x), _number(y)) for x, y in (dataset[at] for at in range(len(dataset)))]
        x, y = (torch.stack(values) for values in zip(*pairs, strict=True))
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "a dataset needs a length, and items that are pairs (features, label) of numbers, all of "
            f"one shape: {error}",
            scope="data",
        ) from error
    if not isinstance(client, Mapping):
        return Table.of((x, y), client, labels=labels, where="the dataset")
    owners_of = [-1] * len(x)
    for place, (name, rows) in enumerate(client.items()):
        for at in rows.tolist() if isinstance(rows, np.ndarray | Tensor) else rows:
            if not (isinstance(at, Integral) and 0 <= int(at) < len(owners_of) and owners_of[int(at)] < 0):
                raise InputError(
                    f"client {str(name)!r} is given an item that does not exist or is given already; "
                    f"items are 0 to {len(x) - 1}, each for one client",
                    scope="data",
                )
            owners_of[int(at)] = place
    owner = torch.tensor(owners_of)
    held = owner >= 0  # items that nobody is given are left out
    return _owned((x[held], y[held]), [str(name) for name in client], owner[held], labels, "the dataset")


def _owned(
    given: Given,
    names: Sequence[str],
    owner: Int64[Tensor, "row"],
    labels: Sequence[str] | int | None,
    where: str,
) -> Table:
    """Rows of these clients, in this order; one without rows is refused later, with all the others."""
    check_names(names)
    return replace(Table.of(given, labels=labels, where=where), clients=tuple(names), owner=owner)


def _number(y: Any) -> Tensor:
    if isinstance(y, Tensor):
        return y
    array = np.array(y)
    check_text(array, "data", LABELS)
    return torch.from_numpy(array)


def _features(x: Any) -> Tensor:
    """One item's features; a picture becomes bytes, channels first."""
    if isinstance(x, Tensor):
        return x
    array = np.array(x)
    picture = array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (1, 3, 4)
    return torch.from_numpy(array.transpose(2, 0, 1).copy() if picture else array)


def of_partitions(
    partitioner: Any, features: str | Sequence[str], label: str, labels: Sequence[str] | int | None
) -> Table:
    """Every row of a Flower Datasets partitioner; client k is its partition k."""
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    owner: list[int] = []
    try:
        for k in range(partitioner.num_partitions):
            part = partitioner.load_partition(k)
            for column in [label, *([features] if isinstance(features, str) else features)]:
                if column not in part.column_names:
                    known = ", ".join(part.column_names)
                    raise InputError(f"there is no column {column!r}; columns: {known}", scope="data")
            if labels is None:
                labels = getattr(part.features[label], "names", None)
            if isinstance(features, str):
                xs += [_features(value) for value in part[features]]
            else:
                columns = [np.array(list(part[column])) for column in features]
                xs += list(torch.from_numpy(np.stack(columns, 1)))
            ys += [_number(value) for value in part[label]]
            owner += [k] * len(part)
        given = torch.stack(xs), torch.stack(ys)
    except (TypeError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"rows need features of one shape and numbers as labels: {error}", scope="data"
        ) from error
    names = [str(k) for k in range(partitioner.num_partitions)]
    made = _owned(given, names, torch.tensor(owner), labels, "the partitions")
    named = None if isinstance(features, str) else tuple(map(str, features))
    return replace(made, features=named, target=label)
