"""A client's file, read by the plan. Errors state columns, rows and counts; they never quote a cell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Num

from fedlap.data.columns import (
    DataFrame,
    FrameLocation,
    RawColumns,
    Series,
    find_words,
    read_columns,
)
from fedlap.data.csv_dialect import check_dialect, convert_decimal_commas
from fedlap.data.federation import Federation
from fedlap.data.frames import convert_features, name_clients
from fedlap.data.labels import MISSING_WORDS, find_label
from fedlap.data.table import Table
from fedlap.data.user_files import read_frame
from fedlap.deploy.data_plan import DataPlan
from fedlap.errors import InputError, check_integer

SITE_FILE_TYPES: Final = (".csv", ".parquet")
MOST_ROWS: Final = 2**48  # that a client may claim to have


def load_site(
    plan: DataPlan,
    name: str,
    path: str,
    seed: int,
    *,
    client: str | Sequence[str] = (),
    separator: str | None = None,
    decimal: str | None = None,
) -> Federation:
    """Load the rows of one client, unscaled: a federation of the client `name` alone.

    Columns may be in any order; other columns are ignored. Rows, split and features are equal to those of the
    client of this name in a simulation of one file, if that file has the levels and labels of the plan.

    path: a .csv or .parquet file. seed: with the client's name, it draws the test rows.
    client: the column of clients (or several), if the file has rows of other clients, which are left out.
    separator, decimal: the signs of a .csv file; detected by default.
    """
    check_integer("seed", seed)
    suffix = Path(path).suffix.lower()
    if suffix not in SITE_FILE_TYPES:
        raise InputError(
            f"{path!r} has unsupported extension {suffix!r}; use {', '.join(SITE_FILE_TYPES)}", scope="data"
        )
    clients = (client,) if isinstance(client, str) else tuple(client)
    for column in (column for column in clients if column in (plan.label, *plan.features)):
        raise InputError(
            f"column {column!r} is the column of clients, but the plan has it as label or feature; name "
            "another column (--client)",
            field="client",
            scope="data",
        )
    frame, sign = read_frame(
        path,
        clients,
        plan.label,
        dialect=check_dialect(separator, decimal),
        texts=tuple(plan.levels),
        wanted=plan.features,
        private=True,
    )
    frame = frame.reset_index(drop=True)  # A Parquet file may have names of rows.
    if sign == ",":
        frame[plan.label] = convert_decimal_commas(frame[plan.label])
    location = FrameLocation(path, 1)
    if clients:
        frame = _select_client(frame, location, clients, name, drops=plan.missing == "drop")
    if not len(frame):
        raise InputError(f"{path} has no rows of client {name!r}; expected at least one", scope="data")
    y, is_gap = _read_labels(frame[plan.label], plan, location)
    raw = _read_features(frame, plan, location)
    gaps = np.concatenate([raw.values.isnan().numpy(), is_gap[:, None]], 1)
    if gaps.any() and plan.missing == "refuse":
        n = int(gaps.any(0).argmax())
        column = frame[[*plan.features, plan.label][n]]
        advice = "fill in or remove these rows, or set missing = drop in the plan"
        raise location.describe_wrong(column, gaps[:, n], "are missing", advice)
    complete: Bool[np.ndarray, row] = np.logical_not(gaps.any(1))
    if not complete.any():
        raise InputError(f"{path}: every row has a missing value; complete some of them", scope="data")
    x: Any = (
        convert_features(frame[list(plan.features)][complete], location)
        if plan.encoding is None
        else plan.encoding.encode(raw.select(torch.from_numpy(complete)))
    )
    table = Table.of((x, y[complete]), [name] * len(x), labels=plan.classes, where=path)
    dropped = int((~complete).sum())
    note = f"{dropped} of {len(complete)} rows have missing values and are dropped"
    table = replace(table, features=plan.feature_names, target=plan.label, notes=(note,) if dropped else ())
    site = Federation.from_table(table, None, plan.test_share, seed)
    return replace(site, encoding=plan.encoding)


def describe_site(site: Federation) -> dict[str, int]:
    """Return everything that leaves the client before training: counts of rows, and sizes of the model."""
    return {
        "train_rows": int(site.train.count.sum()),
        "test_rows": int(site.test.count.sum()),
        "inputs": site.inputs[0],
        "outputs": site.outputs,
    }


def check_shapes(plan: DataPlan, shapes: Any) -> dict[str, int]:
    """Return the shapes that a client sent; raise InputError unless they are valid and those of the plan."""
    least = {"train_rows": 1, "test_rows": 0, "inputs": 1, "outputs": 1}
    if not isinstance(shapes, Mapping) or set(shapes) != set(least):
        raise InputError(f"shapes of a client's data are incomplete; expected {', '.join(least)}")
    for name, bound in least.items():
        if type(shapes[name]) is not int or not bound <= shapes[name] < MOST_ROWS:
            raise InputError(f"{name} of a client's data is no valid count; expected {bound} or more")
    for name, expected in {"inputs": plan.inputs, "outputs": plan.outputs}.items():
        if shapes[name] != expected:
            raise InputError(
                f"a client's data has {shapes[name]} {name}; expected {expected}, as in the plan; use the "
                "plan of this run"
            )
    return {name: shapes[name] for name in least}


def _select_client(
    frame: DataFrame, location: FrameLocation, columns: Sequence[str], name: str, *, drops: bool
) -> DataFrame:
    """Return the rows of one client; rows without a client are dropped, or else refused."""
    if drops:
        frame = frame[~frame[list(columns)].isna().any(axis=1)]
    return frame[np.array(name_clients(frame, location, columns), dtype=object) == name]


def _read_features(frame: DataFrame, plan: DataPlan, location: FrameLocation) -> RawColumns:
    """Read the columns of features; NaN where a cell is missing."""
    columns = frame[list(plan.features)]
    try:
        raw = read_columns(columns, plan.columns, location, False)
    except InputError:
        raise _unreadable_error(columns, plan, location) from None
    for n, levels in raw.levels.items():
        column = plan.columns[n].name
        known = np.array([*(level in plan.levels[column] for level in levels), True])
        codes = raw.values[:, n].nan_to_num(nan=float(len(levels))).long().numpy()
        if not known.all():
            raise location.describe_wrong(
                frame[column],
                ~known[codes],
                f"are not among the {len(plan.levels[column])} levels of the plan",
                "correct these rows, or add their texts to levels in the plan",
            )
    return raw


def _unreadable_error(frame: DataFrame, plan: DataPlan, location: FrameLocation) -> InputError:
    """Return the error for the first column whose cells cannot be read, which does not quote them."""
    for column in plan.columns:
        cells = frame[column.name]
        words = find_words(cells) if column.kind == "number" else np.zeros(len(cells), dtype=bool)
        if words.any():
            advice = "correct these rows, or declare the column in levels or dates in the plan"
            return location.describe_wrong(cells, words, "are no numbers", advice)
        try:
            read_columns(frame[[column.name]], [column], location, False)
        except InputError:
            problem = (
                "a date cannot be read, or may begin with the day or with the month; write all of them as "
                "2020-01-31"
                if column.kind == "date"
                else "a value is infinite; correct or remove such rows"
            )
            return InputError(f"{location.name}, column {column.name!r}: {problem}", scope="data")
    raise AssertionError("the columns can be read one by one")


def _read_labels(
    column: Series, plan: DataPlan, location: FrameLocation
) -> tuple[Num[np.ndarray, "row"], Bool[np.ndarray, "row"]]:
    """Return the numbers of labels, or real targets, and a mask of missing cells."""
    is_gap = column.isna().to_numpy(bool, copy=True)
    is_wrong = np.zeros(len(column), dtype=bool)
    values = np.zeros(len(column), dtype=np.float64 if plan.classes is None else np.int64)
    numbers = {label: number for number, label in enumerate(plan.classes or ())}
    for row, cell in enumerate(column.tolist()):
        if is_gap[row]:
            continue
        value = _parse_target(cell) if plan.classes is None else find_label(str(cell).strip(), numbers)
        if value is not None:
            values[row] = value
        elif isinstance(cell, str) and cell.strip() in MISSING_WORDS:
            is_gap[row] = True
        else:
            is_wrong[row] = True
    if is_wrong.any():
        problem, advice = (
            ("are no finite numbers", "correct these rows, or set task = classification in the plan")
            if plan.classes is None
            else (
                f"are not among the {len(plan.classes)} labels of the plan",
                "correct these rows, or add their labels to the plan",
            )
        )
        raise location.describe_wrong(column, is_wrong, problem, advice)
    return values, is_gap


def _parse_target(cell: Any) -> float | None:
    """Return a finite number, or None; Python reads text to the last bit, in every version of pandas."""
    # Python alone accepts 1_000 and digits of other scripts.
    if isinstance(cell, bool) or (isinstance(cell, str) and ("_" in cell or not cell.isascii())):
        return None
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
