"""Scores told to tracking systems while training goes on.

Anything with the three methods of `Tracker` is one. Those in `TRACKERS` are made from a run's folder, need
the extra of their name, and touch nothing before they begin.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedlap.errors import unknown
from fedlap.tracking.mlflow import Mlflow
from fedlap.tracking.tensorboard import TensorBoard
from fedlap.tracking.wandb import WeightsAndBiases
from fedlap.training.scores import Score

LONGEST = 200  # characters of another system's message that are shown


@runtime_checkable
class Tracker(Protocol):
    """What is told of a run: that it begins, each score, that it ends."""

    def begin(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """A run of this name with these settings, which may be nested, begins or goes on."""

    def score(self, score: Score) -> None:
        """A round was scored; when training goes on from a checkpoint, rounds after it are scored again."""

    def end(self, outcome: str) -> None:
        """It is "done", "stopped", or "diverged: …", with the reason."""


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": Mlflow,
}


def tracker_for(names: Sequence[str], folder: Path, say: Callable[[str], None]) -> Tracker:
    """Those of these names for the run in this folder, each guarded, as one; of no names, a deaf one."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
    return Together([guarded(TRACKERS[name](folder), say) for name in dict.fromkeys(names)])


def guarded(tracker: Tracker, say: Callable[[str], None]) -> Tracker:
    """The same, but its failure does not end training: it is said, once, and the tracker is told no more."""
    return Guarded(tracker, say)


class Guarded:
    """A tracker until it fails."""

    def __init__(self, tracker: Tracker, say: Callable[[str], None]) -> None:
        self._tracker: Tracker | None = tracker
        self._say = say

    def begin(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Pass it on."""
        self._tell(lambda tracker: tracker.begin(name, settings, resumed))

    def score(self, score: Score) -> None:
        """Pass it on."""
        self._tell(lambda tracker: tracker.score(score))

    def end(self, outcome: str) -> None:
        """Pass it on."""
        self._tell(lambda tracker: tracker.end(outcome))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            what(self._tracker)
        except Exception as error:  # of any kind: it is another system's, and training is worth more
            name, self._tracker = type(self._tracker).__name__, None
            reason = " ".join(str(error).split()) or type(error).__name__
            short = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]} …"
            self._say(f"note: {name} failed and is told no more, training goes on ({short})")


class Together:
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def begin(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Tell all."""
        for tracker in self._trackers:
            tracker.begin(name, settings, resumed)

    def score(self, score: Score) -> None:
        """Tell all."""
        for tracker in self._trackers:
            tracker.score(score)

    def end(self, outcome: str) -> None:
        """Tell all."""
        for tracker in self._trackers:
            tracker.end(outcome)
