"""Sample weights of training rows: reading, checking, and weights relative to a client's mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.data.columns import FrameLocation, Series, find_words, is_real
from fedlap.errors import InputError, unknown_name_error

RowWeights = Float64[Tensor, "row"]
EXPECTED_WEIGHT = "expected a finite number of at least 0; correct the weight or remove the row"


def convert_weights(
    where: str, values: Any, rows: int, describe_row: Callable[[int], str] | None = None
) -> RowWeights:
    """Convert weights to a tensor; raise InputError unless there is a valid one per row.

    Errors begin with `where`, or with the description of a row.
    """
    describe = describe_row or (lambda row: f"{where}, row {row}")
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (rows,):
        raise InputError(
            f"{where}: weights have shape {array.shape}; expected one weight per row, ({rows},)",
            field="weight",
        )
    if array.dtype.kind not in "fiub":
        array = _convert_objects(array, describe)
    weights: Float64[np.ndarray, row] = array.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(wrong.nonzero()[0][0])
        problem = "negative" if weights[row] < 0 else "missing or infinite"
        raise InputError(f"{describe(row)}: the weight is {problem}; {EXPECTED_WEIGHT}", field="weight")
    return torch.from_numpy(weights)


def _convert_objects(array: np.ndarray, describe: Callable[[int], str]) -> np.ndarray:
    """Convert numbers that are stored as objects; None is NaN."""
    for row, value in enumerate(array.tolist()):
        if value is not None and not isinstance(value, int | float):
            raise InputError(
                f"{describe(row)}: the weight is not a number; {EXPECTED_WEIGHT}", field="weight"
            )
    return np.array([np.nan if value is None else value for value in array.tolist()], dtype=np.float64)


def read_weight_column(column: Series, location: FrameLocation) -> RowWeights:
    """Read the weights of a frame's rows; an error names the first wrong cell."""
    is_number = is_real(column.dtype)
    words = find_words(column)
    if words.any():
        raise location.describe_wrong(column, words, "are no numbers", "correct or remove these rows")
    cells = column.to_numpy(dtype=np.float64, na_value=np.nan) if is_number else column.to_numpy(object)
    name = str(column.name)
    rows = column.index
    return convert_weights(
        location.name, cells, len(cells), lambda row: location.describe_cell(int(rows[row]), name)
    )


def collect_weights(
    weight: Mapping[Any, Any], names: Sequence[str], counts: Sequence[int], test_rows: int
) -> RowWeights:
    """Concatenate the weights of each client's rows, {name: weights}, and ones for separate test rows."""
    if not isinstance(weight, Mapping):
        raise InputError(
            f"weight is of type {type(weight).__name__}; expected a dictionary {{name: weights}}",
            field="weight",
            scope="data",
        )
    weights_of = {str(name): values for name, values in weight.items()}
    for name in weights_of:
        if name not in names:
            raise unknown_name_error("client among the weights", name, names, field="weight")
    for name in names:
        if name not in weights_of:
            raise InputError(
                f"client {name!r} has no weights; pass one array of weights per client",
                field="weight",
                scope="data",
            )
    parts = [
        convert_weights(f"data: client {name!r}", weights_of[name], count)
        for name, count in zip(names, counts, strict=True)
    ]
    return torch.cat([*parts, torch.ones(test_rows, dtype=torch.float64)])


def check_training_weights(clients: Sequence[str], train: ClientRows) -> None:
    """Raise InputError if all training rows of a client have weight zero."""
    if train.weight is None:
        return
    for place in (train.sum_weights() <= 0).nonzero().flatten().tolist():
        raise InputError(
            f"all training rows of client {clients[place]!r} have weight zero; "
            "use a positive weight, or remove the client",
            field="weight",
            scope="data",
        )


def keep_weighted_rows(
    train: ClientRows, trains: Bool[Tensor, "row"], is_test: Bool[Tensor, "row"]
) -> tuple[Bool[Tensor, "row"], Bool[Tensor, "row"]]:
    """Return the masks of a fold, in which a client holds out nothing if only weights of 0 would train."""
    if train.weight is None:
        return trains, is_test
    owner = train.find_owners()
    left = torch.zeros(len(train.count), dtype=torch.float64).index_add_(0, owner, train.weight * trains)
    unweighted = (left <= 0)[owner]
    return trains | unweighted, is_test & ~unweighted


def select_positive(
    train: ClientRows,
) -> tuple[Int64[Tensor, "positive"], Float64[Tensor, "positive"] | None]:
    """Return the store indices of training rows with a positive weight, and their weights."""
    if train.weight is None:
        return train.row, None
    positive = train.weight > 0
    return train.row[positive], train.weight[positive]
