"""Read columns of features from data frames: numbers, texts and dates, before they are encoded."""

import datetime
import decimal
import numbers
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from fedlap.errors import InputError

DataFrame = Any  # The types of pandas are not imported, since training alone does not load pandas.
Series = Any
ColumnKind = Literal["number", "levels", "date"]
MissingRule = Literal["refuse", "drop", "mean"]

COLUMN_KINDS: tuple[str, ...] = get_args(ColumnKind)
MAX_LEVELS = 1_000  # distinct texts of one column; each becomes a feature
FEW_LEVELS = 20  # With at most this number of distinct texts, a column is no identifier.
DATE_FORMATS = (
    "ISO8601",
    *(f"{day}{time}" for day in ("%d.%m.%Y", "%d.%m.%y") for time in ("", " %H:%M", " %H:%M:%S")),
    *(f"%Y/%m/%d{time}" for time in ("", " %H:%M", " %H:%M:%S")),
    *(f"%d/%m/%Y{time}" for time in ("", " %H:%M", " %H:%M:%S")),
    *(f"%m/%d/%Y{time}" for time in ("", " %H:%M", " %H:%M:%S")),
)
DATE_START = re.compile(r"\d{4}[-/]\d{1,2}([-/]\d|$)|\d{1,2}[./]\d{1,2}[./]\d{2}")
COMMA_NUMBER = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+([eE][+-]?\d+)?")  # 1,5 or 1.234,5
NOT_NUMBERS_ADVICE = "correct these rows, or remove the column (drop, or --drop)"
COMMA_ADVICE = (
    "write 1234.5, or write 1234,5 in the whole file and set decimal = ',' (--decimal ,); then remove points "
    "between thousands"
)


@dataclass(frozen=True)
class FrameLocation:
    """The name of a frame and the number of its first row, for error messages."""

    name: str
    first: int  # the number of the first row

    def describe_cell(self, index: int, column: str) -> str:
        """Describe a cell by its frame, row and column."""
        return f"{self.name}, row {index + self.first}, column {column!r}"

    def describe_wrong(
        self, column: Series, wrong: Bool[np.ndarray, "row"], problem: str, advice: str
    ) -> InputError:
        """Return the error for cells of a column: how many there are, and the first row, but no cell.

        The index of the column counts the rows of the frame from zero.
        """
        row = int(column.index[int(wrong.argmax())]) + self.first
        return InputError(
            f"{self.name}, column {str(column.name)!r}: {int(wrong.sum())} of {len(wrong)} cells {problem} "
            f"(the first in row {row}); {advice}"
        )


@dataclass(frozen=True)
class ColumnPlan:
    """The name of a column and how its cells are read."""

    name: str
    kind: ColumnKind
    date_format: str | None = None  # None if cells are dates already


@dataclass(frozen=True, eq=False)
class RawColumns:
    """Columns before encoding: numbers, days since 1970, or indices of levels; NaN where a cell is missing.

    levels: for each column of texts, all its distinct texts in sorted order.
    fills: True if missing cells are to be filled with constants from training rows.
    """

    plans: tuple[ColumnPlan, ...]
    values: Float64[Tensor, "stored column"]
    levels: dict[int, tuple[str, ...]]
    fills: bool

    @staticmethod
    def concatenate(parts: Sequence["RawColumns"]) -> "RawColumns":
        """Concatenate the rows of several frames that were read by the same plans."""
        if len(parts) == 1:
            return parts[0]
        values, levels = [part.values.clone() for part in parts], {}
        for column in parts[0].levels:
            names = sorted({name for part in parts for name in part.levels[column]})
            place = {name: code for code, name in enumerate(names)}
            levels[column] = tuple(names)
            for part, cells in zip(parts, values, strict=True):
                codes = torch.tensor([place[name] for name in part.levels[column]] or [0]).double()
                present = ~cells[:, column].isnan()
                cells[present, column] = codes[cells[present, column].long()]
        return RawColumns(parts[0].plans, torch.cat(values), levels, parts[0].fills)

    def select(self, rows: Bool[Tensor, "stored"]) -> "RawColumns":
        """Return only the rows in the mask."""
        return replace(self, values=self.values[rows])


def is_real(kind: Any) -> bool:
    """Return whether a type of pandas consists of real numbers; booleans count as zero and one."""
    import pandas

    numeric, is_complex = pandas.api.types.is_numeric_dtype, pandas.api.types.is_complex_dtype
    return bool(numeric(kind) and not is_complex(kind))


def plan_columns(
    frame: DataFrame, location: FrameLocation, levels: Collection[str] = ()
) -> tuple[ColumnPlan, ...]:
    """Decide how each column is read, by its cells; those in `levels` are texts, whatever they look like."""
    real = {kind: is_real(kind) for kind in frame.dtypes.unique()}
    return tuple(
        ColumnPlan(name, "levels")
        if name in levels
        else ColumnPlan(name, "number")
        if real[kind]
        else _plan_column(frame[name], location)
        for name, kind in frame.dtypes.items()
    )


def read_columns(
    frame: DataFrame, plans: Sequence[ColumnPlan], location: FrameLocation, fills: bool
) -> RawColumns:
    """Read the cells of planned columns; missing ones become NaN, wrong ones raise InputError."""
    values = np.empty((len(frame), len(plans)))
    real = {kind: is_real(kind) for kind in frame.dtypes.unique()}
    kinds = dict(frame.dtypes.items())
    simple = [n for n, plan in enumerate(plans) if plan.kind == "number" and real[kinds[plan.name]]]
    if simple:  # All columns at once, since one by one is slow for many columns.
        names = [plans[n].name for n in simple]
        values[:, simple] = frame[names].to_numpy(dtype=np.float64, na_value=np.nan)
    levels = {}
    for n in sorted(set(range(len(plans))) - set(simple)):
        plan, column = plans[n], frame[plans[n].name]
        if plan.kind == "levels":
            values[:, n], levels[n] = _read_levels(column)
        elif plan.kind == "date":
            values[:, n] = read_dates(column, location, plan.date_format)
        else:
            values[:, n] = _read_numbers(column, location)
    infinite = np.isinf(values)
    if infinite.any():
        row, n = np.argwhere(infinite)[0]
        raise InputError(
            f"{location.describe_cell(int(row), plans[n].name)}: a value is infinite "
            f"({int(infinite[:, n].sum())} in this column); correct or remove such rows"
        )
    return RawColumns(tuple(plans), torch.from_numpy(values), levels, fills)


def check_levels(raw: RawColumns, location: FrameLocation) -> None:
    """Raise InputError for a column of texts that are nearly all different: names, not properties."""
    for column, levels in raw.levels.items():
        cells = int((~raw.values[:, column].isnan()).sum())
        if len(levels) > MAX_LEVELS or len(levels) > max(FEW_LEVELS, cells / 2):
            raise InputError(
                f"{location.name}, column {raw.plans[column].name!r}: {len(levels)} different texts in "
                f"{cells} rows are too many to learn from; remove the column (drop, or --drop), or use "
                "fewer, broader texts"
            )


def read_dates(
    column: Series, location: FrameLocation, date_format: str | None = None
) -> Float64[np.ndarray, "row"]:
    """Return days since 1970 (UTC), with NaN where a cell is missing; `date_format` is tried first."""
    codes, cells = _find_distinct(column)
    days = _parse_days(cells, date_format)
    if np.isnan(days).any():
        readings = [days, *(_parse_days(cells, name) for name in DATE_FORMATS)]
        days = min(readings, key=lambda days: int(np.isnan(_spread(days, codes))[codes >= 0].sum()))
        wrong = np.isnan(_spread(days, codes)) & (codes >= 0)
        if wrong.any():
            raise location.describe_wrong(
                column, wrong, "are no dates like the others", "write dates as 2020-01-31"
            )
        if any(not np.isnan(other).any() and not np.array_equal(days, other) for other in readings):
            raise InputError(
                f"{location.name}, column {str(column.name)!r}: dates may begin with the day or with the "
                "month; write them as 2020-01-31"
            )
    return _spread(days, codes)


def find_words(column: Series) -> Bool[np.ndarray, "row"]:
    """Return a mask of the cells that are present and are not numbers."""
    if is_real(column.dtype):
        return np.zeros(len(column), dtype=bool)
    codes, cells = _find_distinct(column)
    mask: Bool[np.ndarray, row] = np.append([_parse_number(cell) is None for cell in cells], False)[codes]
    return mask.astype(bool)


def format_whole(cell: Any) -> str:
    """Format a cell as text; a whole number without decimals."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _plan_column(column: Series, location: FrameLocation) -> ColumnPlan:
    """Decide how a column that does not consist of numbers is read."""
    import pandas

    name = str(column.name)
    if isinstance(column.dtype, pandas.CategoricalDtype):
        return ColumnPlan(name, "levels")
    if pandas.api.types.is_datetime64_any_dtype(column.dtype):
        return ColumnPlan(name, "date")
    codes, cells = _find_distinct(column)
    if all(isinstance(cell, bool | np.bool_ | numbers.Real | decimal.Decimal) for cell in cells):
        return ColumnPlan(name, "number")
    if all(isinstance(cell, datetime.date) for cell in cells):
        return ColumnPlan(name, "date")
    if not all(isinstance(cell, str) for cell in cells):
        others = [not isinstance(cell, bool | numbers.Real | str | decimal.Decimal) for cell in cells]
        problem = "are neither numbers nor text" if any(others) else "are text among numbers"
        wrong = others if any(others) else [isinstance(cell, str) for cell in cells]
        raise location.describe_wrong(column, _mark_rows(codes, wrong), problem, NOT_NUMBERS_ADVICE)
    is_word = np.array([_parse_number(cell) is None for cell in cells])
    if not is_word.any():
        return ColumnPlan(name, "number")
    present = codes >= 0
    has_comma = np.array([bool(COMMA_NUMBER.fullmatch(cell)) for cell in cells])
    if 2 * int(np.append(~is_word | has_comma, False)[codes].sum()) > int(present.sum()):
        raise _no_number_error(column, codes, cells, location)
    dates = np.array([bool(DATE_START.match(cell)) for cell in cells])
    if 2 * int(np.append(dates, False)[codes].sum()) <= int(present.sum()):
        return ColumnPlan(name, "levels")
    read_dates(column, location)
    return ColumnPlan(
        name, "date", next(form for form in DATE_FORMATS if not np.isnan(_parse_days(cells, form)).any())
    )


def _read_levels(column: Series) -> tuple[Float64[np.ndarray, "row"], tuple[str, ...]]:
    """Return the index of each cell's text, and all texts in sorted order."""
    codes, cells = _find_distinct(column)
    texts = [format_whole(cell) for cell in cells]
    names = sorted(set(texts))
    place = {name: float(code) for code, name in enumerate(names)}
    return np.append([place[text] for text in texts], np.nan)[codes], tuple(names)


def _read_numbers(column: Series, location: FrameLocation) -> Float64[np.ndarray, "row"]:
    """Return numbers that are stored as Python objects or as text."""
    codes, cells = _find_distinct(column)
    parsed = [_parse_number(cell) for cell in cells]
    if None in parsed:
        raise _no_number_error(column, codes, cells, location)
    values: Float64[np.ndarray, row] = np.append(np.array(parsed, dtype=np.float64), np.nan)[codes]
    return values


def _find_distinct(column: Series) -> tuple[Int64[np.ndarray, "row"], list[Any]]:
    """Return the distinct cells, and the index of each row's cell; −1 where it is missing or blank."""
    import pandas

    try:
        codes, cells = pandas.factorize(column.astype(object))
    except TypeError:  # A cell is a list or another object without a hash.
        codes, cells = np.arange(len(column)), column.tolist()
    stripped = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    present = [n for n, cell in enumerate(stripped) if not isinstance(cell, str) or cell]
    place = np.full(len(stripped) + 1, -1)
    place[present] = np.arange(len(present))
    return place[codes], [stripped[n] for n in present]


def _parse_number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _parse_days(cells: Sequence[Any], date_format: str | None) -> Float64[np.ndarray, "cell"]:
    """Return days since 1970, with NaN for a cell that is no date of this format."""
    import pandas

    if any(isinstance(cell, str) for cell in cells):
        is_date = [isinstance(cell, str) and DATE_START.match(cell) is not None for cell in cells]
        if date_format is None:
            is_date = [False] * len(cells)
        texts = pandas.Series([cell if fits else None for cell, fits in zip(cells, is_date, strict=True)])
        moments = pandas.to_datetime(texts, format=date_format, errors="coerce", utc=True)
    else:
        moments = pandas.to_datetime(pandas.Series(cells, dtype=object), errors="coerce", utc=True)
    days: Float64[np.ndarray, cell] = (
        (moments - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1)
    ).to_numpy(dtype=np.float64)
    return days


def _spread(
    values: Float64[np.ndarray, "cell"], codes: Int64[np.ndarray, "row"]
) -> Float64[np.ndarray, "row"]:
    """Return the value of each row's cell; NaN where it is missing."""
    rows: Float64[np.ndarray, row] = np.append(values, np.nan)[codes]
    return rows


def _mark_rows(codes: Int64[np.ndarray, "row"], chosen: Sequence[bool]) -> Bool[np.ndarray, "row"]:
    """Return a mask of the rows whose cell is chosen."""
    mask: Bool[np.ndarray, row] = np.append(np.array(chosen, dtype=bool), False)[codes]
    return mask


def _no_number_error(
    column: Series, codes: Int64[np.ndarray, "row"], cells: Sequence[Any], location: FrameLocation
) -> InputError:
    """Return the error for cells that are not numbers, or else for numbers with commas."""
    words = [_parse_number(cell) is None for cell in cells]
    commas = [isinstance(cell, str) and COMMA_NUMBER.fullmatch(cell) is not None for cell in cells]
    others = [word and not comma for word, comma in zip(words, commas, strict=True)]
    if any(others):
        return location.describe_wrong(
            column, _mark_rows(codes, others), "are no numbers", NOT_NUMBERS_ADVICE
        )
    return location.describe_wrong(
        column, _mark_rows(codes, words), "are numbers without a decimal point", COMMA_ADVICE
    )
