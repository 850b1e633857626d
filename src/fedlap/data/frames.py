"""Build tables from data frames: choose columns, read features, name clients, and drop incomplete rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float

from fedlap.data.columns import (
    ColumnPlan,
    DataFrame,
    FrameLocation,
    MissingRule,
    RawColumns,
    Series,
    check_levels,
    is_real,
    plan_columns,
    read_columns,
    read_dates,
)
from fedlap.data.encoding import build_gap_error, check_complete
from fedlap.data.frame_places import collect_places
from fedlap.data.labels import EXACT_INTEGERS_BELOW, LearningTask, encode_labels
from fedlap.data.places import Places
from fedlap.data.row_weights import read_weight_column
from fedlap.data.splits import RANDOM_SPLIT, GroupSplit, Split, SplitName, TimeSplit
from fedlap.data.table import Table, check_test_clients
from fedlap.errors import InputError, unknown_name_error
from fedlap.randomness import digest_names

CLIENT_SEPARATOR = " / "  # between the parts of a client's name, if several columns name it

FRAME_LOCATION = FrameLocation("the data frame", 0)
TEST_FRAME_LOCATION = FrameLocation("the test frame", 0)


@dataclass(frozen=True)
class FrameSettings:
    """The roles of a frame's columns, and how its rows are read and split.

    client: the columns that name the client of a row. features: by default all without another role.
    levels: columns whose cells are names, even if they are numbers.
    missing: refuse missing cells, drop their rows, or fill them with constants from training rows.
    split: random, or by the column `time`; rows with equal cells in column `group` stay on one side.
    weight: the column of sample weights of training rows.
    skip_empty: leave out clients without training rows.
    places: the columns of longitude, latitude and, optionally, height, equal in all rows of a client.
    """

    client: tuple[str, ...]
    label: str
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    task: str = "auto"
    missing: str = "refuse"
    split: str = "random"
    time: str | None = None
    group: str | None = None
    weight: str | None = None
    skip_empty: bool = False
    places: tuple[str, ...] = ()

    @staticmethod
    def of(client: Any, label: Any, **settings: Any) -> "FrameSettings":
        """Build settings from names, or lists of names, of any type; None means the default."""
        columns = () if client is None else client if isinstance(client, list | tuple) else (client,)
        present = {key: value for key, value in settings.items() if value is not None}
        for option in {"features", "drop", "levels", "places"} & set(present):
            names = present[option]
            if isinstance(names, str):
                raise InputError(
                    f"{option} = {names!r}; expected a list, as in [{names!r}]", field=option, scope="data"
                )
            present[option] = tuple(str(name) for name in names)
        return FrameSettings(tuple(str(name) for name in columns), str(label), **present)

    def __post_init__(self) -> None:
        for option, known in {"task": LearningTask, "missing": MissingRule, "split": SplitName}.items():
            if (value := getattr(self, option)) not in get_args(known):
                raise unknown_name_error(option, value, get_args(known), field=option)
        if self.split == "time" and self.time is None:
            raise InputError(
                "split = time needs the column of times; set time (--time)", field="split", scope="data"
            )
        if self.split != "time" and self.time is not None:
            raise InputError(
                f"time = {self.time!r} has no effect on a random split; set split = time (--split time)",
                field="time",
                scope="data",
            )
        if self.time is not None and self.group is not None:
            raise InputError(
                "group and split = time are both set, but a group may have early and late rows; use one",
                field="group",
                scope="data",
            )

    @property
    def special_columns(self) -> list[str]:
        """Columns of clients, labels, times, groups and weights."""
        others = [name for name in (self.time, self.group, self.weight) if name is not None]
        return list(dict.fromkeys([*self.client, self.label, *others]))

    def choose_features(self, frame: DataFrame, location: FrameLocation) -> list[str]:
        """Choose the columns of features; times, groups and places are features only if listed."""
        known = frame.columns
        if self.label in (*self.client, self.time, self.group):
            raise InputError(
                f"{location.name}: column {self.label!r} cannot be the label and also the client, time or "
                "group; use two columns"
            )
        if self.weight in (*self.client, self.label, *(self.features or ())):
            raise InputError(
                f"{location.name}: column {self.weight!r} is the weight and also the client, the label or a "
                "feature; use it for one"
            )
        for column in find_repeated(self.client):
            raise InputError(f"{location.name}: client column {column!r} is named twice; name it once")
        for column in find_repeated(self.features or ()):
            raise InputError(f"{location.name}: feature {column!r} is named twice; name it once")
        for column in [*self.special_columns, *(self.features or ()), *self.drop, *self.levels]:
            if column not in known:
                raise unknown_name_error(f"column of {location.name}", column, list(known))
        dropped, special = set(self.drop), {*self.special_columns, *self.places}
        left = [c for c in known if c not in special and c not in dropped]
        chosen = left if self.features is None else [c for c in self.features if c not in dropped]
        for column in (c for c in chosen if c in (*self.client, self.label)):
            raise InputError(
                f"{location.name}: column {column!r} is a feature and also the client or label; "
                "use it for one"
            )
        if not chosen:
            raise InputError(f"{location.name}: no column is left as a feature; drop fewer columns")
        return chosen


def table_from_frame(
    frame: Any,
    settings: FrameSettings,
    *,
    test: Any | None = None,
    location: FrameLocation = FRAME_LOCATION,
    test_location: FrameLocation = TEST_FRAME_LOCATION,
) -> Table:
    """Build a table from a frame and, optionally, a frame of test rows."""
    import pandas  # Training alone does not need it.

    if test is not None and settings.time is not None:
        raise InputError("test and split = time are both set; use one", field="split", scope="data")
    frames = [(_convert_frame(frame, location), location)]
    if test is not None:
        frames.append((_convert_frame(test, test_location), test_location))
        if settings.weight is not None:  # Weights of test rows are not used, so that a test frame needs none.
            frames[1] = (frames[1][0].assign(**{settings.weight: 1.0}), test_location)
    columns = settings.choose_features(frames[0][0], location)
    for data, source in frames:
        for column in [*settings.special_columns, *columns]:
            if column not in data.columns:
                raise unknown_name_error(f"column of {source.name}", column, list(data.columns))
    names_before = [name_clients(data, source, settings.client, skip=True) for data, source in frames]
    data_frames = [data for data, _ in frames]
    place_of = collect_places(settings.places, data_frames, settings.client, names_before, location.name)
    raws: list[RawColumns] | None = None
    notes: list[str] = []
    if settings.missing == "mean" or settings.levels or not _has_only_numbers(frames[0][0][columns]):
        plans = plan_columns(frames[0][0][columns], location, settings.levels)
        fills = settings.missing == "mean"
        raws = [read_columns(data[columns], plans, source, fills) for data, source in frames]
    if settings.missing == "drop":
        gaps = [
            data[columns].isna().to_numpy() if raws is None else raws[n].values.isnan().numpy()
            for n, (data, _) in enumerate(frames)
        ]
        frames, masks, notes = _drop_gaps(frames, gaps, columns, settings.special_columns)
        raws = raws and [raw.select(torch.from_numpy(mask)) for raw, mask in zip(raws, masks, strict=True)]
    raw = None if raws is None else _join_raw_columns(raws, frames, notes)
    label_columns = [require_complete(data[settings.label], source) for data, source in frames]
    y, labels = encode_labels(
        pandas.concat(label_columns, ignore_index=True),
        settings.task,
        f"{location.name}, column {settings.label!r}",
    )
    names = None
    if settings.client:
        names_per_frame = [name_clients(data, source, settings.client) for data, source in frames]
        if not settings.skip_empty:
            check_test_clients(names_per_frame[0], names_per_frame[-1], location.name, test_location.name)
        names = [name for frame_names in names_per_frame for name in frame_names]
    is_test = torch.arange(len(y)) >= len(frames[0][0]) if test is not None else None
    if raw is None:
        x = np.concatenate([convert_features(data[columns], source) for data, source in frames])
        table = Table.of((x, y), names, labels=labels, test=is_test, where=location.name)
    else:
        # Cells may still be missing, so that only the labels can be checked.
        blank = torch.zeros(len(y), 1)
        table = Table.of((blank, y), names, labels=labels, test=is_test, where=location.name)
        table = replace(table, x=raw.values, raw=raw)
    name = settings.weight
    weight = name and [read_weight_column(require_complete(d[name], source), source) for d, source in frames]
    present = set(table.clients)
    empty = [
        name for name in dict.fromkeys(n for names in names_before for n in names) if name not in present
    ]
    return replace(
        table,
        features=tuple(columns),
        target=settings.label,
        clients=(clients := (*table.clients, *empty)),
        places=Places.of(settings.places, [place_of[name] for name in clients]) if place_of else None,
        split=_build_split(frames, settings),
        weight=torch.cat(weight) if weight else None,
        skip_empty=settings.skip_empty,
        notes=tuple(notes),
    )


def _join_raw_columns(
    raws: Sequence[RawColumns], frames: Sequence[tuple[DataFrame, FrameLocation]], notes: list[str]
) -> RawColumns:
    """Concatenate raw columns, check their cells, and add a note on cells to fill."""
    for part, (_, source) in zip(raws, frames, strict=True):
        if not part.fills:
            check_complete(part, source)
    raw = RawColumns.concatenate(raws)
    check_levels(raw, frames[0][1])
    gaps = raw.values.isnan().numpy()
    if gaps.any():
        names = [plan.name for plan in raw.plans]
        notes.append(
            f"{int(gaps.sum())} missing cells in {int(gaps.any(1).sum())} of {len(gaps)} rows are filled "
            f"(numbers with the mean of training rows): {_describe_counts(names, gaps)}"
        )
    return raw


def _drop_gaps(
    frames: Sequence[tuple[DataFrame, FrameLocation]],
    feature_gaps: Sequence[Bool[np.ndarray, "_ feature"]],
    columns: Sequence[str],
    special: Sequence[str],
) -> tuple[list[tuple[DataFrame, FrameLocation]], list[Bool[np.ndarray, "_"]], list[str]]:
    """Return the frames without incomplete rows, masks of the complete rows, and a note on the others."""
    gaps = [
        np.concatenate([cells, data[list(special)].isna().to_numpy()], 1)
        for (data, _), cells in zip(frames, feature_gaps, strict=True)
    ]
    masks = [np.logical_not(cells.any(1)) for cells in gaps]
    for mask, (_, source) in zip(masks, frames, strict=True):
        if not mask.any():
            raise InputError(
                f"{source.name}: every row has a missing value; use missing = mean, or drop columns"
            )
    everything = np.concatenate(gaps)
    notes = []
    if everything.any():
        notes.append(
            f"{int(everything.any(1).sum())} of {len(everything)} rows have missing values and are dropped: "
            f"{_describe_counts([*columns, *special], everything)}"
        )
    complete = [(data[mask], source) for (data, source), mask in zip(frames, masks, strict=True)]
    return complete, masks, notes


def _describe_counts(names: Sequence[str], gaps: Bool[np.ndarray, "row column"]) -> str:
    """Return the columns with most gaps, and how many gaps they have."""
    counts = sorted(zip(gaps.sum(0).tolist(), names, strict=True), key=lambda pair: -pair[0])
    shown = [f"{name} {count}" for count, name in counts if count]
    return ", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")


def _build_split(frames: Sequence[tuple[DataFrame, FrameLocation]], settings: FrameSettings) -> Split:
    """Return the rule by which test rows and folds are chosen."""
    import pandas

    if settings.time is not None:
        data, source = frames[0]
        column = require_complete(data[settings.time], source)
        is_number = is_real(column.dtype)
        times = column.to_numpy(dtype=np.float64) if is_number else read_dates(column, source)
        return TimeSplit(torch.from_numpy(times.copy()))
    if settings.group is not None:
        columns = [require_complete(data[settings.group], source).astype(str) for data, source in frames]
        group, names = pandas.factorize(pandas.concat(columns, ignore_index=True))
        return GroupSplit(torch.from_numpy(group.astype(np.int64)), digest_names([str(n) for n in names]))
    return RANDOM_SPLIT


def name_clients(
    frame: DataFrame, location: FrameLocation, columns: Sequence[str], *, skip: bool = False
) -> list[str]:
    """Return each row's client, with " / " between the cells of several columns.

    skip: leave out rows without a client instead of raising InputError.
    """
    if not columns:
        return []
    if skip:
        frame = frame[~frame[list(columns)].isna().any(axis=1)]
    parts = [[str(name) for name in require_complete(frame[column], location)] for column in columns]
    if len(parts) == 1:
        return parts[0]
    cells = list(zip(*parts, strict=True))
    name_of = {cell: CLIENT_SEPARATOR.join(cell) for cell in dict.fromkeys(cells)}
    for name in find_repeated(list(name_of.values())):
        raise InputError(
            f"{location.name}: two clients would have the name {name!r}; remove {CLIENT_SEPARATOR.strip()!r} "
            "from the cells of client columns"
        )
    return [name_of[cell] for cell in cells]


def _has_only_numbers(frame: DataFrame) -> bool:
    return all(is_real(kind) for kind in frame.dtypes.unique())


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
    for twice in find_repeated(list(frame.columns)):
        raise InputError(f"{location.name}: column {twice!r} appears twice; use unique names")
    frame.index = pandas.RangeIndex(len(frame))  # Errors count rows, also after incomplete rows are dropped.
    return frame


def check_columns(where: str, needed: Sequence[str], present: Any) -> None:
    """Raise InputError if a table lacks a column that a model needs."""
    missing = [name for name in needed if name not in present]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"{where} has no column {missing[0]!r}{more}, which the model was trained with; add it"
        )


def convert_features(frame: DataFrame, location: FrameLocation) -> Float[np.ndarray, "row feature"]:
    """Convert numbers to an array; an error names the first cell that is missing or infinite."""
    if not _has_only_numbers(frame):
        raw = read_columns(frame, [ColumnPlan(name, "number") for name in frame.columns], location, False)
        check_complete(raw, location)
        return raw.values.numpy()
    single = all(kind == np.float32 for kind in frame.dtypes.unique())
    features: Float[np.ndarray, "row feature"] = frame.to_numpy(
        dtype=np.float32 if single else np.float64, na_value=np.nan
    )
    if not np.isfinite(features).all():
        _check_cells(frame, location)
    return features


def _check_cells(frame: DataFrame, location: FrameLocation) -> None:
    """Raise InputError for the first column, and its first cell, that is not a finite number."""
    for name in frame.columns:
        bad = ~np.isfinite(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
        if bad.any():
            cell = location.describe_cell(int(frame.index[bad][0]), name)
            raise build_gap_error(cell, "missing or infinite", int(bad.sum()))


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
        cell = location.describe_cell(int(column.index[missing][0]), str(column.name))
        raise InputError(
            f"{cell}: the value is missing ({int(missing.sum())} in this column); fill in or remove such "
            "rows, or set missing = drop (--missing drop)"
        )
    if pandas.api.types.is_float_dtype(column):
        infinite = np.isinf(column.to_numpy(np.float64))
        if infinite.any():
            cell = location.describe_cell(int(column.index[infinite][0]), str(column.name))
            raise InputError(f"{cell}: the value is infinite; remove such rows")
        if bool(((column == np.floor(column)) & (column.abs() < EXACT_INTEGERS_BELOW)).all()):
            return column.astype(np.int64)
    return column
