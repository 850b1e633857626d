"""The loop: rounds of sending, local work and mixing."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
from fedlap.algorithms.local_work import LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError
from fedlap.models import Model
from fedlap.training.client_sampling import Member
from fedlap.training.cuda_graph import CudaGraph
from fedlap.training.engines import ENGINES, Engine
from fedlap.training.jobs import Job, check_single_rows, diverged, kind, suited, work_of
from fedlap.training.placement import PlacedClients, check_models
from fedlap.training.result import Origin, Progress, Result
from fedlap.training.resume import check_unchanged, in_state_order, origin_of, places_of
from fedlap.training.run_tables import Places
from fedlap.training.schedule import Schedule, sample_size, start_rows
from fedlap.training.scores import Score, score
from fedlap.training.stacking import Kept, Sent, Stack
from fedlap.training.state import beside, joined, moved, owned, rows, shapes
from fedlap.training.task import StackTask

WORTH_RECORDING = 4  # rounds; fewer are over before a recording pays


@dataclass(eq=False)
class RoundEnd:
    """The end of a round, from which every run can go on later."""

    round: int
    reached: Callable[[], list[Progress | None]]
    taken: bool = False
    stopped: bool = False

    def progress(self) -> list[Progress | None]:
        """Where each run is; nothing of one that has diverged."""
        self.taken = True
        return self.reached()

    def stop(self) -> None:
        """Let this round be the last."""
        self.stopped = True


@dataclass(frozen=True, eq=False)
class Runs:
    """Trials made ready: the stack that trains them, and the engine that scores all their clients."""

    trials: list[Job]
    asked: list[Federation]  # of the trials, with clients in the order in which they were passed
    origins: list[Origin]
    schedule: Schedule
    model: Model
    stack: Stack
    scorer: Engine
    kept: list[Kept]

    @staticmethod
    def of(trials: Sequence[Job], schedule: Schedule) -> "Runs":
        """Check everything, bring data to where they are used, and begin."""
        if len(trials) > 1 and len({kind(trial) for trial in trials}) > 1:
            raise InputError(
                "fit_all: these runs do not go together; one stack takes one steady method and model, whose "
                "runs differ in seeds, data, graphs and real-valued settings alone"
            )
        for trial in trials:
            if trial.done > schedule.rounds:
                raise InputError(
                    f"resume: this run is at round {trial.done} already, past the {schedule.rounds} asked "
                    "for; ask for more rounds"
                )
        asked = [trial.federation for trial in trials]
        trials = [in_state_order(trial) for trial in trials]
        device, dtype = schedule.placed(), schedule.real
        ready = [suited(trial.algorithm, trial.federation, trial.model) for trial in trials]
        model = ready[0][1]
        origins = [origin_of(t, *made, schedule) for t, made in zip(trials, ready, strict=True)]
        for trial, origin in zip(trials, origins, strict=True):
            check_unchanged(trial, origin)
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
        for federation, member in zip(homes, members, strict=True):
            check_single_rows(model, federation, member.trainees, work, schedule.batch)
        make, seeds = ENGINES[schedule.engine], [trial.seed for trial in trials]

        def clients(federations: list[Federation]) -> PlacedClients:
            return PlacedClients.of(federations, seeds, model, schedule.batch, device, dtype)

        trainees = [member.trainees for member in members]
        trained = clients(trainees)
        trainer = make(trained.ready(work.steps(int(trained.train.count.max()), schedule.batch)))
        same = all(a is b for a, b in zip(trainees, homes, strict=True))
        scorer = trainer if same else make(clients(homes))
        kept = [_begun(t, m.algorithm, model, home, dtype) for t, m in zip(trials, members, strict=True)]
        stack = Stack(members, trainer, work, home)
        begun = kept if len(kept) == 1 else stack.laid(kept)
        return Runs(trials, asked, origins, schedule, model, stack, scorer, begun)

    def trained(
        self,
        on_score: Callable[[int, Score], None] | None,
        on_round: Callable[[RoundEnd], None] | None,
    ) -> list[Result | DivergedError]:
        """All rounds that are left."""
        last = [trial.progress for trial in self.trials]
        scores = [[s for s in each.scores if self.schedule.scores(s.round)] if each else [] for each in last]
        total = [each.sent if each else (0, 0) for each in last]
        seconds = [each.seconds if each else 0.0 for each in last]
        failed: dict[int, DivergedError] = {}
        done, kept, began = self.trials[0].done, self.kept, time.perf_counter()

        def spent() -> list[float]:
            _wait(self.stack.clients.device)
            return [each + (time.perf_counter() - began) / len(self.trials) for each in seconds]

        def reached() -> list[Progress | None]:
            nonlocal seconds, began
            seconds, began = spent(), time.perf_counter()
            each = zip(kept, total, seconds, scores, self.origins, strict=True)
            return [
                None if run in failed else Progress(done, *state, sent, passed, made, origin)
                for run, (state, sent, passed, made, origin) in enumerate(each)
            ]

        for kept, sent in played(self.stack, self.kept, range(done + 1, self.schedule.rounds + 1)):
            done += 1
            total = [(a + c, b + d) for (a, b), (c, d) in zip(total, sent, strict=True)]
            if self.schedule.scores(done):
                seconds = spent()
                for run, made in enumerate(self._scored(kept, done, total, seconds, scores)):
                    if isinstance(made, DivergedError):
                        failed.setdefault(run, made)
                    elif run not in failed:
                        scores[run].append(made)
                        if on_score is not None:
                            on_score(run, made)
                if len(failed) == len(self.trials):
                    break
                began = time.perf_counter()
            moment = RoundEnd(done, reached)
            if on_round is not None:
                on_round(moment)
            if moment.taken:  # what is done with it is no training
                began = time.perf_counter()
            if moment.stopped:
                break
        at_last, models = reached(), self._as_asked(self._personal(kept))
        return [
            Result(member.algorithm, federation, self.model, W, at) if at else failed[run]
            for run, (federation, member, W, at) in enumerate(
                zip(self.asked, self.stack.members, models, at_last, strict=True)
            )
        ]

    def _as_asked(self, models: Sequence[Tensor]) -> list[Float[Tensor, "client param"]]:
        """Return copies of the models, with clients in the order of the federations that were passed."""
        return [
            W.clone() if asked is trial.federation else W[places_of(asked.clients, trial.federation.clients)]
            for W, asked, trial in zip(models, self.asked, self.trials, strict=True)
        ]

    def _scored(
        self,
        kept: Sequence[Kept],
        done: int,
        sent: Sequence[Sent],
        seconds: Sequence[float],
        before: Sequence[Sequence[Score]],
    ) -> list[Score | DivergedError]:
        """How every client's model does after a round; a run that has left the finite numbers has failed."""
        models = self._personal(kept)
        sizes = [len(W) for W in models]
        train, test = (tally.split(sizes) for tally in self.scorer.score(_stacked(models)))
        gaps: list[float | None] = [None] * len(sizes)
        if isinstance(self.stack.members[0].algorithm, Certified):
            private = joined([own for _, own in kept])
            each = self._everyone("gap", (private, _stacked(models)), sizes).double().split(sizes)
            gaps = [float(own.sum()) for own in each]
        made: list[Score | DivergedError] = []
        for run, (member, state, W) in enumerate(zip(self.stack.members, kept, models, strict=True)):
            algorithm, federation = member.algorithm, self.trials[run].federation
            least = min((score.train_loss for score in before[run]), default=math.inf)
            lost = diverged(train[run], federation, done, algorithm, least)
            if lost is not None:
                made.append(lost)
                continue
            ridge = self.model.ridge(W.double()).cpu() if self.model.l2 else torch.zeros(len(W)).double()
            penalty = float(algorithm.penalty(*state)) if isinstance(algorithm, Penalised) else 0.0
            whole = ridge, penalty, gaps[run], sent[run], seconds[run]
            made.append(score(done, train[run], test[run], *whole))
        return made

    def _personal(self, kept: Sequence[Kept]) -> list[Float[Tensor, "client param"]]:
        """The model that each client is scored with, run by run."""
        models: list[Tensor] = [
            member.algorithm.personal(*state, len(trial.federation.clients))
            for trial, member, state in zip(self.trials, self.stack.members, kept, strict=True)
        ]
        self._check(models, "personal")
        if not isinstance(self.stack.members[0].algorithm, Adapting):
            return models
        sizes = [len(W) for W in models]
        adapted = list(self._everyone("adapt", (_stacked(models),), sizes).split(sizes))
        self._check(adapted, "adapt")
        return adapted

    def _check(self, models: Sequence[Tensor], ability: str) -> None:
        """Raise InputError unless a method has returned one model for each client of each run."""
        name = type(self.stack.members[0].algorithm).__name__
        for trial, W in zip(self.trials, models, strict=True):
            check_models(
                f"what {name}.{ability} returns",
                *(W, len(trial.federation.clients), self.model, self.schedule.real),
            )

    def _everyone(self, ability: str, states: tuple[State, ...], sizes: Sequence[int]) -> Tensor:
        """What a method does at all clients, in the order of the federations; it draws nothing."""
        clients = self.scorer.clients
        ids = clients.by_count(torch.arange(sum(sizes)))
        home, device = self.stack.home, clients.device
        brought = clients.brought(ids)
        places = ids if brought is clients else torch.arange(len(ids))
        task = StackTask(brought, brought.cohort(places), 0, LocalWork(1, False))
        at = ids.to(home)
        function = getattr(self.stack.shared(Places(at, tuple(sizes), at)), ability)
        own = moved(tuple(rows(state, at) for state in states), device)
        made: Tensor = moved(self.scorer.each(function, own, task), home)
        return torch.empty_like(made).index_copy_(0, at, made)


def _begun(trial: Job, algorithm: Algorithm, model: Model, home: torch.device, dtype: torch.dtype) -> Kept:
    """What the server and the clients keep before the first round, or before those that are left."""
    clients = len(trial.federation.clients)
    begun: Kept = algorithm.begin(start_rows(trial.start, model, clients, trial.seed, home, dtype))
    if trial.progress is None:
        return begun
    earlier = trial.progress.server, trial.progress.private
    if shapes(earlier) != shapes(begun):
        raise InputError(
            "resume: what is resumed was made by another method, model, dtype or set of clients; "
            "give the same ones as then"
        )
    saved: Kept = beside(owned(earlier), begun)
    return saved


def played(stack: Stack, kept: list[Kept], rounds: range) -> Iterator[tuple[list[Kept], list[Sent]]]:
    """What is kept after each round, and the bytes sent in it; on a GPU, where it can, as a recording."""
    turns, replay, again = stack.turns(rounds), None, len(rounds) >= WORTH_RECORDING
    upcoming = next(turns, None)
    number = 0
    while (turn := upcoming) is not None:
        number += 1
        if number > 1 and again and stack.replays:
            replay = replay or CudaGraph(stack.recorded(turn), tuple(stack.laid(kept)), turn.tensors())
            replay(turn.tensors())
            kept, sent = list(replay.kept), replay.made
            upcoming = next(turns, None)
        else:
            own, ups, told = stack.at_work(kept, turn)
            upcoming = next(turns, None)  # on the host, while a device works
            if number > 1 and again and stack.ends_alike:
                inputs = (turn.places.everyone, own, ups)
                replay = replay or CudaGraph(stack.recorded_end(told), tuple(stack.laid(kept)), inputs)
                replay(inputs)
                kept, sent = list(replay.kept), replay.made
            else:
                kept, sent = stack.settled(kept, turn.places, (own, ups, told))
        yield kept, sent


def _stacked(models: Sequence[Tensor]) -> Tensor:
    return models[0] if len(models) == 1 else torch.cat(list(models))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
