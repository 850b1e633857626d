"""Build tables from data frames: choose the columns of features and encode the labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Num

from fedlap.data.table import Table, check_test_clients
from fedlap.errors import InputError, unknown_name_error

DataFrame = Any  # The types of pandas are not imported, since training alone does not load pandas.
Series = Any
LearningTask = Literal["auto", "classification", "regression"]

EXACT_INTEGERS_BELOW = 2**53  # Integers below are exact as float64.
MAX_INFERRED_CLASSES = 100  # More distinct integers than this may well be quantities rather than classes.


@dataclass(frozen=True)
class FrameLocation:
    """The name of a frame and the number of its first row, for error messages."""

    name: str
    first: int  # the number of the first row

    def describe_cell(self, index: int, column: str) -> str:
        """Describe a cell by its frame, row and column."""
        return f"{self.name}, row {index + self.first}, column {column!r}"


FRAME_LOCATION = FrameLocation("the data frame", 0)
TEST_FRAME_LOCATION = FrameLocation("the test frame", 0)


def table_from_frame(
    frame: Any,
    client: Any,
    label: Any,
    *,
    test: Any | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    task: str = "auto",
    location: FrameLocation = FRAME_LOCATION,
    test_location: FrameLocation = TEST_FRAME_LOCATION,
) -> Table:
    """Build a table from a frame and, optionally, a frame of test rows."""
    import pandas  # Training alone does not need it.

    if task not in get_args(LearningTask):
        raise unknown_name_error("task", task, get_args(LearningTask), field="task")
    client, label = None if client is None else str(client), str(label)
    frames = [(_convert_frame(frame, location), location)]
    if test is not None:
        frames.append((_convert_frame(test, test_location), test_location))
    columns = _choose_features(frames[0][0], location, client, label, features, drop)
    for data, source in frames:
        for column in [*([] if client is None else [client]), label, *columns]:
            if column not in data.columns:
                raise unknown_name_error(f"column of {source.name}", column, list(data.columns))
    x = np.concatenate([convert_features(data[columns], source) for data, source in frames])
    label_columns = [require_complete(data[label], source) for data, source in frames]
    y, labels = encode_labels(
        pandas.concat(label_columns, ignore_index=True), task, f"{location.name}, column {label!r}"
    )
    names = None
    if client is not None:
        names_per_frame = [
            [str(name) for name in require_complete(data[client], source)] for data, source in frames
        ]
        check_test_clients(names_per_frame[0], names_per_frame[-1], location.name, test_location.name)
        names = [name for frame_names in names_per_frame for name in frame_names]
    is_test = torch.arange(len(x)) >= len(frames[0][0]) if test is not None else None
    table = Table.of((x, y), names, labels=labels, test=is_test, where=location.name)
    return replace(table, features=tuple(columns), target=label)


def encode_labels(values: Series, task: str, where: str) -> tuple[Num[np.ndarray, "row"], list[str] | None]:
    """Encode labels as 0, 1, … with the names of the classes, or return real targets unchanged."""
    import pandas

    series = pandas.Series(values)
    if pandas.api.types.is_complex_dtype(series):
        raise InputError(f"{where}: labels are complex numbers; use real numbers or classes")
    numeric = pandas.api.types.is_numeric_dtype(series) and not pandas.api.types.is_bool_dtype(series)
    if numeric:
        real = series.to_numpy(dtype=np.float64)
        if not np.isfinite(real).all():
            row = int((~np.isfinite(real)).nonzero()[0][0])
            raise InputError(f"{where}, row {row}: a label is NaN or infinite; fill in or remove such rows")
        whole = bool((real == np.floor(real)).all())
        if task == "regression" or (task == "auto" and not whole):
            return real, None
        if not whole:
            raise InputError(
                f"{where}: labels are real numbers, not classes; use task = regression (--set data.task=…)"
            )
        if np.abs(real).max(initial=0) >= EXACT_INTEGERS_BELOW:
            raise InputError(f"{where}: labels are integers too large for classes; use task = regression")
        series = series.astype(np.int64)
        if task == "auto" and series.nunique() > MAX_INFERRED_CLASSES:
            raise InputError(
                f"{where}: {series.nunique()} distinct integers may be classes or quantities; set "
                "task = classification or task = regression (--set data.task=…)"
            )
    elif task == "regression":
        raise InputError(f"{where}: labels are {series.dtype}; use numbers, or task = classification")
    if isinstance(series.dtype, pandas.CategoricalDtype):
        return series.cat.codes.to_numpy(np.int64), [str(name) for name in series.cat.categories]
    try:
        codes, classes = pandas.factorize(series, sort=True)
    except TypeError as error:
        raise InputError(
            f"{where}: labels have several types ({error}); use only text, only numbers or only booleans"
        ) from error
    return codes.astype(np.int64), [str(name) for name in classes]


def _convert_frame(frame: Any, location: FrameLocation) -> DataFrame:
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        try:
            frame = frame.to_pandas()
        except AttributeError:
            raise InputError(
                f"{location.name} is of type {type(frame).__name__}; expected a pandas DataFrame"
            ) from None
    if not len(frame):
        raise InputError(f"{location.name} has no rows; expected at least one")
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"{location.name}: column {twice!r} appears twice; use unique names")
    return frame


def _choose_features(
    frame: DataFrame,
    location: FrameLocation,
    client: str | None,
    label: str,
    features: Sequence[str] | None,
    drop: Sequence[str],
) -> list[str]:
    """Choose the columns of features."""
    known = frame.columns
    for option, columns in {"features": features, "drop": drop}.items():
        if isinstance(columns, str):
            raise InputError(
                f"{option} = {columns!r}; expected a list, as in [{columns!r}]", field=option, scope="data"
            )
    if client == label:
        raise InputError(
            f"{location.name}: column {label!r} cannot be both client and label; use two columns"
        )
    for column in find_repeated(features or ()):
        raise InputError(f"{location.name}: feature {column!r} is named twice; name it once")
    for column in [*([] if client is None else [client]), label, *(features or ()), *drop]:
        if column not in known:
            raise unknown_name_error(f"column of {location.name}", column, list(known))
    dropped = set(drop)
    left = [c for c in frame.columns if c not in (client, label) and c not in dropped]
    chosen = left if features is None else [c for c in features if c not in dropped]
    for column in (c for c in chosen if c in (client, label)):
        raise InputError(
            f"{location.name}: column {column!r} is a feature and also the client or label; use it for one"
        )
    if not chosen:
        raise InputError(f"{location.name}: no column is left as a feature; drop fewer columns")
    return chosen


def check_columns(where: str, needed: Sequence[str], present: Any) -> None:
    """Raise InputError if a table lacks a column that a model needs."""
    missing = [name for name in needed if name not in present]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"{where} has no column {missing[0]!r}{more}, which the model was trained with; add it"
        )


def convert_features(frame: DataFrame, location: FrameLocation) -> Float[np.ndarray, "row feature"]:
    """Convert features to real numbers; an error names the first column or cell that is no finite number."""
    kinds = list(frame.dtypes.unique())
    if not all(_is_real(kind) for kind in kinds):
        _check_cells(frame, location)
    single = all(kind == np.float32 for kind in kinds)
    features: Float[np.ndarray, "row feature"] = frame.to_numpy(
        dtype=np.float32 if single else np.float64, na_value=np.nan
    )
    if not np.isfinite(features).all():
        _check_cells(frame, location)
    return features


def _is_real(kind: Any) -> bool:
    import pandas

    numeric, is_complex = pandas.api.types.is_numeric_dtype, pandas.api.types.is_complex_dtype
    return bool(numeric(kind) and not is_complex(kind))


def _check_cells(frame: DataFrame, location: FrameLocation) -> None:
    """Raise InputError for the first column, and its first cell, that is not a finite number."""
    import pandas

    for name in frame.columns:
        column, kind = frame[name], frame[name].dtype
        if not _is_real(kind):
            text = column.astype(str)
            bad = (pandas.to_numeric(text, errors="coerce").isna() & column.notna()).to_numpy()
            row = int(bad.argmax())
            raise InputError(
                f"{location.describe_cell(row, name)}: {text.iloc[row]!r} in a column of {kind}, not "
                "numbers; remove the column (drop, or --drop), or convert it first"
            )
        bad = ~np.isfinite(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if bad.any():
            cell = location.describe_cell(int(bad.nonzero()[0][0]), name)
            raise InputError(
                f"{cell}: a value is missing or infinite ({int(bad.sum())} in this column); "
                "fill in or remove such rows"
            )


def find_repeated(names: Sequence[str]) -> list[str]:
    """Return the names that appear more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def require_complete(column: Series, location: FrameLocation) -> Series:
    """Raise InputError if a column has gaps; return it, with whole floats as integers.

    A gap in another file or row makes pandas read integers as floats.
    """
    import pandas

    missing = column.isna().to_numpy(bool)
    if missing.any():
        cell = location.describe_cell(int(missing.nonzero()[0][0]), str(column.name))
        raise InputError(
            f"{cell}: the value is missing ({int(missing.sum())} in this column); fill in or remove such rows"
        )
    if pandas.api.types.is_float_dtype(column):
        infinite = np.isinf(column.to_numpy(np.float64))
        if infinite.any():
            cell = location.describe_cell(int(infinite.nonzero()[0][0]), str(column.name))
            raise InputError(f"{cell}: the value is infinite; remove such rows")
        if bool(((column == np.floor(column)) & (column.abs() < EXACT_INTEGERS_BELOW)).all()):
            return column.astype(np.int64)
    return column
