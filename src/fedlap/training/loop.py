"""The training loop: rounds of sending, local work and merging."""

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
from fedlap.training.client_sampling import StackedRun
from fedlap.training.engines import ENGINES, Engine
from fedlap.training.jobs import (
    Job,
    bind_algorithm,
    check_single_rows,
    compute_stack_key,
    detect_divergence,
    plan_local_work,
)
from fedlap.training.placement import PlacedClients, check_models
from fedlap.training.result import Progress, Result, RunOrigin
from fedlap.training.resume import check_unchanged, describe_origin, find_positions, match_client_order
from fedlap.training.run_tables import CohortIndex
from fedlap.training.schedule import Schedule, build_start, compute_sample_size
from fedlap.training.scores import Score, compute_score
from fedlap.training.stacking import RunStack, Traffic, TrainingState
from fedlap.training.state import (
    concatenate_states,
    copy_state,
    describe_shapes,
    gather_rows,
    match_devices,
    to_device,
)
from fedlap.training.task import StackTask

MIN_CAPTURED_ROUNDS = 4  # fewer rounds finish before a capture pays off


def play_rounds(
    stack: RunStack, states: list[TrainingState], rounds: range
) -> Iterator[tuple[list[TrainingState], list[Traffic]]]:
    """Play the rounds; yield, after each, the state of every run and the bytes that were sent in the round.

    A round draws its cohort, sends to it, runs the local work and merges. On a GPU, rounds after the first
    are replayed from a CUDA graph: whole rounds where every operation is static, else their merges.
    """
    planned, graph, captures = stack.plan_rounds(rounds), None, len(rounds) >= MIN_CAPTURED_ROUNDS
    upcoming = next(planned, None)
    number = 0
    while (work := upcoming) is not None:
        number += 1
        if number > 1 and captures and stack.can_capture_rounds:
            graph = graph or stack.capture_round(states, work)
            graph(work.collect_tensors())
            states, traffic = list(graph.state), graph.output
            upcoming = next(planned, None)
        else:
            results = stack.run_local_work(states, work)
            upcoming = next(planned, None)  # The host draws the next round while the device computes.
            if number > 1 and captures and stack.can_capture_merges:
                private, uploads, downloaded = results
                inputs = (work.index.ids, private, uploads)
                graph = graph or stack.capture_merge(states, downloaded, inputs)
                graph(inputs)
                states, traffic = list(graph.state), graph.output
            else:
                states, traffic = stack.merge_round(states, work.index, results)
        yield states, traffic


@dataclass(eq=False)
class RoundEnd:
    """The end of a round: every run can be saved here to be resumed later, or all can be stopped."""

    round: int
    snapshot: Callable[[], list[Progress | None]]
    was_read: bool = False
    stop_requested: bool = False

    def collect_progress(self) -> list[Progress | None]:
        """Return the progress of each run, or None for a run that has diverged."""
        self.was_read = True
        return self.snapshot()

    def stop(self) -> None:
        """Stop all runs after this round."""
        self.stop_requested = True


@dataclass(eq=False)
class TrainingLog:
    """States, scores, traffic and training time of runs, round by round."""

    device: torch.device
    origins: list[RunOrigin]
    round: int  # rounds done
    states: list[TrainingState]
    sent: list[Traffic]  # in all rounds
    seconds: list[float]  # of training, a run's share of the stack's time
    scores: list[list[Score]]
    diverged: dict[int, DivergedError]
    clock_start: float

    def add_round(self, states: list[TrainingState], traffic: list[Traffic]) -> None:
        """Add a round that was played."""
        self.round += 1
        self.states = states
        self.sent = [(a + c, b + d) for (a, b), (c, d) in zip(self.sent, traffic, strict=True)]

    def add_outcome(self, run: int, outcome: Score | DivergedError) -> Score | None:
        """Add the outcome of scoring a run; return its score, or None if the run has diverged."""
        if isinstance(outcome, DivergedError):
            self.diverged.setdefault(run, outcome)
        elif run not in self.diverged:
            self.scores[run].append(outcome)
            return outcome
        return None

    def start_clock(self) -> None:
        """Start to measure training time; scoring and saving since the last `stop_clock` do not count."""
        self.clock_start = time.perf_counter()

    def stop_clock(self) -> None:
        """Add the training time since `start_clock`, after all work on a device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        runs = len(self.seconds)
        self.seconds = [passed + (time.perf_counter() - self.clock_start) / runs for passed in self.seconds]

    def collect_progress(self) -> list[Progress | None]:
        """Return the progress of each run, or None for a run that has diverged."""
        self.stop_clock()
        self.start_clock()
        runs = zip(self.states, self.sent, self.seconds, self.scores, self.origins, strict=True)
        return [
            None if run in self.diverged else Progress(self.round, *state, sent, seconds, scores, origin)
            for run, (state, sent, seconds, scores, origin) in enumerate(runs)
        ]


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Jobs that are trained together: their stack, and the engine that scores all their clients."""

    jobs: list[Job]
    federations: list[Federation]  # as passed; those of the jobs are in the order of the state's rows
    origins: list[RunOrigin]
    schedule: Schedule
    model: Model
    stack: RunStack
    scorer: Engine
    states: list[TrainingState]

    @staticmethod
    def of(jobs: Sequence[Job], schedule: Schedule) -> "RunGroup":
        """Check the jobs, place their data where they are used, and build or restore their states."""
        _check_jobs(jobs, schedule)
        passed = [job.federation for job in jobs]
        jobs = [match_client_order(job) for job in jobs]
        device, dtype = schedule.resolve_device(), schedule.torch_dtype
        bound = [bind_algorithm(job.algorithm, job.federation, job.model) for job in jobs]
        model = bound[0][1]
        origins = [
            describe_origin(job, *algorithm_and_model, schedule)
            for job, algorithm_and_model in zip(jobs, bound, strict=True)
        ]
        for job, origin in zip(jobs, origins, strict=True):
            check_unchanged(job, origin)
        home = schedule.choose_home(device, [job.federation for job in jobs], model)
        as_bytes = schedule.should_store_bytes(home, [job.federation for job in jobs])
        distinct = {id(job.federation): job.federation for job in jobs}
        placed = {key: data.to_device(home, dtype, as_bytes=as_bytes) for key, data in distinct.items()}
        federations = [placed[id(job.federation)] for job in jobs]
        runs, offset = [], 0
        for job, federation, (algorithm, _) in zip(jobs, federations, bound, strict=True):
            sampled = compute_sample_size(algorithm, schedule.sample, len(federation.clients))
            trainees = algorithm.view(federation) if isinstance(algorithm, Pooling) else federation
            cohort_size = sampled if trainees is federation else len(trainees.clients)
            runs.append(StackedRun(algorithm, trainees, job.seed, offset, cohort_size))
            offset += len(trainees.clients)
        work = plan_local_work(runs[0].algorithm, sampled)
        for federation, run in zip(federations, runs, strict=True):
            check_single_rows(model, federation, run.trainees, work, schedule.batch)
        make_engine, seeds = ENGINES[schedule.engine], [job.seed for job in jobs]

        def place_clients(federations: list[Federation]) -> PlacedClients:
            return PlacedClients.of(federations, seeds, model, schedule.batch, device, dtype)

        trainees_of_runs = [run.trainees for run in runs]
        clients = place_clients(trainees_of_runs)
        steps = work.count_steps(int(clients.train.count.max()), schedule.batch)
        trainer = make_engine(clients.prepare(steps))
        same = all(a is b for a, b in zip(trainees_of_runs, federations, strict=True))
        scorer = trainer if same else make_engine(place_clients(federations))
        states = [
            _init_state(job, run.algorithm, model, home, dtype) for job, run in zip(jobs, runs, strict=True)
        ]
        stack = RunStack(runs, trainer, work, home)
        states = states if len(states) == 1 else stack.contiguous_copy(states)
        return RunGroup(jobs, passed, origins, schedule, model, stack, scorer, states)

    def train(
        self,
        on_score: Callable[[int, Score], None] | None,
        on_round: Callable[[RoundEnd], None] | None,
    ) -> list[Result | DivergedError]:
        """Play the remaining rounds; return the result of each run, or the error of a run that diverged."""
        log = self._start_log()
        remaining = range(log.round + 1, self.schedule.rounds + 1)
        for states, traffic in play_rounds(self.stack, self.states, remaining):
            log.add_round(states, traffic)
            if self.schedule.is_scored(log.round):
                log.stop_clock()
                for run, outcome in enumerate(self._score_runs(log)):
                    score = log.add_outcome(run, outcome)
                    if score is not None and on_score is not None:
                        on_score(run, score)
                if len(log.diverged) == len(self.jobs):
                    break
                log.start_clock()
            end = RoundEnd(log.round, log.collect_progress)
            if on_round is not None:
                on_round(end)
            if end.was_read:  # Saving a checkpoint is not training time.
                log.start_clock()
            if end.stop_requested:
                break
        progress, models = log.collect_progress(), self._restore_order(self._personal_models(log.states))
        return [
            Result(stacked.algorithm, federation, self.model, W, reached) if reached else log.diverged[run]
            for run, (federation, stacked, W, reached) in enumerate(
                zip(self.federations, self.stack.runs, models, progress, strict=True)
            )
        ]

    def _start_log(self) -> TrainingLog:
        """Return a log that continues the progress of resumed runs."""
        earlier = [job.progress for job in self.jobs]
        scores = [
            [score for score in progress.scores if self.schedule.is_scored(score.round)] if progress else []
            for progress in earlier
        ]
        return TrainingLog(
            device=self.stack.clients.device,
            origins=self.origins,
            round=self.jobs[0].rounds_done,
            states=self.states,
            sent=[progress.sent if progress else (0, 0) for progress in earlier],
            seconds=[progress.seconds if progress else 0.0 for progress in earlier],
            scores=scores,
            diverged={},
            clock_start=time.perf_counter(),
        )

    def _restore_order(self, models: Sequence[Tensor]) -> list[Float[Tensor, "client param"]]:
        """Return copies of the models, with clients in the order of the federations that were passed."""
        return [
            W.clone()
            if passed is job.federation
            else W[find_positions(passed.clients, job.federation.clients)]
            for W, passed, job in zip(models, self.federations, self.jobs, strict=True)
        ]

    def _score_runs(self, log: TrainingLog) -> list[Score | DivergedError]:
        """Score every client's model after a round; a run whose losses are not finite has diverged."""
        models = self._personal_models(log.states)
        sizes = [len(W) for W in models]
        train, test = (tally.split(sizes) for tally in self.scorer.score(_stack_models(models)))
        gaps: list[float | None] = [None] * len(sizes)
        if isinstance(self.stack.runs[0].algorithm, Certified):
            private = concatenate_states([private for _, private in log.states])
            gap = self._map_all_clients("gap", (private, _stack_models(models)), sizes)
            gaps = [float(of_run.sum()) for of_run in gap.double().split(sizes)]
        outcomes: list[Score | DivergedError] = []
        for run, (stacked, state, W) in enumerate(zip(self.stack.runs, log.states, models, strict=True)):
            algorithm, federation = stacked.algorithm, self.jobs[run].federation
            least = min((score.train_loss for score in log.scores[run]), default=math.inf)
            diverged = detect_divergence(train[run], federation, log.round, algorithm, least)
            if diverged is not None:
                outcomes.append(diverged)
                continue
            ridge = self.model.ridge(W.double()).cpu() if self.model.l2 else torch.zeros(len(W)).double()
            penalty = float(algorithm.penalty(*state)) if isinstance(algorithm, Penalised) else 0.0
            totals = ridge, penalty, gaps[run], log.sent[run], log.seconds[run]
            outcomes.append(compute_score(log.round, train[run], test[run], *totals))
        return outcomes

    def _personal_models(self, states: Sequence[TrainingState]) -> list[Float[Tensor, "client param"]]:
        """Return the models that clients are scored with, run by run."""
        models: list[Tensor] = [
            run.algorithm.personal_models(*state, len(job.federation.clients))
            for job, run, state in zip(self.jobs, self.stack.runs, states, strict=True)
        ]
        self._check_returned(models, "personal_models")
        if not isinstance(self.stack.runs[0].algorithm, Adapting):
            return models
        sizes = [len(W) for W in models]
        adapted = list(self._map_all_clients("adapt", (_stack_models(models),), sizes).split(sizes))
        self._check_returned(adapted, "adapt")
        return adapted

    def _check_returned(self, models: Sequence[Tensor], ability: str) -> None:
        """Raise InputError unless a method has returned one model per client of each run."""
        name = type(self.stack.runs[0].algorithm).__name__
        for job, W in zip(self.jobs, models, strict=True):
            check_models(
                f"the return value of {name}.{ability}",
                *(W, len(job.federation.clients), self.model, self.schedule.torch_dtype),
            )

    def _map_all_clients(self, ability: str, states: tuple[State, ...], sizes: Sequence[int]) -> Tensor:
        """Apply a function of the method, which draws nothing, to all clients; keep their order."""
        clients = self.scorer.clients
        ids = clients.sort_by_count(torch.arange(sum(sizes)))
        home, device = self.stack.home, clients.device
        on_device = clients.copy_to_device(ids)
        places = ids if on_device is clients else torch.arange(len(ids))
        task = StackTask(on_device, on_device.build_cohort(places), 0, LocalWork(1, False))
        at = ids.to(home)
        function = getattr(self.stack.build_shared_method(CohortIndex(at, tuple(sizes), at)), ability)
        inputs = to_device(tuple(gather_rows(state, at) for state in states), device)
        outputs: Tensor = to_device(self.scorer.map_clients(function, inputs, task), home)
        return torch.empty_like(outputs).index_copy_(0, at, outputs)


def _check_jobs(jobs: Sequence[Job], schedule: Schedule) -> None:
    """Raise InputError unless the jobs can be trained as one stack, up to the last round of the schedule."""
    if len(jobs) > 1 and len({compute_stack_key(job) for job in jobs}) > 1:
        raise InputError(
            "fit_all: these runs cannot be batched: they must share a batchable method, the model, all "
            "non-float settings and the round that they resume from; train the others separately"
        )
    for job in jobs:
        if job.rounds_done > schedule.rounds:
            raise InputError(
                f"resume: the run has finished {job.rounds_done} rounds, but rounds = {schedule.rounds}; "
                f"set rounds to {job.rounds_done} or more"
            )


def _init_state(
    job: Job, algorithm: Algorithm, model: Model, home: torch.device, dtype: torch.dtype
) -> TrainingState:
    """Build the state of a run before its first round, or restore that of a resumed run."""
    clients = len(job.federation.clients)
    initial: TrainingState = algorithm.init(build_start(job.start, model, clients, job.seed, home, dtype))
    if job.progress is None:
        return initial
    saved = job.progress.server, job.progress.private
    if describe_shapes(saved) != describe_shapes(initial):
        raise InputError(
            "resume: the saved state does not fit this run; pass the method, model, dtype and clients of the "
            "saved run"
        )
    restored: TrainingState = match_devices(copy_state(saved), initial)
    return restored


def _stack_models(models: Sequence[Tensor]) -> Tensor:
    return models[0] if len(models) == 1 else torch.cat(list(models))
