"""Encode raw columns as features: one-hot levels, days, and fills for missing cells, from training rows."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.data.columns import COLUMN_KINDS, ColumnPlan, FrameLocation, RawColumns, read_columns
from fedlap.errors import InputError

MISSING_LEVEL = "missing"  # the level of a missing text


@dataclass(frozen=True)
class ColumnEncoding:
    """Features of one column: a number unchanged, a date in days, a text as one feature per level.

    levels: the texts of training rows, in sorted order.
    origin: the first date of training rows, in days since 1970; zero for numbers.
    fill: the value of a missing cell, before `origin` is subtracted: the mean of training rows.
    """

    plan: ColumnPlan
    levels: tuple[str, ...] = ()
    origin: float = 0.0
    fill: float | None = None

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        if self.plan.kind == "levels":
            return [f"{self.plan.name}={level}" for level in self.levels]
        return [self.plan.name]


@dataclass(frozen=True)
class Encoding:
    """The encodings of all columns, with constants from training rows only.

    fills: True if missing cells are filled: numbers by their mean, texts by a level of their own.
    """

    columns: tuple[ColumnEncoding, ...]
    fills: bool

    @staticmethod
    def fit(
        raw: RawColumns, rows: Int64[Tensor, "row"], weight: Float64[Tensor, "row"] | None = None
    ) -> "Encoding":
        """Compute the encoding from training rows; means use their weights, which are positive."""
        cells = raw.values[rows]
        is_missing = cells.isnan()
        count = (~is_missing).sum(0)
        # Sums are relative to a cell of the column, so that the mean of a constant column is exact.
        first = cells.gather(0, (~is_missing).long().argmax(0, keepdim=True)).nan_to_num()
        if weight is None:
            shift = (cells - first).nan_to_num().sum(0, keepdim=True) / count.clamp(min=1)
        else:
            present = (weight.unsqueeze(1) * ~is_missing).sum(0, keepdim=True)
            shift = (weight.unsqueeze(1) * (cells - first).nan_to_num()).sum(0, keepdim=True) / present
        means = (first + shift).squeeze(0)
        least = torch.where(is_missing, math.inf, cells).amin(0)
        columns = []
        for n, plan in enumerate(raw.plans):
            if plan.kind == "levels":
                levels = {
                    raw.levels[n][code] for code in cells[~is_missing[:, n], n].unique().long().tolist()
                }
                if raw.fills and bool(is_missing[:, n].any()):
                    levels.add(MISSING_LEVEL)
                columns.append(ColumnEncoding(plan, tuple(sorted(levels))))
            elif not int(count[n]):
                raise InputError(
                    f"column {plan.name!r} has no value in training rows; remove it (drop, or --drop)",
                    scope="data",
                )
            else:
                origin = float(least[n]) if plan.kind == "date" else 0.0
                columns.append(ColumnEncoding(plan, (), origin, float(means[n]) if raw.fills else None))
        encoding = Encoding(tuple(columns), raw.fills)
        for name, times in Counter(encoding.features).items():
            if times > 1:
                raise InputError(f"two features have the name {name!r}; rename a column", scope="data")
        return encoding

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in order, as in "city=Oslo"."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.plan.name for column in self.columns]

    @property
    def texts(self) -> list[str]:
        """Names of the columns whose cells are texts."""
        return [column.plan.name for column in self.columns if column.plan.kind == "levels"]

    def encode(self, raw: RawColumns) -> Float64[Tensor, "stored feature"]:
        """Encode the cells of all rows; a level that no training row has becomes zeros."""
        sizes = torch.tensor([len(column.features) for column in self.columns])
        begin = (sizes.cumsum(0) - sizes).tolist()
        out = torch.zeros(len(raw.values), int(sizes.sum()), dtype=torch.float64)
        simple = [n for n, column in enumerate(self.columns) if column.plan.kind != "levels"]
        if simple:
            origin = torch.tensor([self.columns[n].origin for n in simple], dtype=torch.float64)
            fill = torch.tensor(
                [math.nan if (fill := self.columns[n].fill) is None else fill for n in simple],
                dtype=torch.float64,
            )
            cells = raw.values[:, simple]
            out[:, [begin[n] for n in simple]] = torch.where(cells.isnan(), fill, cells) - origin
        for n, column in enumerate(self.columns):
            if column.plan.kind == "levels":
                place = self._find_levels(raw, n)
                known = (place >= 0).nonzero().flatten()
                out[known, begin[n] + place[known]] = 1.0
        return out

    def read(self, frame: Any, location: FrameLocation) -> tuple[Float64[Tensor, "row feature"], list[str]]:
        """Encode rows of a data frame for prediction; also return remarks about unknown levels."""
        raw = read_columns(frame[self.names], [column.plan for column in self.columns], location, self.fills)
        if not self.fills:
            check_complete(raw, location)
        return self.encode(raw), self.describe_unknown_levels(raw, torch.arange(len(frame)), "rows")

    def describe_unknown_levels(
        self, raw: RawColumns, rows: Int64[Tensor, "row"], rows_name: str
    ) -> list[str]:
        """Describe the columns in which some rows have a level that no training row has."""
        remarks = []
        for n, column in enumerate(self.columns):
            if column.plan.kind == "levels" and (
                count := int((self._find_levels(raw, n)[rows] < 0).sum()) if len(rows) else 0
            ):
                remarks.append(
                    f"{count} of {len(rows)} {rows_name} have a text in column {column.plan.name!r} that no "
                    "training row has; all its features are zero there"
                )
        return remarks

    def describe(self) -> list[str]:
        """Describe columns of texts and dates, one line for each kind."""
        texts = [
            f"{column.plan.name} ({len(column.levels)})"
            for column in self.columns
            if column.plan.kind == "levels"
        ]
        dates = [
            f"{column.plan.name} (days since {_format_day(column.origin)})"
            for column in self.columns
            if column.plan.kind == "date"
        ]
        lines = []
        if texts:
            lines.append(f"columns of text are one-hot, with one feature per level: {_shorten_list(texts)}")
        if dates:
            lines.append(f"columns of dates are numbers: {_shorten_list(dates)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `parse` restores the encoding."""
        columns = []
        for column in self.columns:
            values: dict[str, Any] = {"name": column.plan.name, "kind": column.plan.kind}
            if column.plan.kind == "levels":
                values["levels"] = list(column.levels)
            if column.plan.kind == "date":
                values |= {"origin": column.origin, "format": column.plan.date_format}
            if column.fill is not None:
                values["fill"] = column.fill
            columns.append(values)
        return {"fills": self.fills, "columns": columns}

    @staticmethod
    def parse(values: Any) -> "Encoding | None":
        """Return the encoding that `to_dict` described, or None if the values are invalid."""
        if not isinstance(values, dict) or not isinstance(values.get("fills"), bool):
            return None
        columns = values.get("columns")
        parsed = [_parse_column(column) for column in columns] if isinstance(columns, list) else [None]
        complete = [column for column in parsed if column is not None]
        if not complete or len(complete) < len(parsed):
            return None
        fills = values["fills"]
        if any((column.fill is None) == (fills and column.plan.kind != "levels") for column in complete):
            return None
        return Encoding(tuple(complete), fills)

    def _find_levels(self, raw: RawColumns, n: int) -> Int64[Tensor, "stored"]:
        """Return the number of each row's level among those of training rows, or −1."""
        place = {level: number for number, level in enumerate(self.columns[n].levels)}
        last = place.get(MISSING_LEVEL, -1) if self.fills else -1
        numbers = torch.tensor([*(place.get(level, -1) for level in raw.levels[n]), last])
        return numbers[raw.values[:, n].nan_to_num(nan=float(len(numbers) - 1)).long()]


def check_complete(raw: RawColumns, location: FrameLocation) -> None:
    """Raise InputError for the first missing cell."""
    gaps = raw.values.isnan().numpy()
    if gaps.any():
        n = int(gaps.any(0).argmax())
        cell = location.describe_cell(int(gaps[:, n].argmax()), raw.plans[n].name)
        raise build_gap_error(cell, "missing", int(gaps[:, n].sum()))


def build_gap_error(cell: str, problem: str, count: int) -> InputError:
    """Return the error for a missing or infinite value."""
    return InputError(
        f"{cell}: a value is {problem} ({count} in this column); fill in or remove such rows, or set "
        "missing = drop or missing = mean (--missing)"
    )


def _parse_column(values: Any) -> ColumnEncoding | None:
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        return None
    kind, levels, date_format = values.get("kind"), values.get("levels", []), values.get("format")
    origin, fill = values.get("origin", 0.0), values.get("fill")
    if kind not in COLUMN_KINDS or not isinstance(levels, list) or not isinstance(date_format, str | None):
        return None
    if not all(isinstance(level, str) for level in levels) or (kind == "levels") != ("levels" in values):
        return None
    if any(
        not isinstance(number, int | float) or not math.isfinite(number) for number in (origin, fill or 0.0)
    ):
        return None
    return ColumnEncoding(
        ColumnPlan(values["name"], kind, date_format),
        tuple(levels),
        float(origin),
        None if fill is None else float(fill),
    )


def _format_day(day: float) -> str:
    return str(np.datetime64(math.floor(day), "D"))


def _shorten_list(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")
