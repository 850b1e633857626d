"""Read rows for predictions from a user's file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Num
from torch import Tensor

from fedlap.data.columns import FrameLocation, Series, format_whole
from fedlap.data.csv_dialect import Dialect, convert_decimal_commas
from fedlap.data.encoding import Encoding
from fedlap.data.frames import check_columns, convert_features, name_clients
from fedlap.data.labels import MISSING_WORDS, find_label
from fedlap.data.user_files import USER_FILE_TYPES, read_frame
from fedlap.data.user_npz import decode_text, read_npz
from fedlap.errors import InputError, unknown_name_error


@dataclass(frozen=True, eq=False)
class PredictionRows:
    """Raw features and, if the file has them, each row's client and its truth as written in the file."""

    path: str
    x: Num[Tensor, "row *feature"]
    clients: list[str] | None
    truth: list[Any] | None
    identifiers: list[Any] | None = None
    notes: Sequence[str] = ()  # remarks about levels that no training row has

    def parse_truth(self, labels: Sequence[str] | None, outputs: int) -> tuple[Bool[Tensor, "row"], Tensor]:
        """Return a mask of the rows that have a truth, and these truths: label numbers or targets."""
        label_numbers = None if labels is None else {label: number for number, label in enumerate(labels)}
        parsed: dict[str, int | None] = {}  # Labels recur, and each is looked up once.
        truths: list[int | list[float] | None] = []
        for row, value in enumerate(self.truth or [None] * len(self.x)):
            truth: int | list[float] | None
            if label_numbers is None:
                truth = _parse_targets(value)
            else:
                text = str(value).strip()
                if text not in parsed:
                    parsed[text] = find_label(text, label_numbers)
                truth = parsed[text]
            if truth is None and not _is_missing(value):
                expected = "a number" if labels is None else f"one of {', '.join(labels[:10])}"
                raise InputError(
                    f"{self.path}, row {row + 1}: the label is not {expected}; correct it, or "
                    "name the right column (--label)"
                )
            truths.append(truth)
        rows = torch.tensor([truth is not None for truth in truths], dtype=torch.bool)
        known = [truth for truth in truths if truth is not None]
        if labels is not None:
            return rows, torch.tensor(known, dtype=torch.int64)
        for truth in known:
            if isinstance(truth, list) and len(truth) != outputs:
                raise InputError(
                    f"{self.path}: a row has {len(truth)} targets; expected {outputs}, as in training"
                )
        return rows, torch.tensor(known, dtype=torch.float64).view(len(known), outputs)


def read_prediction_rows(
    path: str,
    inputs: tuple[int, ...],
    features: Sequence[str] | None,
    *,
    encoding: Encoding | None = None,
    client: Sequence[str] = (),
    label: str | None = None,
    target: str | None = None,
    identifier: str | None = None,
    dialect: Dialect = (None, None),
) -> PredictionRows:
    """Read rows for a model with inputs of this shape, by the names of features, or else in file order.

    `encoding` turns columns into features, if the model was trained on text, dates or filled cells. `client`
    are the columns (or the array) that name a row's client. `label` is the required column (or array) with
    the truth; `target` is an optional one. `identifier` is the column that identifies rows. `dialect` are the
    separator and decimal sign of a CSV file.
    """
    kind = Path(path).suffix.lower()
    if kind not in USER_FILE_TYPES:
        raise InputError(
            f"{path!r} has unsupported extension {kind!r}; use {', '.join(USER_FILE_TYPES)}", scope="data"
        )
    if kind == ".npz":
        return _read_npz_rows(path, inputs, client, label, target or "y", identifier)
    columns = None if features is None else encoding.names if encoding is not None else list(features)
    frame, decimal = read_frame(
        path,
        client,
        label or target or "",
        identifier=None if identifier in (columns or ()) else identifier,
        dialect=dialect,
        texts=() if encoding is None else encoding.texts,
        wanted=columns or (),
    )
    frame = frame.rename(columns=str).reset_index(drop=True)  # A Parquet file may have names of rows.
    if not len(frame):
        raise InputError(f"{path} has no rows; expected at least one")
    for name in (*client, label, identifier):
        if name is not None and name not in frame.columns:
            raise unknown_name_error(f"column of {path}", name, list(frame.columns))
    truth = label or (target if target in frame.columns else None)
    if truth is not None and decimal == ",":
        frame[truth] = convert_decimal_commas(frame[truth])
    location = FrameLocation(path, 1)
    if columns is None:
        columns = [name for name in frame.columns if name not in (*client, truth, identifier)]
        if len(columns) != math.prod(inputs):
            raise InputError(
                f"{path} has {len(columns)} columns of features; the model expects {math.prod(inputs)}. "
                "If one is the label, name it with --label"
            )
    else:
        check_columns(path, columns, frame.columns)
    notes: list[str] = []
    if encoding is None:
        x = torch.from_numpy(convert_features(frame[columns], location).copy()).view(len(frame), *inputs)
    else:
        x, notes = encoding.read(frame, location)
    return PredictionRows(
        path,
        x,
        name_clients(frame, location, client) if client else None,
        None if truth is None else _list_values(frame[truth]),
        None if identifier is None else _list_identifiers(frame[identifier]),
        notes,
    )


def _read_npz_rows(
    path: str,
    inputs: tuple[int, ...],
    clients: Sequence[str],
    label: str | None,
    target: str,
    identifier: str | None,
) -> PredictionRows:
    arrays = read_npz(path)
    if len(clients) > 1:
        raise InputError(f"{path} has one array of clients; name one", scope="data")
    client = clients[0] if clients else None
    for name in ("x", client, label, identifier):
        if name is not None and name not in arrays:
            raise unknown_name_error(f"array of {path}", name, arrays)
    truth = label or (target if target in arrays else None)
    x = np.array(arrays["x"])
    if not x.ndim or x[:1].size != math.prod(inputs) or x.dtype.kind not in "fiub":
        raise InputError(
            f"{path}, array 'x': shape {x.shape} and type {x.dtype}; the model expects rows of "
            f"numbers of shape {inputs}"
        )
    names = client, truth, identifier
    others = [None if name is None else decode_text(arrays[name], path).tolist() for name in names]
    for name, values in zip(names, others, strict=True):
        if values is not None and len(values) != len(x):
            raise InputError(
                f"{path}, array {name!r}: {len(values)} entries for {len(x)} rows; expected one per row"
            )
    clients_of_rows = None if others[0] is None else [format_whole(name) for name in others[0]]
    return PredictionRows(
        path, torch.from_numpy(x).view(len(x), *inputs), clients_of_rows, others[1], others[2]
    )


def _list_values(column: Series) -> list[Any]:
    gaps = column.isna().tolist()
    return [None if gap else value for value, gap in zip(column.tolist(), gaps, strict=True)]


def _list_identifiers(column: Series) -> list[str | int | float]:
    """Return identifiers as they are written; dates and other objects become text, and gaps are empty."""
    plain = (str, int, float)
    return [
        "" if value is None else value if isinstance(value, plain) else str(value)
        for value in _list_values(column)
    ]


def _is_missing(value: Any) -> bool:
    return value is None or str(value).strip() in MISSING_WORDS


def _parse_targets(value: Any) -> list[float] | None:
    try:
        targets = [float(entry) for entry in (value if isinstance(value, list) else [value])]
    except (TypeError, ValueError):
        return None
    return targets if all(map(math.isfinite, targets)) else None
