"""The data of a plan: the columns, levels and labels that all clients read their files by."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal, get_args

from fedlap.data.columns import MAX_LEVELS, ColumnPlan
from fedlap.data.encoding import ColumnEncoding, Encoding
from fedlap.data.frames import find_repeated
from fedlap.data.labels import MISSING_WORDS
from fedlap.data.standardize import Scaling
from fedlap.errors import InputError, check_number, unknown_name_error

PlanTask = Literal["classification", "regression"]
PlanMissingRule = Literal["refuse", "drop"]

FIRST_DAY: Final = datetime.date(1970, 1, 1)


@dataclass(frozen=True)
class DataPlan:
    """The columns of every client's file, and how they become features and labels.

    label: the column to predict.
    features: columns, in the order of the model's inputs.
    task: classification or regression.
    labels: for classification, the names of the classes, in the order of the model's outputs.
    levels: columns of text, and their texts in the order of the features. Texts of rows never leave a client,
        so that the plan must list all of them.
    dates: columns of dates, and the day from which days are counted, as in 2020-01-31.
    missing: refuse files with missing cells, or drop the rows. A mean would need the rows of all clients.
    scale: standardise features "pooled" over all clients, per "client", or "none".
    test_share: share of each client's rows that become test rows.
    """

    label: str
    features: tuple[str, ...]
    task: PlanTask = "regression"
    labels: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    missing: PlanMissingRule = "refuse"
    scale: Scaling = "pooled"
    test_share: float = 0.25

    @staticmethod
    def of(values: Mapping[str, Any]) -> "DataPlan":
        """Build a plan from plain values; raise InputError for an unknown or invalid one."""
        if not isinstance(values, Mapping):
            raise InputError(f"data = {values!r}; expected a table, as in [data]", field="data")
        known = {setting.name: setting for setting in fields(DataPlan)}
        for name in values:
            if name not in known:
                raise unknown_name_error("setting of [data]", name, known, field=f"data.{name}")
        for name, setting in known.items():
            if name not in values and setting.default is setting.default_factory is MISSING:
                raise _plan_error(name, f"{name} is missing; the plan needs it in [data]")
        settings = dict(values)
        for name in ("features", "labels"):
            if name in settings:
                settings[name] = _list_names(name, settings[name])
        for name in ("levels", "dates"):
            if not isinstance(settings.get(name, {}), Mapping):
                example = "{ soil = ['clay', 'sand'] }" if name == "levels" else "{ day = 2020-01-31 }"
                raise _plan_error(name, f"{name} = {settings[name]!r}; expected a table, as in {example}")
        if "levels" in settings:
            settings["levels"] = {
                column: _list_names("levels", names) for column, names in settings["levels"].items()
            }
        if "dates" in settings:
            settings["dates"] = {column: str(day) for column, day in settings["dates"].items()}
        return DataPlan(**settings)

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_columns()
        for column, names in self.levels.items():
            _check_unique("levels", f"levels of column {column!r}", names)
            for name in names:
                if name != name.strip() or name in MISSING_WORDS:
                    raise _plan_error(
                        "levels",
                        f"level {name!r} of column {column!r} reads as another text or as a missing value; "
                        "use a text without spaces at its ends",
                    )
            if not 0 < len(names) <= MAX_LEVELS:
                raise _plan_error(
                    "levels", f"column {column!r} has {len(names)} levels; expected 1 to {MAX_LEVELS:,}"
                )
        for column, day in self.dates.items():
            _parse_day(column, day)
        for name in find_repeated(self.feature_names):
            raise _plan_error("features", f"two features have the name {name!r}; rename a column")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `of` builds an equal plan."""
        return {
            "label": self.label,
            "features": list(self.features),
            "task": self.task,
            "labels": list(self.labels),
            "levels": {column: list(names) for column, names in self.levels.items()},
            "dates": dict(self.dates),
            "missing": self.missing,
            "scale": self.scale,
            "test_share": self.test_share,
        }

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; None if targets are real numbers."""
        return self.labels if self.task == "classification" else None

    @property
    def inputs(self) -> int:
        """The number of features, where a column of text has one per level."""
        return len(self.feature_names)

    @property
    def outputs(self) -> int:
        """The number of model outputs per row: one per class, or one target."""
        return len(self.labels) if self.task == "classification" else 1

    @cached_property
    def encoding(self) -> Encoding | None:
        """The encoding of all columns; None if all of them are numbers."""
        if not self.levels and not self.dates:
            return None
        return Encoding(tuple(self._encode_column(name) for name in self.features), fills=False)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in order, as in "soil=clay"."""
        return self.features if self.encoding is None else self.encoding.features

    @property
    def columns(self) -> tuple[ColumnPlan, ...]:
        """The columns of features, and how their cells are read."""
        if self.encoding is None:
            return tuple(ColumnPlan(name, "number") for name in self.features)
        return tuple(column.plan for column in self.encoding.columns)

    def _encode_column(self, name: str) -> ColumnEncoding:
        if name in self.levels:
            return ColumnEncoding(ColumnPlan(name, "levels"), self.levels[name])
        if name in self.dates:
            return ColumnEncoding(ColumnPlan(name, "date"), origin=_parse_day(name, self.dates[name]))
        return ColumnEncoding(ColumnPlan(name, "number"))

    def _check_choices(self) -> None:
        """Raise InputError for an invalid task, labels, rule of missing cells, scale or share."""
        for option, known in {"task": PlanTask, "missing": PlanMissingRule, "scale": Scaling}.items():
            if (value := getattr(self, option)) not in get_args(known):
                raise unknown_name_error(option, value, get_args(known), field=f"data.{option}")
        _check_unique("labels", "labels", self.labels)
        if self.task == "regression" and self.labels:
            raise _plan_error(
                "labels", "labels are set, but task = regression; remove labels, or set task = classification"
            )
        if self.task == "classification" and len(self.labels) < 2:
            raise _plan_error(
                "labels", f"task = classification with {len(self.labels)} labels; list at least two classes"
            )
        share = check_number("test_share", self.test_share, zero=True, scope="data", field="data.test_share")
        if share >= 1:
            raise _plan_error("test_share", f"test_share = {share}; expected a number in [0, 1)")

    def _check_columns(self) -> None:
        """Raise InputError unless label and features are different columns, and levels and dates features."""
        if not isinstance(self.label, str) or not self.label:
            raise _plan_error("label", f"label = {self.label!r}; expected the name of a column")
        if not self.features:
            raise _plan_error("features", "features is empty; name at least one column")
        _check_unique("features", "features", self.features)
        if self.label in self.features:
            raise _plan_error("features", f"column {self.label!r} is the label and a feature; use it for one")
        for option in ("levels", "dates"):
            for column in getattr(self, option):
                if column not in self.features:
                    raise unknown_name_error(
                        f"feature in {option}", column, self.features, field=f"data.{option}"
                    )
        for column in self.dates:
            if column in self.levels:
                raise _plan_error("dates", f"column {column!r} has levels and dates; use one of them")


def _parse_day(column: str, text: str) -> float:
    """Return the days since 1970 of a date that is written as 2020-01-31."""
    try:
        return float((datetime.date.fromisoformat(text) - FIRST_DAY).days)
    except (TypeError, ValueError):
        raise _plan_error(
            "dates", f"column {column!r} counts days from {text!r}; expected a date such as 2020-01-31"
        ) from None


def _list_names(option: str, names: Any) -> tuple[str, ...]:
    """Return names as text; whole numbers and booleans are names too."""
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise _plan_error(option, f"{option} = {names!r}; expected a list of names")
    for name in names:
        if not isinstance(name, str | int):
            raise _plan_error(option, f"{option} has {name!r}; expected a text, a whole number or a boolean")
    return tuple(str(name) for name in names)


def _check_unique(option: str, what: str, names: Sequence[str]) -> None:
    """Raise InputError if a name is empty or appears twice."""
    if any(not isinstance(name, str) or not name for name in names):
        raise _plan_error(option, f"{what}: a name is empty or no text; write every name")
    for name in find_repeated(names):
        raise _plan_error(option, f"{what}: {name!r} appears twice; name it once")


def _plan_error(option: str, message: str) -> InputError:
    return InputError(message, field=f"data.{option}", scope="data")
