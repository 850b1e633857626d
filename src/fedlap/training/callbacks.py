"""Callbacks of a run: they see its scores and rounds, and can stop it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import get_args

from fedlap.errors import InputError, check_integer, check_number, unknown_name_error
from fedlap.training.metrics import METRICS
from fedlap.training.recorder import RoundEnd
from fedlap.training.schedule import Schedule
from fedlap.training.scores import TRAINING_FIELDS, Score


class Callback:
    """An observer of a run. Derive a class from it and define some of its methods.

    A method that returns True stops the run after the round; `end.stop()` does so, too.
    """

    def on_start(self, scores: Sequence[Score]) -> bool | None:
        """Begin a run; `scores` are those of the rounds that a resumed run has done."""

    def on_score(self, score: Score) -> bool | None:
        """Use a new score."""

    def on_round(self, end: RoundEnd) -> bool | None:
        """Use the end of a round: `end.round` is its number."""


@dataclass(eq=False)
class EarlyStopping(Callback):
    """Stop a run whose score has not improved for some time.

    metric: a field of `Score`. Accuracies and R² should rise, everything else should fall.
    patience: number of scores in a row without an improvement that stop the run. With `evaluate_every=5`,
        a patience of 10 is 50 rounds.
    min_delta: a smaller change does not count as an improvement.

    Most fields of a score come from test rows, and a run that test rows have stopped is no longer judged
    fairly by them. Use "train_loss" or "objective" with `score_training="always"`, or pass
    `federation.fold(5, 0)`, whose test rows are taken from the training rows.
    """

    metric: str = "loss"
    patience: int = 10
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        names = [field.name for field in fields(Score) if float in (field.type, *get_args(field.type))]
        if self.metric not in names:
            raise unknown_name_error("metric", self.metric, names, field="metric")
        check_integer("patience", self.patience, 1)
        check_number("min_delta", self.min_delta, zero=True)
        self.on_start(())

    def check_schedule(self, schedule: Schedule) -> None:
        """Raise InputError if the metric needs training rows that are not scored in every round."""
        if self.metric in TRAINING_FIELDS and schedule.score_training != "always":
            raise InputError(
                f"EarlyStopping: {self.metric} comes from training rows, and score_training = "
                f"{schedule.score_training!r} does not score them in every round; set "
                "score_training='always', or use another metric",
                field="metric",
            )

    def on_start(self, scores: Sequence[Score]) -> bool | None:
        """Forget an earlier run, and count the scores of this one so far."""
        self._best, self._waited = math.inf, 0
        should_stop: bool | None = False
        for score in scores:
            should_stop = self.on_score(score)
        return should_stop

    def on_score(self, score: Score) -> bool | None:
        """Return True if none of the last `patience` scores was an improvement."""
        value = getattr(score, self.metric)
        if value is None:
            raise InputError(
                f"EarlyStopping: {self.metric} has no value in these scores; use another metric, such as "
                "'train_loss' with score_training='always'",
                field="metric",
            )
        cost = -value if _should_rise(self.metric) else value
        if cost < self._best - self.min_delta:
            self._best, self._waited = cost, 0
        else:
            self._waited += 1
        return self._waited >= self.patience


def _should_rise(metric: str) -> bool:
    """Return True if larger values of a field are better; deviations over clients should fall."""
    base, _, statistic = metric.partition("_")
    return base in METRICS and METRICS[base].higher_is_better and statistic != "std"
