"""The record of training: rounds done, traffic, time and scores of each run, and the end of each round."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedlap.algorithms import State
from fedlap.errors import DivergedError
from fedlap.summaries import summarise_fields
from fedlap.training.engines import Engine, Tallies
from fedlap.training.jobs import Job, detect_divergence
from fedlap.training.result import Progress, RunOrigin
from fedlap.training.schedule import Schedule
from fedlap.training.scores import Score, compute_score
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import Traffic


@dataclass(eq=False)
class RoundEnd:
    """The end of a round: every run can be saved here to be resumed later, or all can be stopped."""

    round: int
    snapshot: Callable[[], list[Progress | None]]
    was_read: bool = False
    stop_requested: bool = False

    __repr__ = summarise_fields

    def collect_progress(self) -> list[Progress | None]:
        """Return the progress of each run, or None for a run that has diverged.

        Its tensors are those of the training, which later rounds change: store or copy them in the callback.
        """
        self.was_read = True
        return self.snapshot()

    def stop(self) -> None:
        """Stop all runs after this round."""
        self.stop_requested = True


@dataclass(eq=False)
class Recorder:
    """Scores, traffic and training time of runs, round by round.

    on_score: called with the index of a run and its new score. on_round: called at the end of each round.
    """

    jobs: Sequence[Job]
    origins: Sequence[RunOrigin]
    schedule: Schedule
    on_score: Callable[[int, Score], None] | None = None
    on_round: Callable[[RoundEnd], None] | None = None
    diverged: dict[int, DivergedError] = field(default_factory=dict)  # by run

    def __post_init__(self) -> None:
        earlier = [job.progress for job in self.jobs]
        self.round = self.jobs[0].rounds_done
        self.sent = [Traffic(*progress.sent) if progress else Traffic(0, 0) for progress in earlier]
        self.seconds = [progress.seconds if progress else 0.0 for progress in earlier]
        self.scores = [
            select_scores(progress.scores, self.schedule) if progress else [] for progress in earlier
        ]
        self.start_clock()

    def add_round(self, round: int, traffic: Sequence[Traffic]) -> None:
        """Add a round that was played."""
        self.round = round
        self.sent = [before.add(now) for before, now in zip(self.sent, traffic, strict=True)]

    def add_scores(self, engine: Engine, method: ManyRuns, server: Sequence[State]) -> None:
        """Score every run; scoring is not training time."""
        self.stop_clock(engine)
        training = self.schedule.is_training_scored(self.round)
        for run, tallies in enumerate(engine.score(method, server, training)):
            self._add_score(run, method, tallies)
        self.start_clock()

    def _add_score(self, run: int, method: ManyRuns, tallies: Tallies) -> None:
        """Add the score of a run; a run whose losses are not finite has diverged."""
        algorithm, federation = method.runs[run].algorithm, self.jobs[run].federation
        losses = [score.train_loss for score in self.scores[run] if score.train_loss is not None]
        least = min(losses, default=math.inf)
        if federation.target_scale is not None:  # the loss of predicting the mean, in the unit of training
            least = federation.outputs / 2
        problem = detect_divergence(
            tallies.train, tallies.is_finite, federation, self.round, algorithm, least
        )
        if problem is not None:
            self.diverged.setdefault(run, problem)
        if run in self.diverged:
            return
        scale = federation.target_scale
        train = None if tallies.train is None else tallies.train.restore_unit(scale)
        test = tallies.test.restore_unit(scale)
        sums = train, test, tallies.ridge, tallies.penalty, tallies.gap
        score = compute_score(self.round, *sums, self.sent[run], self.seconds[run])
        self.scores[run].append(score)
        if self.on_score is not None:
            self.on_score(run, score)

    def end_round(self, engine: Engine, server: Sequence[State]) -> bool:
        """End a round; return True if training was asked to stop, or if every run has diverged."""
        if len(self.diverged) == len(self.jobs):
            return True
        if self.on_round is None:
            return False
        end = RoundEnd(self.round, lambda: self.collect_progress(engine, server))
        self.on_round(end)
        if end.was_read:  # Saving a checkpoint is not training time.
            self.start_clock()
        return end.stop_requested

    def collect_progress(self, engine: Engine, server: Sequence[State]) -> list[Progress | None]:
        """Return the progress of each run, or None for a run that has diverged."""
        self.stop_clock(engine)
        self.start_clock()
        states = engine.gather_states(server)
        runs = zip(*states, self.sent, self.seconds, self.scores, self.origins, strict=True)
        return [
            None if run in self.diverged else Progress(self.round, *state) for run, state in enumerate(runs)
        ]

    def start_clock(self) -> None:
        """Start to measure training time; scoring and saving since the last `stop_clock` do not count."""
        self._clock_start = time.perf_counter()

    def stop_clock(self, engine: Engine) -> None:
        """Add the training time since `start_clock` to every run, a share of the stack's time each."""
        engine.wait()
        passed = (time.perf_counter() - self._clock_start) / len(self.seconds)
        self.seconds = [before + passed for before in self.seconds]


def select_scores(scores: Iterable[Score], schedule: Schedule) -> list[Score]:
    """Return the scores of an earlier run as an uninterrupted run with this schedule has them.

    The last round of a run is scored in any case, with its training rows. If more rounds follow, its score
    may be superfluous, and may have a superfluous part.
    """
    return [
        score if schedule.is_training_scored(score.round) else score.drop_training_part()
        for score in scores
        if schedule.is_scored(score.round)
    ]
