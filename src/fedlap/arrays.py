"""Clients' own arrays, checked and split."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Num
from torch import Tensor

from fedlap.errors import InputError
from fedlap.randomness import digest, draws

Given = tuple[Any, Any]  # features and labels of one client, as arrays or tensors
Rows = tuple[Tensor, Tensor]  # the same, in the form that training takes


def checked(who: str, given: Given, labels: int | None, what: str = "row") -> Rows:
    """Features (bytes or real) and labels (whole) or targets (real, a column each); errors say whose."""
    try:
        if isinstance(given, np.ndarray | Tensor):
            raise TypeError("one array was given where a pair is needed")
        x, y = (_tensor(values) for values in given)
        shapes = f"features of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}"
        alike = x.dim() > 0 and y.dim() > 0 and len(x) == len(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{who} needs (features, labels) as arrays of numbers: {error}") from error
    if not alike or x.is_complex() or y.is_complex():
        raise InputError(f"{who} has {shapes}; both need one entry, real numbers, for each row")
    x = x.unsqueeze(1) if x.dim() == 1 else x
    if 0 in x.shape[1:]:
        raise InputError(f"{who} has {shapes}; a row needs at least one feature")
    x = x if x.dtype == torch.uint8 or x.is_floating_point() else x.double()
    if y.is_floating_point():
        y = y.reshape(len(y), math.prod(y.shape[1:]))
    elif y.dim() == 1:
        y = y.long()
    else:
        raise InputError(f"{who} has {shapes}; whole-number labels need one entry for each row")
    for values, wrong in ((x, "a feature"), (y, "a label")):
        if values.is_floating_point() and not bool(values.isfinite().all()):
            at = int((~values.isfinite().flatten(1).all(1)).nonzero()[0])
            raise InputError(f"{who}, {what} {at}: {wrong} is NaN or infinite; fill in or drop such rows")
    if not y.is_floating_point():
        bad = (y < 0) | (y >= (labels or torch.iinfo(torch.int64).max))
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            known = f"labels are 0 to {labels - 1}" if labels else "labels are 0, 1, …"
            raise InputError(f"{who}, {what} {at}: label {int(y[at])} is out of range; {known}")
    return x, y


def _tensor(values: Any) -> Tensor:
    """A tensor of these values; an array that may not be written to is copied, as torch wants."""
    if isinstance(values, Tensor):
        return values.to_dense()
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    return torch.from_numpy(np.ascontiguousarray(array if array.flags.writeable else array.copy()))


def check_alike(names: Sequence[str], given: Sequence[Rows]) -> None:
    """Refuse clients whose rows could not stand in one table."""

    def kind(rows: Rows) -> str:
        x, y = rows
        features = f"{'byte' if x.dtype == torch.uint8 else 'real'} features {tuple(x.shape[1:])}"
        return f"{features} and {f'real targets {tuple(y.shape[1:])}' if y.is_floating_point() else 'labels'}"

    for name, rows in zip(names, given, strict=True):
        if kind(rows) != kind(given[0]):
            raise InputError(
                f"data: client {name!r} has {kind(rows)}, client {names[0]!r} has {kind(given[0])}; "
                "make them alike"
            )


def split(
    name: str, rows: Int64[Tensor, "own"], test_share: float, seed: int
) -> tuple[Int64[Tensor, "train"], Int64[Tensor, "test"]]:
    """A client's training and test rows: ⌊share·n + ½⌋ with the smallest draws are for testing.

    Both keep their order, and a client always keeps a row to train on.
    """
    held = min(math.floor(test_share * len(rows) + 0.5), max(0, len(rows) - 1))
    if not held:
        return rows, rows[:0]
    order = draws(seed, "split").permutation(digest(name), 0, len(rows))
    return rows[order[held:].sort().values], rows[order[:held].sort().values]


def label_names(labels: Sequence[str] | int | None, y: Num[Tensor, "row *output"]) -> tuple[str, ...] | None:
    """The classes as named, or 0, 1, … as far as they are counted or seen; None where targets are real."""
    if y.is_floating_point():
        if labels is not None:
            raise InputError("data: labels were named but targets are real numbers; give whole-number labels")
        return None
    if labels is None:
        labels = max(2, int(y.max()) + 1) if len(y) else 2
        if labels > 1000 and labels > 10 * len(y.unique()):
            raise InputError(
                f"data: the largest label is {labels - 1}, but only {len(y.unique())} are in use; "
                "number them 0, 1, …, or say how many there are with labels="
            )
    return tuple(str(n) for n in range(labels)) if isinstance(labels, int) else tuple(map(str, labels))


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that two clients share."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"data: client {name!r} appears twice; give every client its own name")
