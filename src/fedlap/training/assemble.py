"""Assembly of a training: jobs are checked, data placed, and method, engine and states built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fedlap.algorithms import Algorithm, Pooling, State
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError
from fedlap.models import Model
from fedlap.training.client_sampling import StackedRun
from fedlap.training.engines import Engine, Stacked
from fedlap.training.jobs import (
    Job,
    bind_algorithm,
    check_single_rows,
    compute_stack_key,
    plan_local_work,
)
from fedlap.training.one_by_one import OneByOne
from fedlap.training.placement import PlacedClients
from fedlap.training.recorder import Recorder
from fedlap.training.result import Result, RunOrigin
from fedlap.training.resume import check_unchanged, describe_origin, find_positions, match_client_order
from fedlap.training.schedule import Schedule, build_start, compute_sample_size
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import copy_state, describe_shapes, match_devices

ENGINES: Final[dict[str, Callable[..., Any]]] = {"stacked": Stacked, "one_by_one": OneByOne}


@dataclass(frozen=True, eq=False)
class Training:
    """Jobs that are trained together: their method, the engine that owns their clients, and server states."""

    jobs: list[Job]  # with clients in the order of the state's rows
    federations: list[Federation]  # as passed
    origins: list[RunOrigin]
    schedule: Schedule
    model: Model
    method: ManyRuns
    engine: Engine
    server: Sequence[State]

    def collect_results(self, server: Sequence[State], recorder: Recorder) -> list[Result | DivergedError]:
        """Return the result of each run, or the error of a run that diverged."""
        progress = recorder.collect_progress(self.engine, server)
        models = self._restore_order(self.engine.models(self.method, server))
        return [
            Result(run.algorithm, federation, self.model, W, reached, self.schedule.rounds)
            if reached
            else recorder.diverged[place]
            for place, (federation, run, W, reached) in enumerate(
                zip(self.federations, self.method.runs, models, progress, strict=True)
            )
        ]

    def _restore_order(self, models: Sequence[Tensor]) -> list[Tensor]:
        """Return copies of the models, with clients in the order of the federations that were passed."""
        return [
            W.clone()
            if passed is job.federation
            else W[find_positions(passed.clients, job.federation.clients)]
            for W, passed, job in zip(models, self.federations, self.jobs, strict=True)
        ]


def assemble(jobs: Sequence[Job], schedule: Schedule) -> Training:
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
    federations = _place_federations(jobs, schedule, home)
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

    def place_clients(federations: list[Federation]) -> PlacedClients:
        seeds = [job.seed for job in jobs]
        return PlacedClients.of(federations, seeds, model, schedule.batch, device, dtype)

    trainees_of_runs = [run.trainees for run in runs]
    clients = place_clients(trainees_of_runs)
    same = all(a is b for a, b in zip(trainees_of_runs, federations, strict=True))
    scored = clients if same else place_clients(federations)
    method = ManyRuns(runs)
    engine = ENGINES[schedule.engine](method, clients, scored, work, home, schedule.rounds)
    states = [_init_state(job, run, model, home, dtype) for job, run in zip(jobs, runs, strict=True)]
    server = engine.load(*map(list, zip(*states, strict=True)))
    return Training(jobs, passed, origins, schedule, model, method, engine, server)


def _place_federations(jobs: Sequence[Job], schedule: Schedule, home: torch.device) -> list[Federation]:
    """Return the federations of the jobs with their rows at `home`; each distinct one is copied once."""
    as_bytes = schedule.should_store_bytes(home, [job.federation for job in jobs])
    distinct = {id(job.federation): job.federation for job in jobs}
    dtype = schedule.torch_dtype
    placed = {key: data.to_device(home, dtype, as_bytes=as_bytes) for key, data in distinct.items()}
    return [placed[id(job.federation)] for job in jobs]


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
    job: Job, run: StackedRun, model: Model, home: torch.device, dtype: torch.dtype
) -> tuple[State, State]:
    """Return server state and private state of a run before its first round, or those it resumes from."""
    algorithm: Algorithm = run.algorithm
    start = build_start(job.start, model, len(job.federation.clients), job.seed, home, dtype)
    counts = job.federation.train.count
    initial = algorithm.init_server(start), algorithm.init_clients(start, counts)
    if job.progress is None:
        return initial
    saved = job.progress.server, job.progress.private
    if describe_shapes(saved) != describe_shapes(initial):
        raise InputError(
            "resume: the saved state does not fit this run; pass the method, model, dtype and clients of the "
            "saved run"
        )
    server, private = match_devices(copy_state(saved), initial)
    return server, private
