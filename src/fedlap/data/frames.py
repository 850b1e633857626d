"""Data frames as tables of rows: which columns are features, and what the labels mean."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Num

from fedlap.data.table import Table, check_known
from fedlap.errors import InputError, unknown

Frame = Any  # of pandas, which training alone does not load
Column = Any
TaskName = Literal["auto", "classification", "regression"]

EXACT = 2**53  # whole numbers below are exact as real ones
MOST_CLASSES = 100  # more different whole numbers than this are as likely to be amounts


@dataclass(frozen=True)
class Origin:
    """How errors name a frame and its rows."""

    name: str
    first: int  # the number of the first row

    def at(self, place: int, column: str) -> str:
        """A cell."""
        return f"{self.name}, row {place + self.first}, column {column!r}"


FRAME = Origin("the data frame", 0)
TEST_FRAME = Origin("the test frame", 0)


def of_frame(
    frame: Any,
    client: Any,
    label: Any,
    *,
    test: Any | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    task: str = "auto",
    origin: Origin = FRAME,
    test_origin: Origin = TEST_FRAME,
) -> Table:
    """A frame's rows, and those of a test frame where there is one, as a table."""
    import pandas  # here, since training alone does not need it

    if task not in get_args(TaskName):
        raise unknown("task", task, get_args(TaskName), field="task")
    client, label = None if client is None else str(client), str(label)
    frames = [(_frame(frame, origin), origin)]
    if test is not None:
        frames.append((_frame(test, test_origin), test_origin))
    columns = _features(frames[0][0], origin, client, label, features, drop)
    for each, where in frames:
        for column in [*([] if client is None else [client]), label, *columns]:
            if column not in each.columns:
                raise unknown(f"column of {where.name}", column, list(each.columns))
    x = np.concatenate([numbers(each[columns], where) for each, where in frames])
    marks = [filled(each[label], where) for each, where in frames]
    y, labels = coded(pandas.concat(marks, ignore_index=True), task, f"{origin.name}, column {label!r}")
    names = None
    if client is not None:
        own = [[str(name) for name in filled(each[client], where)] for each, where in frames]
        check_known(own[0], own[-1], origin.name, test_origin.name)
        names = [name for each in own for name in each]
    held = torch.arange(len(x)) >= len(frames[0][0]) if test is not None else None
    made = Table.of((x, y), names, labels=labels, test=held, where=origin.name)
    return replace(made, features=tuple(columns), target=label)


def coded(values: Column, task: str, where: str) -> tuple[Num[np.ndarray, "row"], list[str] | None]:
    """Labels as 0, 1, … with the names of the classes, or real targets as they are."""
    import pandas

    series = pandas.Series(values)
    if pandas.api.types.is_complex_dtype(series):
        raise InputError(f"{where}: labels are complex numbers; give real numbers or classes")
    number = pandas.api.types.is_numeric_dtype(series) and not pandas.api.types.is_bool_dtype(series)
    if number:
        real = series.to_numpy(dtype=np.float64)
        if not np.isfinite(real).all():
            row = int((~np.isfinite(real)).nonzero()[0][0])
            raise InputError(f"{where}, row {row}: a label is NaN or infinite; fill in or leave out")
        whole = bool((real == np.floor(real)).all())
        if task == "regression" or (task == "auto" and not whole):
            return real, None
        if not whole:
            raise InputError(
                f"{where}: these are real numbers, not classes; use task = regression (--set data.task=…)"
            )
        if np.abs(real).max(initial=0) >= EXACT:
            raise InputError(
                f"{where}: these whole numbers are too large to be classes; use task = regression"
            )
        series = series.astype(np.int64)
        if task == "auto" and series.nunique() > MOST_CLASSES:
            raise InputError(
                f"{where}: {series.nunique()} different whole numbers; say whether they are classes or "
                "amounts: task = classification or task = regression (--set data.task=…)"
            )
    elif task == "regression":
        raise InputError(f"{where}: a regression needs numbers, and these are {series.dtype}")
    if isinstance(series.dtype, pandas.CategoricalDtype):
        return series.cat.codes.to_numpy(np.int64), [str(name) for name in series.cat.categories]
    try:
        codes, classes = pandas.factorize(series, sort=True)
    except TypeError as error:
        raise InputError(f"{where}: a label is text, a number, or true or false; here: {error}") from error
    return codes.astype(np.int64), [str(name) for name in classes]


def _frame(given: Any, origin: Origin) -> Frame:
    import pandas

    if not isinstance(given, pandas.DataFrame):
        try:
            given = given.to_pandas()
        except AttributeError:
            raise InputError(
                f"{origin.name} is of type {type(given).__name__}; give a pandas DataFrame"
            ) from None
    if not len(given):
        raise InputError(f"{origin.name} has no rows; give it some")
    given = given.rename(columns=str)
    if not given.columns.is_unique:
        twice = given.columns[given.columns.duplicated()][0]
        raise InputError(f"{origin.name}: column {twice!r} appears twice; give every column its own name")
    return given


def _features(
    frame: Frame,
    origin: Origin,
    client: str | None,
    label: str,
    features: Sequence[str] | None,
    drop: Sequence[str],
) -> list[str]:
    """The columns that models see."""
    known = frame.columns
    for what, columns in {"features": features, "drop": drop}.items():
        if isinstance(columns, str):
            raise InputError(
                f"{what} = {columns!r}; give a list, as in [{columns!r}]", field=what, scope="data"
            )
    if client == label:
        raise InputError(f"{origin.name}: column {label!r} cannot be both client and label; choose one")
    for column in repeated(features or ()):
        raise InputError(f"{origin.name}: feature {column!r} is named twice; name it once")
    for column in [*([] if client is None else [client]), label, *(features or ()), *drop]:
        if column not in known:
            raise unknown(f"column of {origin.name}", column, list(known))
    dropped = set(drop)
    left = [c for c in frame.columns if c not in (client, label) and c not in dropped]
    chosen = left if features is None else [c for c in features if c not in dropped]
    for column in (c for c in chosen if c in (client, label)):
        raise InputError(
            f"{origin.name}: column {column!r} is a feature and the client or label too; choose one"
        )
    if not chosen:
        raise InputError(f"{origin.name}: no column is left to be a feature")
    return chosen


def check_columns(where: str, needed: Sequence[str], present: Any) -> None:
    """Refuse a table without all the columns that a model takes."""
    missing = [name for name in needed if name not in present]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"{where} has no column {missing[0]!r}{more}, which the model was trained with; add it"
        )


def numbers(frame: Frame, origin: Origin) -> Float[np.ndarray, "row feature"]:
    """Features as real numbers; the first column or cell that is none is named."""
    kinds = list(frame.dtypes.unique())
    if not all(_is_real(kind) for kind in kinds):
        _check_columns(frame, origin)
    single = all(kind == np.float32 for kind in kinds)
    made: Float[np.ndarray, "row feature"] = frame.to_numpy(
        dtype=np.float32 if single else np.float64, na_value=np.nan
    )
    if not np.isfinite(made).all():
        _check_columns(frame, origin)
    return made


def _is_real(kind: Any) -> bool:
    import pandas

    numeric, is_complex = pandas.api.types.is_numeric_dtype, pandas.api.types.is_complex_dtype
    return bool(numeric(kind) and not is_complex(kind))


def _check_columns(frame: Frame, origin: Origin) -> None:
    """Refuse the first column that is not of finite numbers; name its first cell that is none."""
    import pandas

    for name in frame.columns:
        column, kind = frame[name], frame[name].dtype
        if not _is_real(kind):
            text = column.astype(str)
            bad = (pandas.to_numeric(text, errors="coerce").isna() & column.notna()).to_numpy()
            place = int(bad.argmax())
            raise InputError(
                f"{origin.at(place, name)}: {text.iloc[place]!r} is {kind}, not numbers; leave it out "
                "(drop, or --drop), or turn it into numbers first"
            )
        bad = ~np.isfinite(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if bad.any():
            place = int(bad.nonzero()[0][0])
            raise InputError(
                f"{origin.at(place, name)}: a value is missing or infinite ({int(bad.sum())} in this "
                "column); fill in or leave out such rows"
            )


def repeated(names: Sequence[str]) -> list[str]:
    """Names that appear more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def filled(column: Column, origin: Origin) -> Column:
    """A column without gaps; whole numbers that a gap elsewhere had turned into real ones are whole again."""
    import pandas

    missing = column.isna().to_numpy(bool)
    if missing.any():
        place = int(missing.nonzero()[0][0])
        raise InputError(
            f"{origin.at(place, str(column.name))}: the value is missing ({int(missing.sum())} in this "
            "column); fill in or leave out such rows"
        )
    if pandas.api.types.is_float_dtype(column):
        infinite = np.isinf(column.to_numpy(np.float64))
        if infinite.any():
            cell = origin.at(int(infinite.nonzero()[0][0]), str(column.name))
            raise InputError(f"{cell}: the value is infinite; leave out such rows")
        if bool(((column == np.floor(column)) & (column.abs() < EXACT)).all()):
            return column.astype(np.int64)
    return column
