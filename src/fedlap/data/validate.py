"""Clients' own arrays, checked and split."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64, Num
from torch import Tensor

from fedlap.data.client_rows import spans
from fedlap.errors import InputError
from fedlap.randomness import Draws, draws

Given = tuple[Any, Any]  # features and labels of one client, as arrays or tensors
Rows = tuple[Tensor, Tensor]  # the same, in the form that training takes
ARRAYS = (np.ndarray, Tensor)
# How errors name what is given, and what to do where it is text.
FEATURES = "features", "turn them into numbers first"
LABELS = "labels", "number them 0, 1, … and name them with labels=[…], or use from_dataframe"


def checked(who: str, given: Given, labels: int | None, what: str = "row") -> Rows:
    """Features (bytes or real) and labels (whole) or targets (real, a column each); errors say whose."""
    x, y = formed(who, given)
    check_values(who, x, y, labels, what)
    return x, y


def formed(who: str, given: Given) -> Rows:
    """The same, of whatever values."""
    try:
        if isinstance(given, ARRAYS):
            raise TypeError("one array was given where a pair is needed")
        x, y = given
        x, y = _tensor(x, who, FEATURES), _tensor(y, who, LABELS)
        shapes = tuple(x.shape), tuple(y.shape)
        alike = all(shapes) and shapes[0][0] == shapes[1][0]
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{who} needs (features, labels) as arrays of numbers: {error}") from error
    if not alike or x.is_complex() or y.is_complex():
        raise InputError(f"{_has(who, shapes)}; both need one entry, real numbers, for each row")
    x = x.unsqueeze(1) if len(shapes[0]) == 1 else x
    if 0 in shapes[0][1:]:
        raise InputError(f"{_has(who, shapes)}; a row needs at least one feature")
    x = x if x.dtype == torch.uint8 or x.is_floating_point() else x.double()
    if y.is_floating_point():
        return x, y.reshape(len(y), math.prod(shapes[1][1:]))
    if len(shapes[1]) > 1:
        raise InputError(f"{_has(who, shapes)}; whole-number labels need one entry for each row")
    return x, y.long()


def _has(who: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return f"{who} has features of shape {shapes[0]} and labels of shape {shapes[1]}"


def check_values(
    who: str, x: Num[Tensor, "row *feature"], y: Num[Tensor, "row *output"], labels: int | None, what: str
) -> None:
    """Refuse what is not finite, and labels out of range."""
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


def _tensor(values: Any, who: str, what: tuple[str, str]) -> Tensor:
    """A tensor of these values; an array that may not be written to is copied, as torch wants."""
    if isinstance(values, Tensor):
        return values.to_dense()
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    check_text(array, who, what)
    return torch.from_numpy(np.ascontiguousarray(array if array.flags.writeable else array.copy()))


def check_text(array: Any, who: str, what: tuple[str, str]) -> None:
    """Refuse text in the place of numbers."""
    name, advice = what
    first = next((value for value in array.ravel()[:1].tolist() if isinstance(value, str | bytes)), None)
    if first is not None:
        raise InputError(f"{who}: {name} are text ({first!r}); {advice}")


def alike(pairs: Sequence[Any]) -> bool:
    """Whether all are pairs of NumPy arrays of one kind, as many rows in both: these can be formed as one."""
    if any(type(pair) is not tuple or len(pair) != 2 for pair in pairs):
        return False
    if {type(values) for pair in pairs for values in pair} != {np.ndarray}:
        return False
    kinds = {(x.dtype, x.shape[1:], y.dtype, y.shape[1:]) for x, y in pairs}
    return len(kinds) == 1 and all(x.shape[:1] == y.shape[:1] != () for x, y in pairs)


def check_alike(names: Sequence[str], given: Sequence[Rows]) -> None:
    """Refuse clients whose rows could not stand in one table."""
    kinds = [
        (x.dtype == torch.uint8, x.shape[1:], y.shape[1:] if y.is_floating_point() else None)
        for x, y in given
    ]

    def said(at: int) -> str:
        byte, features, targets = kinds[at]
        x = f"{'byte' if byte else 'real'} features {tuple(features)}"
        return f"{x} and {'labels' if targets is None else f'real targets {tuple(targets)}'}"

    for at, name in enumerate(names):
        if kinds[at] != kinds[0]:
            raise InputError(
                f"client {name!r} has {said(at)}, client {names[0]!r} has {said(0)}; make them alike",
                scope="data",
            )


def held_out(
    clients: Int64[Tensor, "client"], count: Int64[Tensor, "client"], test_share: float, seed: int
) -> Bool[Tensor, "row"]:
    """Which rows, one client after another, are for testing: ⌊share·n + ½⌋ of n with the smallest draws.

    Clients are known by their digests. Each always keeps a row to train on.
    """
    held = (test_share * count.double() + 0.5).floor().long().minimum((count - 1).clamp(min=0))
    return smallest(draws(seed, "split"), 0, clients, count, held)


def smallest(
    stream: Draws,
    step: int,
    clients: Int64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    wanted: Int64[Tensor, "client"],
) -> Bool[Tensor, "row"]:
    """The rows with the smallest draws, as many of each client's as are wanted."""
    chosen = torch.zeros(int(count.sum()), dtype=torch.bool)
    some = ((wanted > 0) & (wanted < count)).nonzero().flatten()
    first, size = (count.cumsum(0) - count)[some], count[some]
    order = stream.permutations(clients[some], step, size)
    within = spans(torch.zeros_like(size), size) < wanted[some].repeat_interleave(size)
    chosen[(first.repeat_interleave(size) + order)[within]] = True
    everything = (wanted >= count).repeat_interleave(count)
    return chosen.logical_or_(everything)


def label_names(labels: Sequence[str] | int | None, y: Num[Tensor, "row *output"]) -> tuple[str, ...] | None:
    """The classes as named, or 0, 1, … as far as they are counted or seen; None where targets are real."""
    if y.is_floating_point():
        if labels is not None:
            raise InputError(
                "labels were named but targets are real numbers; give whole-number labels", scope="data"
            )
        return None
    if labels is None:
        labels = max(2, int(y.max()) + 1) if len(y) else 2
        if labels > 1000 and labels > 10 * len(y.unique()):
            raise InputError(
                f"the largest label is {labels - 1}, but only {len(y.unique())} are in use; "
                "number them 0, 1, …, or say how many there are with labels=",
                scope="data",
            )
    return tuple(str(n) for n in range(labels)) if isinstance(labels, int) else tuple(map(str, labels))


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that two clients share."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"client {name!r} appears twice; give every client its own name", scope="data")
