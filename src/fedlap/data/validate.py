"""Convert and check arrays of features and labels."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Num
from torch import Tensor

from fedlap.errors import InputError, check_integer

ArrayPair = tuple[Any, Any]  # features and labels of one client, as arrays or tensors
TensorPair = tuple[Tensor, Tensor]  # features and labels as training takes them
ARRAY_TYPES = (np.ndarray, Tensor)
# The name of an array in errors, and the advice if it is text.
FEATURES_ADVICE = "features", "turn them into numbers first"
LABELS_ADVICE = "labels", "number them 0, 1, … and pass labels=[…], or use from_dataframe"


def validate_pair(where: str, pair: ArrayPair, labels: int | None, row_name: str = "row") -> TensorPair:
    """Convert and check features (bytes or real) and labels (integers) or targets (real, one column each).

    Errors begin with `where`.
    """
    x, y = convert_pair(where, pair)
    check_row_values(where, x, y, labels, row_name)
    return x, y


def convert_pair(where: str, pair: ArrayPair) -> TensorPair:
    """Convert features and labels to tensors and check their shapes, not their values."""
    try:
        if isinstance(pair, ARRAY_TYPES):
            raise TypeError("got one array, expected a pair")
        x, y = pair
        x, y = _convert_tensor(x, where, FEATURES_ADVICE), _convert_tensor(y, where, LABELS_ADVICE)
        shapes = tuple(x.shape), tuple(y.shape)
        matching = all(shapes) and shapes[0][0] == shapes[1][0]
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where} needs (features, labels) as arrays of numbers: {error}") from error
    if not matching or x.is_complex() or y.is_complex():
        raise InputError(
            f"{_describe_shapes(where, shapes)}; expected real numbers, one entry per row in both"
        )
    x = x.unsqueeze(1) if len(shapes[0]) == 1 else x
    if 0 in shapes[0][1:]:
        raise InputError(f"{_describe_shapes(where, shapes)}; a row needs at least one feature")
    x = x if x.dtype == torch.uint8 or x.is_floating_point() else x.double()
    if y.is_floating_point():
        return x, y.reshape(len(y), math.prod(shapes[1][1:]))
    if len(shapes[1]) > 1:
        raise InputError(f"{_describe_shapes(where, shapes)}; integer labels need one entry per row")
    return x, y.long()


def _describe_shapes(where: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return f"{where} has features of shape {shapes[0]} and labels of shape {shapes[1]}"


def check_row_values(
    where: str,
    x: Num[Tensor, "row *feature"],
    y: Num[Tensor, "row *output"],
    labels: int | None,
    row_name: str,
) -> None:
    """Raise InputError if a value is not finite or a label is out of range."""
    for values, wrong in ((x, "a feature"), (y, "a label")):
        if values.is_floating_point() and not bool(values.isfinite().all()):
            row = int((~values.isfinite().flatten(1).all(1)).nonzero()[0])
            raise InputError(
                f"{where}, {row_name} {row}: {wrong} is NaN or infinite; fill in or remove such rows"
            )
    if not y.is_floating_point():
        bad = (y < 0) | (y >= (labels or torch.iinfo(torch.int64).max))
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            known = f"expected 0 to {labels - 1}" if labels else "expected 0, 1, …"
            raise InputError(f"{where}, {row_name} {row}: a label is out of range; {known}")


def _convert_tensor(values: Any, where: str, advice: tuple[str, str]) -> Tensor:
    """Convert values to a tensor; a read-only array is copied, as torch requires."""
    if isinstance(values, Tensor):
        return values.to_dense()
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    refuse_text(array, where, advice)
    return torch.from_numpy(np.ascontiguousarray(array if array.flags.writeable else array.copy()))


def refuse_text(array: Any, where: str, advice: tuple[str, str]) -> None:
    """Raise InputError if an array contains text instead of numbers."""
    name, remedy = advice
    if any(isinstance(value, str | bytes) for value in array.ravel()[:1].tolist()):
        raise InputError(f"{where}: {name} are text; {remedy}")


def is_uniform(pairs: Sequence[Any]) -> bool:
    """Return whether all pairs are NumPy arrays of one dtype and row shape, and can be concatenated."""
    if any(type(pair) is not tuple or len(pair) != 2 for pair in pairs):
        return False
    if {type(values) for pair in pairs for values in pair} != {np.ndarray}:
        return False
    kinds = {(x.dtype, x.shape[1:], y.dtype, y.shape[1:]) for x, y in pairs}
    return len(kinds) == 1 and all(x.shape[:1] == y.shape[:1] != () for x, y in pairs)


def check_uniform(names: Sequence[str], pairs: Sequence[TensorPair]) -> None:
    """Raise InputError if the rows of two clients cannot share one table."""
    kinds = [
        (x.dtype == torch.uint8, x.shape[1:], y.shape[1:] if y.is_floating_point() else None)
        for x, y in pairs
    ]

    def describe(index: int) -> str:
        byte, features, targets = kinds[index]
        x = f"{'byte' if byte else 'real'} features {tuple(features)}"
        return f"{x} and {'labels' if targets is None else f'real targets {tuple(targets)}'}"

    for index, name in enumerate(names):
        if kinds[index] != kinds[0]:
            raise InputError(
                f"client {name!r} has {describe(index)}; expected {describe(0)}, as client {names[0]!r} has",
                scope="data",
            )


def parse_label_names(labels: Iterable[str] | SupportsIndex | None) -> tuple[str, ...] | int | None:
    """Return the names of the classes as text, or their number; None if neither is given."""
    if isinstance(labels, Iterable):
        return tuple(str(name) for name in labels)
    return None if labels is None else check_integer("labels", labels, 1, scope="data")


def name_labels(labels: Sequence[str] | int | None, y: Num[Tensor, "row *output"]) -> tuple[str, ...] | None:
    """Return the names of the classes, by default 0, 1, … up to the count or the largest label.

    Real targets have no classes: None.
    """
    if y.is_floating_point():
        if labels is not None:
            raise InputError(
                "labels are named but targets are real numbers; use integer labels", scope="data"
            )
        return None
    if labels is None:
        labels = max(2, int(y.max()) + 1) if len(y) else 2
        if labels > 1000 and labels > 10 * len(y.unique()):
            raise InputError(
                f"the largest label is {labels - 1}, but only {len(y.unique())} are in use; "
                "number them 0, 1, …, or pass their number as labels=",
                scope="data",
            )
    return tuple(str(n) for n in range(labels)) if isinstance(labels, int) else tuple(map(str, labels))


def check_unique_names(names: Iterable[str]) -> None:
    """Raise InputError if two clients share a name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"client {name!r} appears twice; use unique names", scope="data")
