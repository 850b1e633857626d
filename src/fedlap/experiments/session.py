"""Runs that are kept while they are trained, and go on from where they were stopped."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlap.errors import DivergedError, InputError
from fedlap.experiments.checkpoints import Checkpoint, Owner
from fedlap.experiments.prepare import Prepared, stacks, train_stack
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.score_log import ScoreLog
from fedlap.storage.locks import lock_folders, raise_if_locked
from fedlap.tracking import Tracker
from fedlap.training.loop import RoundEnd
from fedlap.training.result import Progress, Result
from fedlap.training.scores import Score

Outcome = list[Score] | DivergedError  # a run's scores, or why it has none
SHARE = 0.02  # of the time, that checkpoints may take where nothing else is asked for
MOST_OPEN = 32  # runs of a stack whose scores are written as they are made; more wait for the next checkpoint


class StoppedError(Exception):
    """Training was asked to stop. Where runs are is saved; the same command goes on."""


@dataclass(frozen=True)
class Interval:
    """How often runs are saved: after so many rounds, or so many seconds, within a share of the time."""

    rounds: int | None = None
    seconds: float = 30.0


def _nothing(*_: Any) -> None:
    """For those who do not watch."""


@dataclass(frozen=True)
class Watch:
    """What is done while runs are trained: how often they are saved, when to stop, and whom to tell."""

    interval: Interval = Interval()
    stopping: Callable[[], bool] = lambda: False
    on_score: Callable[[int, Score], None] = _nothing
    on_round: Callable[[Sequence[int], int], None] = _nothing
    remark: Callable[[str], None] = _nothing


@dataclass(frozen=True, eq=False)
class ResumePlan:
    """Runs with their folders: those that are there already, and those that are left, from where they are."""

    runs: list[RunFolder]
    ready: list[Prepared]
    done: dict[int, Outcome]
    remarks: list[str]
    again: bool
    read: list[Any]  # fingerprint of each run from before the plan was made

    @staticmethod
    def of(out: Path, ready: Sequence[Prepared], again: bool = False) -> "ResumePlan":
        """What is to be done; `again` repeats everything."""
        runs = [RunFolder.of(out, each.experiment) for each in ready]
        read = [run.fingerprint() for run in runs]
        done: dict[int, Outcome] = {}
        found: dict[int, list[Checkpoint]] = {}
        remarks: list[str] = []
        for place, (run, each) in enumerate(zip(runs, ready, strict=True)):
            state = "new" if again else run.state(each.experiment.rounds)
            if state == "diverged":
                done[place] = run.failure()
            elif state != "new":
                found[place], damaged = _checkpoints(run)
                remarks += damaged
        for place in _whole(found, [each.experiment.rounds for each in ready]):
            done[place] = _shown(runs[place], ready[place].experiment.rounds, found.pop(place)[0].round)
        begun = list(ready)
        for place, at in _resumed(found, [each.experiment.digest for each in ready], remarks).items():
            trial = replace(ready[place].trial, progress=runs[place].progress(at))
            begun[place] = replace(ready[place], trial=trial)
            remarks += runs[place].changes(ready[place].experiment)
        return ResumePlan(runs, begun, done, list(dict.fromkeys(remarks)), again, read)

    @property
    def left(self) -> list[int]:
        """The places of runs that are to be trained."""
        return [place for place in range(len(self.runs)) if place not in self.done]

    def stacks(self) -> list[list[int]]:
        """Those that are trained together."""
        left = self.left
        return [[left[place] for place in some] for some in stacks([self.ready[p] for p in left])]

    def trained(
        self, together: Sequence[Sequence[int]], watch: Watch, trackers: Mapping[int, Tracker] | None = None
    ) -> Iterator[tuple[int, Outcome]]:
        """Train what is left, stack after stack, and keep it; trackers are told of their runs.

        What another process has trained since the plan was made is used, and never discarded.
        """
        for places in together:
            with lock_folders([self.runs[place].folder for place in places]):
                current, stacks = self._verified(places, watch)
                made = {place: current.done[place] for place in places if place in current.done}
                for some in stacks:
                    keeper = current._train(some, watch, trackers or {}, made)
                    if keeper.stopped:
                        break
            yield from made.items()
            last = places is together[-1] and len(made) == len(places)
            if stacks and keeper.stopped and (keeper.unfinished or not last):
                raise StoppedError(f"stopped after round {keeper.stopped}, and saved")

    def _verified(self, places: Sequence[int], watch: Watch) -> tuple["ResumePlan", list[list[int]]]:
        """The plan and the stacks for runs that are locked, read again if another process trained one."""
        changed = [place for place in places if self.runs[place].fingerprint() != self.read[place]]
        if self.again or not changed:
            return self, [list(places)]
        asked = [self.ready[place] for place in places]
        asked = [replace(each, trial=replace(each.trial, progress=None)) for each in asked]
        now = ResumePlan.of(self.runs[places[0]].folder.parent, asked)
        what = f"{len(changed)} of {len(places)} runs were" if len(places) > 1 else "this run was"
        watch.remark(f"{what} trained by another process in the meantime; those rounds are used")
        for remark in now.remarks:
            watch.remark(remark)
        ready = dict(enumerate(self.ready)) | dict(zip(places, now.ready, strict=True))
        done = {places[at]: outcome for at, outcome in now.done.items()}
        current = replace(self, ready=list(ready.values()), done=done)
        return current, [[places[at] for at in some] for some in now.stacks()]

    def _train(
        self,
        places: Sequence[int],
        watch: Watch,
        trackers: Mapping[int, Tracker],
        made: dict[int, Outcome],
    ) -> "RunRecorder":
        """Train one stack of runs that are locked, and add what came out."""
        ready = [self.ready[place] for place in places]
        told = [trackers.get(place) for place in places]
        keeper = RunRecorder(places, [self.runs[place] for place in places], watch, told)
        with ExitStack() as held:
            keeper.open(ready, held)
            results = train_stack(ready, keeper.on_score, keeper.on_round)
            keeper.close(results)
        for place, each in zip(places, results, strict=True):
            made[place] = each if isinstance(each, DivergedError) else each.scores
        return keeper


@dataclass(eq=False)
class RunRecorder:
    """Writes down what runs of one stack do, and tells those who watch."""

    places: Sequence[int]
    runs: list[RunFolder]
    watch: Watch
    trackers: list[Tracker | None]
    stopped: int = 0  # the round after which, if it was asked for
    _owners: list[Owner] = field(default_factory=list)
    _logs: list[ScoreLog] = field(default_factory=list)
    _rounds: int = 0
    _last: tuple[int, float] = (0, 0.0)  # round and time of the last save
    _cost: float = 0.0  # seconds that it took

    @property
    def unfinished(self) -> bool:
        """Whether it was stopped before the last round."""
        return 0 < self.stopped < self._rounds

    def open(self, ready: Sequence[Prepared], held: ExitStack) -> None:
        """Begin anew or cut back to where training goes on; the caller holds the locks of the folders."""
        stack = tuple(each.experiment.digest for each in ready)
        self._owners = [Owner(digest, stack) for digest in stack]
        for run, each, tracker in zip(self.runs, ready, self.trackers, strict=True):
            progress, experiment = each.trial.progress, each.experiment
            scores: list[Score] = []
            if progress is None:
                run.begin(experiment)
            else:
                run.describe(experiment)
                scored = experiment.schedule.scores
                scores = [score for score in progress.scores if scored(score.round)]
                run.cut(progress.round, scores)
            at_once = len(ready) <= MOST_OPEN
            self._logs.append(held.enter_context(ScoreLog.of(run.folder, scores, at_once)))
            if tracker is not None:
                tracker.begin(run.name, experiment.described(), progress is not None)
        self._rounds = ready[0].experiment.rounds
        self._last = ready[0].trial.done, time.monotonic()

    def on_score(self, place: int, score: Score) -> None:
        """A line of rounds.jsonl."""
        self._logs[place].append(score)
        if (tracker := self.trackers[place]) is not None:
            tracker.score(score)
        self.watch.on_score(self.places[place], score)

    def on_round(self, moment: RoundEnd) -> None:
        """Save where it is time to."""
        self.watch.on_round(self.places, moment.round)
        if self.watch.stopping():
            self.stopped = moment.round
            moment.stop()
        elif moment.round < self._rounds and self._due(moment.round):  # the last is saved after the models
            self._save(moment.progress())

    def close(self, made: Sequence[Result | DivergedError]) -> None:
        """Keep what came out; a run whose last round is saved has its models."""
        for run, log, tracker, each in zip(self.runs, self._logs, self.trackers, made, strict=True):
            outcome = "stopped" if self.unfinished else "done"
            if isinstance(each, DivergedError):
                outcome = f"diverged: {each}"
                self._sync(log)
                run.fail(each)
            else:
                run.save_models(each)
            if tracker is not None:
                tracker.end(outcome)
        self._save([None if isinstance(each, DivergedError) else each.progress for each in made])

    def _due(self, done: int) -> bool:
        interval = self.watch.interval
        if interval.rounds is not None:
            return done - self._last[0] >= interval.rounds
        return time.monotonic() - self._last[1] >= max(interval.seconds, self._cost / SHARE)

    def _save(self, progress: Sequence[Progress | None]) -> None:
        began = time.monotonic()
        for run, log, owner, at in zip(self.runs, self._logs, self._owners, progress, strict=True):
            if at is not None:
                self._sync(log)
                run.save(at, owner)
                self._last = at.round, time.monotonic()
        self._cost = time.monotonic() - began

    def _sync(self, log: ScoreLog) -> None:
        """Bring scores to the disk, and say so if they had to be written again."""
        if log.sync():
            self.watch.remark(
                f"{log.path} was removed or changed by another program during training; it is restored"
            )


def _checkpoints(run: RunFolder) -> tuple[list[Checkpoint], list[str]]:
    """Valid checkpoints of a run, newest first, and why others were rejected."""
    try:
        found, damaged = run.checkpoints()
        if not found and run.saved:
            raise InputError(f"{damaged[0]}, and there is no other; repeat the run with --again")
    except InputError:
        raise_if_locked(run.folder)  # then its files change while they are read
        raise
    return found, damaged


def _shown(run: RunFolder, rounds: int, reached: int) -> list[Score]:
    """The scores of a run that is done, up to the round that is asked for."""
    scores = [score for score in run.scores() if score.round <= rounds]
    if not scores or scores[-1].round != rounds:
        raise InputError(
            f"{run.name} is at round {reached} already, and not scored at round {rounds}; ask for as many "
            "rounds or more, or repeat it with --again"
        )
    return scores


def _whole(found: dict[int, list[Checkpoint]], rounds: Sequence[int]) -> list[int]:
    """Those that are done, and whose stack is: one of a stack that was cut short goes on with the others."""
    last = {place: some[0] for place, some in found.items() if some}
    done = {place for place, at in last.items() if at.round >= rounds[place]}
    short = {at.owner.stack for place, at in last.items() if place not in done}
    return [place for place in done if last[place].owner.stack not in short]


def _resumed(
    found: dict[int, list[Checkpoint]], digests: Sequence[str], remarks: list[str]
) -> dict[int, Checkpoint]:
    """Where each run goes on: all of a stack at one round, so that they go on as they were, together."""
    begun: dict[int, Checkpoint] = {}
    for stack in sorted({some[0].owner.stack for some in found.values() if some}):
        own = [place for place in found if digests[place] in stack]
        names = {digests[place] for place in own}
        # A run that was trained without the others since does not take them back to its own rounds.
        own = [place for place in own if not found[place] or names.issubset(found[place][0].owner.stack)]
        common = set.intersection(*({at.round for at in found[place]} for place in own))
        first = any(not found[place] for place in own) and all(len(found[place]) < 2 for place in own)
        if common:
            begun |= {p: next(at for at in found[p] if at.round == max(common)) for p in own}
        elif not first:  # else they were killed while the first checkpoint was written
            begun |= {place: found[place][0] for place in own if found[place]}
        if len(own) < len(stack) or not (common or first):
            remarks.append(
                f"{len(own)} of {len(stack)} runs that were trained together go on without the others; in "
                "their last digits they may differ from what all would have given"
            )
    return begun
