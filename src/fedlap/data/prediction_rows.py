"""Rows that trained models are asked about, from a user's own file."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Num
from torch import Tensor

from fedlap.data.frames import Column, Origin, check_columns, filled, numbers
from fedlap.data.user_files import FILES, MISSING, frame_of
from fedlap.data.user_npz import arrays_of, as_text
from fedlap.errors import InputError, unknown

WHOLE = re.compile(r"[+-]?\d+(\.0*)?")


@dataclass(frozen=True, eq=False)
class Unseen:
    """Raw features and, where the file has them, each row's client and the truth, as it is written there."""

    path: str
    x: Num[Tensor, "row *feature"]
    clients: list[str] | None
    truth: list[Any] | None

    def known(self, labels: Sequence[str] | None, outputs: int) -> tuple[Bool[Tensor, "row"], Tensor]:
        """Which rows have a truth, and that of all these: a label's number, or targets."""
        place = None if labels is None else {label: number for number, label in enumerate(labels)}
        numbers_of: dict[str, int | None] = {}  # labels recur, and each is looked up once
        told: list[int | list[float] | None] = []
        for row, value in enumerate(self.truth or [None] * len(self.x)):
            made: int | list[float] | None
            if place is None:
                made = _targets(value)
            else:
                text = str(value).strip()
                if text not in numbers_of:
                    numbers_of[text] = _number(text, place)
                made = numbers_of[text]
            if made is None and not _missing(value):
                expected = "a number" if labels is None else f"one of {', '.join(labels[:10])}"
                raise InputError(
                    f"{self.path}, row {row + 1}: the label {str(value)!r} is not {expected}; correct it, or "
                    "name the right column (--label)"
                )
            told.append(made)
        rows = torch.tensor([made is not None for made in told], dtype=torch.bool)
        given = [made for made in told if made is not None]
        if labels is not None:
            return rows, torch.tensor(given, dtype=torch.int64)
        if any(len(made) != outputs for made in given if isinstance(made, list)):
            raise InputError(
                f"{self.path}: the model has {outputs} targets a row, and the file another number"
            )
        return rows, torch.tensor(given, dtype=torch.float64).view(len(given), outputs)


def unseen(
    path: str,
    inputs: tuple[int, ...],
    features: Sequence[str] | None,
    *,
    client: str | None = None,
    label: str | None = None,
    target: str | None = None,
) -> Unseen:
    """Rows of a file for a model that takes features of this shape, by their names or else by their places.

    `label` is the column (or array) with the truth, if one must be there; `target` one that may.
    """
    kind = Path(path).suffix.lower()
    if kind not in FILES:
        raise InputError(f"{path!r} is none of {', '.join(FILES)}; save it as one of these", scope="data")
    if kind == ".npz":
        return _of_arrays(path, inputs, client, label, target or "y")
    frame = frame_of(path, client, label or target or "").rename(columns=str)
    if not len(frame):
        raise InputError(f"{path} has no rows; give it some")
    for name in (client, label):
        if name is not None and name not in frame.columns:
            raise unknown(f"column of {path}", name, list(frame.columns))
    truth = label or (target if target in frame.columns else None)
    origin = Origin(path, 1)
    if features is None:
        columns = [name for name in frame.columns if name not in (client, truth)]
        if len(columns) != math.prod(inputs):
            raise InputError(
                f"{path} has {len(columns)} columns of features, the model takes {math.prod(inputs)}; name "
                "the column of labels, if there is one, with --label"
            )
    else:
        columns = list(features)
        check_columns(path, columns, frame.columns)
    x = torch.from_numpy(numbers(frame[columns], origin).copy()).view(len(frame), *inputs)
    return Unseen(
        path,
        x,
        None if client is None else [str(name) for name in filled(frame[client], origin)],
        None if truth is None else _values(frame[truth]),
    )


def _of_arrays(
    path: str, inputs: tuple[int, ...], client: str | None, label: str | None, target: str
) -> Unseen:
    arrays = arrays_of(path)
    for name in ("x", client, label):
        if name is not None and name not in arrays:
            raise unknown(f"array of {path}", name, arrays)
    truth = label or (target if target in arrays else None)
    x = np.array(arrays["x"])
    if not x.ndim or x[:1].size != math.prod(inputs) or x.dtype.kind not in "fiub":
        raise InputError(
            f"{path}, array 'x': it has shape {x.shape} and type {x.dtype}; the model takes rows of "
            f"numbers of shape {inputs}"
        )
    others = [None if name is None else as_text(arrays[name], path).tolist() for name in (client, truth)]
    for name, values in zip((client, truth), others, strict=True):
        if values is not None and len(values) != len(x):
            raise InputError(
                f"{path}, array {name!r}: {len(values)} entries, and {len(x)} rows; make them alike"
            )
    clients = None if others[0] is None else [_plain(name) for name in others[0]]
    return Unseen(path, torch.from_numpy(x).view(len(x), *inputs), clients, others[1])


def _plain(value: Any) -> str:
    """As text; a whole number without its point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _values(column: Column) -> list[Any]:
    gaps = column.isna().tolist()
    return [None if gap else value for value, gap in zip(column.tolist(), gaps, strict=True)]


def _missing(value: Any) -> bool:
    return value is None or str(value).strip() in MISSING


def _number(text: str, place: dict[str, int]) -> int | None:
    """The label's number, whether it is written as the name, as a number or as true or false."""
    ways = [text, text.capitalize() if text.lower() in ("true", "false") else text]
    if WHOLE.fullmatch(text):
        ways.append(_plain(float(text)))
    return next((place[way] for way in ways if way in place), None)


def _targets(value: Any) -> list[float] | None:
    try:
        made = [float(each) for each in (value if isinstance(value, list) else [value])]
    except (TypeError, ValueError):
        return None
    return made if all(map(math.isfinite, made)) else None
