"""Logging of scores to tracking systems during training.

Any object with the three methods of `Tracker` is a tracker. Trackers in `TRACKERS` are built from a run's
folder, need the extra of their name, and write nothing before `start_run`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedlap.errors import unknown_name_error
from fedlap.tracking.mlflow import Mlflow
from fedlap.tracking.tensorboard import TensorBoard
from fedlap.tracking.wandb import WeightsAndBiases
from fedlap.training.scores import Score

LONGEST_REASON = 200  # characters of a tracker's error message that are printed


@runtime_checkable
class Tracker(Protocol):
    """A receiver of a run's start, scores and end."""

    def start_run(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Start or resume a run with this name and these settings, which may be nested."""

    def log_score(self, score: Score) -> None:
        """Log the score of a round; a resumed run scores the rounds after its checkpoint again."""

    def end_run(self, outcome: str) -> None:
        """End the run with the outcome "done", "stopped", or "diverged: …" and the reason."""


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": Mlflow,
}


def build_tracker(names: Sequence[str], folder: Path, warn: Callable[[str], None]) -> Tracker:
    """Build one tracker from all named trackers for the run in this folder; a no-op tracker without names.

    If one of them fails, `warn` gets one message and the others continue.
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown_name_error("tracker", name, TRACKERS)
    return TrackerGroup([SafeTracker(TRACKERS[name](folder), warn) for name in dict.fromkeys(names)])


class SafeTracker:
    """A tracker whose failure does not end training: after the first error it warns once and does nothing."""

    def __init__(self, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._tracker: Tracker | None = tracker
        self._warn = warn

    def start_run(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Start the run."""
        self._call(lambda tracker: tracker.start_run(name, settings, resumed))

    def log_score(self, score: Score) -> None:
        """Log the score."""
        self._call(lambda tracker: tracker.log_score(score))

    def end_run(self, outcome: str) -> None:
        """End the run."""
        self._call(lambda tracker: tracker.end_run(outcome))

    def _call(self, function: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            function(self._tracker)
        except Exception as error:  # any error of another system, since training matters more
            name, self._tracker = type(self._tracker).__name__, None
            reason = " ".join(str(error).split()) or type(error).__name__
            short = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"
            self._warn(f"note: {name} failed, training continues without it ({short})")


class TrackerGroup:
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def start_run(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Start the run in all trackers."""
        for tracker in self._trackers:
            tracker.start_run(name, settings, resumed)

    def log_score(self, score: Score) -> None:
        """Log the score to all trackers."""
        for tracker in self._trackers:
            tracker.log_score(score)

    def end_run(self, outcome: str) -> None:
        """End the run in all trackers."""
        for tracker in self._trackers:
            tracker.end_run(outcome)
