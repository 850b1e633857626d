"""Training sessions: runs are stored while they are trained, and interrupted runs resume."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlap.errors import DivergedError, InputError, StoppedError
from fedlap.experiments.checkpoints import Checkpoint, Owner
from fedlap.experiments.prepare import Prepared, pack_prepared, train_stack
from fedlap.experiments.run_folder import RunDescription, RunFolder
from fedlap.experiments.score_log import ScoreLog
from fedlap.storage.locks import lock_folders, raise_if_locked
from fedlap.tracking import Tracker
from fedlap.training.jobs import Job
from fedlap.training.recorder import RoundEnd, select_scores
from fedlap.training.result import Progress, Result
from fedlap.training.scores import Score

_LOG = logging.getLogger("fedlap")
RunOutcome = list[Score] | DivergedError  # the scores of a run, or the error that ended it
CHECKPOINT_TIME_SHARE = 0.02  # of the training time, for checkpoints without a fixed number of rounds
# Larger stacks write their scores only with checkpoints, so that few files are open.
MAX_OPEN_LOGS = 32


@dataclass(frozen=True)
class CheckpointInterval:
    """Interval of checkpoints: every N rounds, or else every N seconds within a share of the time."""

    rounds: int | None = None
    seconds: float = 30.0


def _do_nothing(*_: Any) -> None:
    """Ignore the call; the default callback."""


@dataclass(frozen=True)
class ProgressCallbacks:
    """Checkpoint interval, stop condition and callbacks of a training session."""

    interval: CheckpointInterval = CheckpointInterval()
    should_stop: Callable[[], bool] = lambda: False
    on_score: Callable[[int, Score], None] = _do_nothing
    on_round: Callable[[Sequence[int], int], None] = _do_nothing
    on_remark: Callable[[str], None] = _do_nothing


@dataclass(frozen=True, eq=False)
class ResumePlan:
    """Runs with their folders: outcomes of finished runs, and jobs of the others from their checkpoints."""

    runs: list[RunFolder]
    prepared: list[Prepared]
    outcomes: dict[int, RunOutcome]
    remarks: list[str]
    again: bool
    fingerprints: list[Any]  # one per run, computed before the plan was built

    @staticmethod
    def of(out: Path, prepared: Sequence[Prepared], again: bool = False) -> "ResumePlan":
        """Read all folders and build the plan; `again` trains every run from the beginning."""
        runs = [RunFolder.of(out, item.experiment) for item in prepared]
        fingerprints = [run.compute_fingerprint() for run in runs]
        outcomes: dict[int, RunOutcome] = {}
        found: dict[int, list[Checkpoint]] = {}
        remarks: list[str] = []
        for index, (run, item) in enumerate(zip(runs, prepared, strict=True)):
            status = "new" if again else run.get_status(item.experiment.rounds)
            if status == "diverged":
                outcomes[index] = run.read_failure()
            elif status != "new":
                found[index], rejected = _read_unlocked_checkpoints(run)
                remarks += rejected
        for index in _find_finished(found, [item.experiment.rounds for item in prepared]):
            rounds, reached = prepared[index].experiment.rounds, found.pop(index)[0].round
            outcomes[index] = _read_scores(runs[index], rounds, reached)
        resumed = list(prepared)
        digests = [item.experiment.digest for item in prepared]
        for index, checkpoint in _choose_checkpoints(found, digests, remarks).items():
            job = replace(prepared[index].job, progress=runs[index].load_progress(checkpoint))
            resumed[index] = replace(prepared[index], job=job)
            remarks += runs[index].find_environment_changes(prepared[index].experiment)
        return ResumePlan(runs, resumed, outcomes, list(dict.fromkeys(remarks)), again, fingerprints)

    @property
    def remaining(self) -> list[int]:
        """Indices of the runs to train."""
        return [index for index in range(len(self.runs)) if index not in self.outcomes]

    def pack(self) -> list[list[int]]:
        """Return the remaining runs as stacks, which are lists of indices."""
        remaining = self.remaining
        stacks = pack_prepared([self.prepared[index] for index in remaining])
        return [[remaining[index] for index in stack] for stack in stacks]

    def train(
        self,
        stacks: Sequence[Sequence[int]],
        callbacks: ProgressCallbacks,
        trackers: Mapping[int, Tracker] | None = None,
    ) -> Iterator[tuple[int, RunOutcome]]:
        """Train and store the runs, stack after stack; each tracker logs its run.

        Rounds that another process has trained since the plan was built are used and never discarded.
        """
        for indices in stacks:
            with lock_folders([self.runs[index].folder for index in indices]):
                current, parts = self._refresh(indices, callbacks)
                outcomes = {index: current.outcomes[index] for index in indices if index in current.outcomes}
                for part in parts:
                    recorder = current._train_stack(part, callbacks, trackers or {}, outcomes)
                    if recorder.stopped:
                        break
            yield from outcomes.items()
            is_last = indices is stacks[-1] and len(outcomes) == len(indices)
            if parts and recorder.stopped and (recorder.is_unfinished or not is_last):
                raise StoppedError(f"stopped after round {recorder.stopped}, checkpoint saved")

    def _refresh(
        self, indices: Sequence[int], callbacks: ProgressCallbacks
    ) -> tuple["ResumePlan", list[list[int]]]:
        """Return the plan and the stacks of locked runs, read again if another process trained one."""
        changed = [i for i in indices if self.runs[i].compute_fingerprint() != self.fingerprints[i]]
        if self.again or not changed:
            return self, [list(indices)]
        unstarted = [self.prepared[index] for index in indices]
        unstarted = [replace(item, job=replace(item.job, progress=None)) for item in unstarted]
        fresh = ResumePlan.of(self.runs[indices[0]].folder.parent, unstarted)
        subject = f"{len(changed)} of {len(indices)} runs were" if len(indices) > 1 else "this run was"
        callbacks.on_remark(f"{subject} trained by another process in the meantime; the new rounds are used")
        for remark in fresh.remarks:
            callbacks.on_remark(remark)
        prepared = dict(enumerate(self.prepared)) | dict(zip(indices, fresh.prepared, strict=True))
        outcomes = {indices[position]: outcome for position, outcome in fresh.outcomes.items()}
        current = replace(self, prepared=list(prepared.values()), outcomes=outcomes)
        return current, [[indices[position] for position in stack] for stack in fresh.pack()]

    def _train_stack(
        self,
        indices: Sequence[int],
        callbacks: ProgressCallbacks,
        trackers: Mapping[int, Tracker],
        outcomes: dict[int, RunOutcome],
    ) -> "RunRecorder":
        """Train one stack of locked runs, and add their outcomes."""
        prepared = [self.prepared[index] for index in indices]
        runs = [self.runs[index] for index in indices]
        recorder = RunRecorder(indices, runs, callbacks, [trackers.get(index) for index in indices])
        with ExitStack() as open_logs:
            recorder.open([item.experiment for item in prepared], [item.job for item in prepared], open_logs)
            results = train_stack(prepared, recorder.on_score, recorder.on_round)
            recorder.close(results)
        for index, result in zip(indices, results, strict=True):
            outcomes[index] = result if isinstance(result, DivergedError) else result.scores
        return recorder


@dataclass(eq=False)
class RunRecorder:
    """Stores scores, checkpoints and models of one stack, and calls trackers and callbacks."""

    indices: Sequence[int]
    runs: list[RunFolder]
    callbacks: ProgressCallbacks
    trackers: list[Tracker | None]
    stopped: int = 0  # the last round, if a stop was requested
    _owners: list[Owner] = field(default_factory=list)
    _logs: list[ScoreLog] = field(default_factory=list)
    _rounds: int = 0
    _last: tuple[int, float] = (0, 0.0)  # round and time of the last checkpoint
    _cost: float = 0.0  # seconds of the last checkpoint

    @property
    def is_unfinished(self) -> bool:
        """True if training was stopped before the last round."""
        return 0 < self.stopped < self._rounds

    def open(self, descriptions: Sequence[RunDescription], jobs: Sequence[Job], open_logs: ExitStack) -> None:
        """Create new folders, or truncate existing ones to the resumed round; the caller holds locks."""
        stack = tuple(description.digest for description in descriptions)
        self._owners = [Owner(digest, stack) for digest in stack]
        for run, description, job, tracker in zip(self.runs, descriptions, jobs, self.trackers, strict=True):
            progress, scores = job.progress, list[Score]()
            if progress is None:
                run.create(description)
            else:
                run.write_description(description)
                scores = select_scores(progress.scores, description.schedule)
                run.truncate(progress.round, scores)
            at_once = len(jobs) <= MAX_OPEN_LOGS
            self._logs.append(open_logs.enter_context(ScoreLog.of(run.folder, scores, at_once)))
            if tracker is not None:
                tracker.start_run(run.name, description.describe(), progress is not None)
        self._rounds = descriptions[0].rounds
        self._last = jobs[0].rounds_done, time.monotonic()

    def on_score(self, position: int, score: Score) -> None:
        """Store and report a score of the run at this position of the stack."""
        self._logs[position].append(score)
        if (tracker := self.trackers[position]) is not None:
            tracker.log_score(score)
        self.callbacks.on_score(self.indices[position], score)

    def on_round(self, round_end: RoundEnd) -> None:
        """Report the round, stop if requested, and write checkpoints if they are due."""
        self.callbacks.on_round(self.indices, round_end.round)
        if self.callbacks.should_stop():
            self.stopped = round_end.round
            round_end.stop()
        elif round_end.round < self._rounds and self._is_due(round_end.round):  # `close` saves the last round
            self._save(round_end.collect_progress())

    def close(self, results: Sequence[Result | DivergedError]) -> None:
        """Save models, then the last checkpoints: a run with its last checkpoint always has its models."""
        for run, log, tracker, result in zip(self.runs, self._logs, self.trackers, results, strict=True):
            outcome = "stopped" if self.is_unfinished else "done"
            if isinstance(result, DivergedError):
                outcome = f"diverged: {result}"
                self._sync(log)
                run.save_failure(result)
            else:
                run.save_models(result)
            if tracker is not None:
                tracker.end_run(outcome)
        self._save([None if isinstance(result, DivergedError) else result.progress for result in results])

    def _is_due(self, round: int) -> bool:
        interval = self.callbacks.interval
        if interval.rounds is not None:
            return round - self._last[0] >= interval.rounds
        return time.monotonic() - self._last[1] >= max(interval.seconds, self._cost / CHECKPOINT_TIME_SHARE)

    def _save(self, stack: Sequence[Progress | None]) -> None:
        began = time.monotonic()
        for run, log, owner, progress in zip(self.runs, self._logs, self._owners, stack, strict=True):
            if progress is not None:
                self._sync(log)
                run.save_checkpoint(progress, owner)
                _LOG.debug("%s: checkpoint of round %d", run.folder, progress.round)
                self._last = progress.round, time.monotonic()
        self._cost = time.monotonic() - began

    def _sync(self, log: ScoreLog) -> None:
        """Flush scores to disk, and report if the file had to be restored."""
        if log.sync():
            self.callbacks.on_remark(
                f"{log.path} was removed or changed by another program during training; it has been restored"
            )


def read_valid_checkpoints(
    run: RunFolder, description: RunDescription | None = None
) -> tuple[list[Checkpoint], list[str]]:
    """Return valid checkpoints of a run, newest first, and why the others were rejected.

    Raise InputError if all were rejected.
    """
    found, rejected = run.read_checkpoints(description)
    if not found and run.saved_rounds:
        raise InputError(f"{rejected[0]}, and no other checkpoint is valid; rerun with --again")
    return found, rejected


def _read_unlocked_checkpoints(run: RunFolder) -> tuple[list[Checkpoint], list[str]]:
    """Return the valid checkpoints of a run; raise InputError if another process is training it."""
    try:
        return read_valid_checkpoints(run)
    except InputError:
        raise_if_locked(run.folder)  # another process may be writing the files
        raise


def _read_scores(run: RunFolder, rounds: int, reached: int) -> list[Score]:
    """Return the scores of a finished run up to round `rounds`."""
    scores = [score for score in run.read_scores() if score.round <= rounds]
    if not scores or scores[-1].round != rounds:
        raise InputError(
            f"rounds = {rounds}, but {run.name} has finished {reached} rounds and has no score of round "
            f"{rounds}; set rounds to {reached} or more, or rerun with --again"
        )
    return scores


def _find_finished(found: dict[int, list[Checkpoint]], rounds: Sequence[int]) -> list[int]:
    """Return the finished runs of finished stacks; a finished run of an interrupted stack resumes with it."""
    last = {index: checkpoints[0] for index, checkpoints in found.items() if checkpoints}
    finished = {index for index, checkpoint in last.items() if checkpoint.round >= rounds[index]}
    interrupted = {checkpoint.owner.stack for index, checkpoint in last.items() if index not in finished}
    return [index for index in finished if last[index].owner.stack not in interrupted]


def _choose_checkpoints(
    found: dict[int, list[Checkpoint]], digests: Sequence[str], remarks: list[str]
) -> dict[int, Checkpoint]:
    """Choose the checkpoint of each run: all runs of a stack resume together, at the same round."""
    chosen: dict[int, Checkpoint] = {}
    for stack in sorted({checkpoints[0].owner.stack for checkpoints in found.values() if checkpoints}):
        members = [index for index in found if digests[index] in stack]
        names = {digests[index] for index in members}
        # A run that has since been trained without the others does not take them back to its rounds.
        members = [i for i in members if not found[i] or names.issubset(found[i][0].owner.stack)]
        common = set.intersection(*({checkpoint.round for checkpoint in found[i]} for i in members))
        # Then the runs were killed while they wrote their first checkpoints.
        is_first = any(not found[i] for i in members) and all(len(found[i]) < 2 for i in members)
        if common:
            chosen |= {i: next(c for c in found[i] if c.round == max(common)) for i in members}
        elif not is_first:
            chosen |= {i: found[i][0] for i in members if found[i]}
        if len(members) < len(stack) or not (common or is_first):
            remarks.append(
                f"{len(members)} of {len(stack)} runs that were trained together resume without the others; "
                "their last digits may differ from those of an unbroken run"
            )
    return chosen
