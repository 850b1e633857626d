"""The metrics that test rows are scored with: their names, labels and directions."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedlap.errors import InputError, unknown_name_error
from fedlap.training.scores import Score


@dataclass(frozen=True)
class Metric:
    """A metric of test rows; a Score has its four statistics: name, name_mean, name_worst, name_std."""

    name: str
    label: str  # as in a heading, without the unit
    higher_is_better: bool
    is_percent: bool  # the value is a share, shown in %

    @property
    def factor(self) -> float:
        """Multiplies a value before it is shown: 100 for a share."""
        return 100.0 if self.is_percent else 1.0

    @property
    def sign(self) -> int:
        """1 if higher values are better, −1 if lower ones are."""
        return 1 if self.higher_is_better else -1

    @property
    def unit(self) -> str:
        """The unit as a suffix of a label."""
        return " %" if self.is_percent else ""

    @property
    def digits(self) -> int:
        """Decimals that are shown."""
        return 2 if self.is_percent else 4

    def format(self, value: float) -> str:
        """Format a value with its unit."""
        return f"{self.factor * value:.2f} %" if self.is_percent else f"{value:.4g}"

    def format_difference(self, value: float) -> str:
        """Format a difference of two values with its sign, without a unit."""
        return f"{self.factor * value:+z.{self.digits}f}"

    @property
    def direction(self) -> str:
        """A suffix of a title: lower is better, where this holds."""
        return "" if self.higher_is_better else " (lower is better)"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", higher_is_better=True, is_percent=True),
        Metric("loss", "loss", higher_is_better=False, is_percent=False),
        Metric("rmse", "RMSE", higher_is_better=False, is_percent=False),
        Metric("mae", "MAE", higher_is_better=False, is_percent=False),
        Metric("r2", "R²", higher_is_better=True, is_percent=False),
    )
}


def check_metric(name: str | None, is_classification: bool) -> None:
    """Raise InputError unless the metric is known and applies to the task, before anything is trained."""
    if name is None:
        return
    if name not in METRICS:
        raise unknown_name_error("metric", name, METRICS, field="metric")
    valid = ("accuracy", "loss") if is_classification else ("loss", "rmse", "mae", "r2")
    if name not in valid:
        task = "classes" if is_classification else "real targets"
        expected = ", ".join(valid)
        raise InputError(f"metric = {name} does not apply to {task}; use {expected}", field="metric")


def choose_metric(scores: Iterable[Score], name: str | None = None) -> Metric:
    """Return the metric of this name, by default accuracy for classes and RMSE for real targets.

    Raise InputError unless every score has the metric. Scores of older versions have no RMSE, so that their
    default is the loss. Scores without test rows have no metric at all, and any name is accepted for them.
    """
    known = [score for score in scores if score.loss is not None]
    if name is not None and name not in METRICS:
        raise unknown_name_error("metric", name, METRICS, field="metric")
    valid = [metric for metric in METRICS.values() if all(getattr(s, metric.name) is not None for s in known)]
    if name is None:
        ranked = [METRICS[default] for default in ("accuracy", "rmse", "loss")]
        return next(metric for metric in ranked if metric in valid)
    if METRICS[name] not in valid:
        names = ", ".join(metric.name for metric in valid)
        raise InputError(f"metric = {name}: these runs do not have it; use {names}", field="metric")
    return METRICS[name]
