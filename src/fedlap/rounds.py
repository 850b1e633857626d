"""The loop: rounds of sending, local work and mixing."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import (
    Adapting,
    Algorithm,
    Certified,
    Penalised,
    Pooling,
    State,
)
from fedlap.engines import ENGINES, Clients, Engine
from fedlap.engines.replay import Replay
from fedlap.engines.state import moved, rows
from fedlap.engines.task import StackTask
from fedlap.errors import DivergedError, InputError
from fedlap.federation import Federation
from fedlap.members import Member
from fedlap.models import Architecture, Model
from fedlap.result import Result
from fedlap.schedule import (
    DtypeName,
    EngineName,
    KeepName,
    Precision,
    Schedule,
    precisely,
    sample_size,
    start_rows,
)
from fedlap.scores import Score, score
from fedlap.stack import Kept, Sent, Stack
from fedlap.trials import Trial, diverged, kind, suited, work_of
from fedlap.work import BatchSize, Work

WORTH_RECORDING = 4  # rounds; fewer are over before a recording pays


def fit(
    algorithm: Algorithm,
    federation: Federation,
    model: Architecture,
    *,
    rounds: int = 100,
    batch: BatchSize = 20,
    sample: float = 1.0,
    seed: int = 0,
    start: Any = None,
    dtype: DtypeName = "float32",
    device: str = "cpu",
    engine: EngineName = "stacked",
    precision: Precision = "float32",
    keep: KeepName = "auto",
    evaluate_every: int = 1,
    on_score: Callable[[Score], None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Train every client's model.

    rounds: how many.
    batch: rows of a mini-batch, or "all" for full gradients.
    sample: share of clients that work in a round; S = max(1, ⌊sample·N + ½⌋), without replacement.
    seed: of starts, sampling and batches; the same seed gives the same numbers.
    start: a vector for all clients or a stack with one row each, instead of the model's own start.
    dtype, device: how precisely and where to compute.
    engine: "stacked", all clients at once, or "one_by_one", the plain reference.
    precision: of products of float32 matrices; "tf32" or "bf16" are faster where the device has them.
    keep: where data and models stay between rounds, "device" or "host", whence those of the sampled clients
        are brought; "auto" is the device as long as they fit.
    evaluate_every: rounds between scores; the last round is always scored, and 0 scores no other.
    on_score, on_round: called with each score as it is made, and with the number of each round done.
    """
    schedule = Schedule(rounds, batch, sample, dtype, device, engine, precision, keep, evaluate_every)
    made = fit_all(
        [Trial(algorithm, federation, model, seed, start)],
        schedule,
        None if on_score is None else lambda _, score: on_score(score),
        on_round,
    )[0]
    if isinstance(made, DivergedError):
        raise made
    return made


@torch.no_grad()
def fit_all(
    trials: Sequence[Trial],
    schedule: Schedule,
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> list[Result | DivergedError]:
    """Train several runs as one stack: the same method and model, seeds and real-valued settings of any kind.

    A run that diverges is answered by its error; the others go on. `on_score` is told the run's place too.
    A score's seconds are the run's share of the stack's.
    """
    with precisely(schedule.precision), _current(schedule.placed()):
        return Runs.of(trials, schedule).trained(on_score, on_round)


@dataclass(frozen=True, eq=False)
class Runs:
    """Trials made ready: the stack that trains them, and the engine that scores all their clients."""

    trials: list[Trial]
    schedule: Schedule
    model: Model
    stack: Stack
    scorer: Engine
    kept: list[Kept]

    @staticmethod
    def of(trials: Sequence[Trial], schedule: Schedule) -> "Runs":
        """Check everything, bring data to where they are used, and begin."""
        if len(trials) > 1 and len({kind(trial) for trial in trials}) > 1:
            raise InputError(
                "fit_all: these runs do not go together; one stack takes one steady method and model, whose "
                "runs differ in seeds, data, graphs and real-valued settings alone"
            )
        device, dtype = schedule.placed(), schedule.real
        ready = [suited(trial.algorithm, trial.federation, trial.model) for trial in trials]
        model = ready[0][1]
        home = schedule.home(device, [trial.federation for trial in trials], model)
        as_bytes = schedule.as_bytes(home, [trial.federation for trial in trials])
        distinct = {id(trial.federation): trial.federation for trial in trials}
        residents = {key: each.resident(home, dtype, as_bytes=as_bytes) for key, each in distinct.items()}
        homes = [residents[id(trial.federation)] for trial in trials]
        members, begin = [], 0
        for trial, federation, (algorithm, _) in zip(trials, homes, ready, strict=True):
            chosen = sample_size(algorithm, schedule.sample, len(federation.clients))
            seen = algorithm.view(federation) if isinstance(algorithm, Pooling) else federation
            working = chosen if seen is federation else len(seen.clients)
            members.append(Member(algorithm, seen, trial.seed, begin, working))
            begin += len(seen.clients)
        work = work_of(members[0].algorithm, chosen)
        make, seeds = ENGINES[schedule.engine], [trial.seed for trial in trials]

        def engine(federations: list[Federation]) -> Engine:
            return make(Clients.of(federations, seeds, model, schedule.batch, device, dtype))

        trainees = [member.trainees for member in members]
        trainer = engine(trainees)
        scorer = trainer if all(a is b for a, b in zip(trainees, homes, strict=True)) else engine(homes)
        kept = [
            member.algorithm.begin(start_rows(t.start, model, len(t.federation.clients), t.seed, home, dtype))
            for t, member in zip(trials, members, strict=True)
        ]
        return Runs(list(trials), schedule, model, Stack(members, trainer, work, home), scorer, kept)

    def trained(
        self, on_score: Callable[[int, Score], None] | None, on_round: Callable[[int], None] | None
    ) -> list[Result | DivergedError]:
        """All rounds."""
        scores: list[list[Score]] = [[] for _ in self.trials]
        failed: dict[int, DivergedError] = {}
        total, seconds = [(0, 0)] * len(self.trials), 0.0
        kept, began = self.kept, time.perf_counter()
        for done, (kept, sent) in enumerate(played(self.stack, self.kept, self.schedule.rounds), 1):
            total = [(a + c, b + d) for (a, b), (c, d) in zip(total, sent, strict=True)]
            if self.schedule.scores(done):
                _wait(self.stack.clients.device)
                seconds += time.perf_counter() - began
                for run, made in enumerate(self._scored(kept, done, total, seconds / len(self.trials))):
                    if isinstance(made, DivergedError):
                        failed.setdefault(run, made)
                    elif run not in failed:
                        scores[run].append(made)
                        if on_score is not None:
                            on_score(run, made)
                if len(failed) == len(self.trials):
                    break
                began = time.perf_counter()
            if on_round is not None:
                on_round(done)
        models = self._personal(kept)
        return [
            failed[run]
            if run in failed
            else Result(member.algorithm, trial.federation, self.model, W.clone(), *kept[run], scores[run])
            for run, (trial, member, W) in enumerate(
                zip(self.trials, self.stack.members, models, strict=True)
            )
        ]

    def _scored(
        self, kept: Sequence[Kept], done: int, sent: Sequence[Sent], seconds: float
    ) -> list[Score | DivergedError]:
        """How every client's model does after a round; a run that has left the finite numbers has failed."""
        models = self._personal(kept)
        sizes = [len(W) for W in models]
        train, test = (tally.split(sizes) for tally in self.scorer.score(_stacked(models)))
        made: list[Score | DivergedError] = []
        for run, (member, state, W) in enumerate(zip(self.stack.members, kept, models, strict=True)):
            algorithm, federation = member.algorithm, self.trials[run].federation
            lost = diverged(train[run], federation, done, algorithm)
            if lost is not None:
                made.append(lost)
                continue
            ridge = self.model.ridge(W.double()).cpu() if self.model.l2 else torch.zeros(len(W)).double()
            penalty = float(algorithm.penalty(*state)) if isinstance(algorithm, Penalised) else 0.0
            gap = None
            if isinstance(algorithm, Certified):
                gap = float(self._everyone("gap", (state[1], W), [len(W)]).double().sum())
            made.append(score(done, train[run], test[run], ridge, penalty, gap, sent[run], seconds))
        return made

    def _personal(self, kept: Sequence[Kept]) -> list[Float[Tensor, "client param"]]:
        """The model that each client is scored with, run by run."""
        models: list[Tensor] = [
            member.algorithm.personal(*state, len(trial.federation.clients))
            for trial, member, state in zip(self.trials, self.stack.members, kept, strict=True)
        ]
        if not isinstance(self.stack.members[0].algorithm, Adapting):
            return models
        sizes = [len(W) for W in models]
        return list(self._everyone("adapt", (_stacked(models),), sizes).split(sizes))

    def _everyone(self, ability: str, states: tuple[State, ...], sizes: Sequence[int]) -> Tensor:
        """What a method does at all clients, in the order of the federations; it draws nothing."""
        clients = self.scorer.clients
        ids = clients.by_count(torch.arange(sum(sizes)))
        home, device = self.stack.home, clients.device
        brought = clients.brought(ids)
        places = ids if brought is clients else torch.arange(len(ids))
        task = StackTask(brought, brought.cohort(places), 0, Work(1, False))
        function = getattr(self.stack.shared(sizes, ids.to(device)), ability)
        at = ids.to(home)
        own = moved(tuple(rows(state, at) for state in states), device)
        made: Tensor = moved(self.scorer.each(function, own, task), home)
        return torch.empty_like(made).index_copy_(0, at, made)


def played(stack: Stack, kept: list[Kept], rounds: int) -> Iterator[tuple[list[Kept], list[Sent]]]:
    """What is kept after each round, and the bytes sent in it; on a GPU, where it can, as a recording."""
    turns, replay = stack.turns(rounds), None
    upcoming = next(turns, None)
    number = 0
    while (turn := upcoming) is not None:
        number += 1
        if number > 1 and stack.replays and rounds >= WORTH_RECORDING:
            replay = replay or Replay(stack.recorded(turn), tuple(kept), turn.tensors())
            replay(turn.tensors())
            kept, sent = list(replay.kept), replay.made
            upcoming = next(turns, None)
        else:
            made = stack.at_work(kept, turn)
            upcoming = next(turns, None)  # on the host, while a device works
            kept, sent = stack.settled(kept, turn, made)
        yield kept, sent


def _stacked(models: Sequence[Tensor]) -> Tensor:
    return models[0] if len(models) == 1 else torch.cat(list(models))


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """A GPU of several as the one that streams and recordings are made on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
