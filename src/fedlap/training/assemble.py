"""Assembly of a training: jobs are checked, data placed, and method, engine and states built."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fedlap.algorithms import Algorithm, Pooling, State
from fedlap.algorithms.coupling import find_merge_place
from fedlap.algorithms.local_work import LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError
from fedlap.models import Model
from fedlap.storage.mapped_tensors import reorder_rows
from fedlap.training.client_sampling import StackedRun
from fedlap.training.engines import Engine, LeadingEngine, Stacked
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
from fedlap.training.state import copy_state, describe_shapes, match_types, to_device

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
            self._copy_models(W)
            if passed is job.federation
            else reorder_rows(W, find_positions(passed.clients, job.federation.clients))
            for W, passed, job in zip(models, self.federations, self.jobs, strict=True)
        ]

    def _copy_models(self, models: Tensor) -> Tensor:
        """Return models that share no memory with a state; those of several processes are gathered apart."""
        return models if isinstance(self.engine, LeadingEngine) else models.clone()


@contextmanager
def open_training(jobs: Sequence[Job], schedule: Schedule) -> Iterator[Training]:
    """Assemble a training, and end the processes of its engine afterwards, unless other runs use them too."""
    with ExitStack() as until_end:
        if schedule.engine == "ray":
            from fedlap.training.shards.cluster import use_cluster

            until_end.enter_context(use_cluster())
        training = assemble(jobs, schedule)
        until_end.callback(training.engine.close)
        yield training


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
    # Shards place their own rows; pooled rows are of one shard, in the order of names.
    in_shards = schedule.engine == "ray" and not isinstance(bound[0][0], Pooling)
    federations = [job.federation for job in jobs] if in_shards else _place_federations(jobs, schedule, home)
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

    method = ManyRuns(runs)
    if schedule.engine == "ray":
        engine, server = _start_shards(jobs[0], runs[0], federations[0], model, work, schedule)
        return Training(jobs, passed, origins, schedule, model, method, engine, server)
    trainees_of_runs = [run.trainees for run in runs]
    clients = place_clients(trainees_of_runs)
    same = all(a is b for a, b in zip(trainees_of_runs, federations, strict=True))
    scored = clients if same else place_clients(federations)
    engine = ENGINES[schedule.engine](method, clients, scored, work, home, schedule.rounds)
    states = [_init_state(job, run, model, home, dtype) for job, run in zip(jobs, runs, strict=True)]
    server = engine.load(*map(list, zip(*states, strict=True)))
    return Training(jobs, passed, origins, schedule, model, method, engine, server)


def _start_shards(
    job: Job, run: StackedRun, scored: Federation, model: Model, work: LocalWork, schedule: Schedule
) -> tuple[Engine, Sequence[State]]:
    """Start the engine whose clients are in several processes, and return it with the server state."""
    from fedlap.training.shards.block import LocalSettings
    from fedlap.training.shards.cluster import use_cluster
    from fedlap.training.shards.engine import Sharded
    from fedlap.training.shards.merging import without_graph

    algorithm = without_graph(run.algorithm) if run.algorithm.traits.is_stackable else run.algorithm
    settings = LocalSettings(
        algorithm, model, work, job.seed, schedule.batch, schedule.dtype, schedule.device
    )
    with use_cluster() as session:
        cluster = session.open(on_gpu=torch.device(schedule.device).type == "cuda")
        engine = Sharded(run, scored, settings, schedule.precision, cluster)
    home, dtype = torch.device("cpu"), schedule.torch_dtype
    start = build_start(job.start, model, len(scored.clients), job.seed, home, dtype)
    if job.progress is not None:
        # Where models stay in the shards, this process may not have the memory for those of the first round.
        models_stay = find_merge_place(run.algorithm) == "neighbours"
        server, private = _read_saved_state(job, run, start.to("meta") if models_stay else start, home)
        return engine, engine.load([server], [private], job.rounds_done)
    return engine, engine.start(start)


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
    start = build_start(job.start, model, len(job.federation.clients), job.seed, home, dtype)
    if job.progress is None:
        return _build_initial_state(job, run, start)
    server, private = _read_saved_state(job, run, start, home)
    return copy_state(server), copy_state(private)


def _build_initial_state(job: Job, run: StackedRun, start: Tensor) -> tuple[State, State]:
    """Return server state and private state before the first round."""
    algorithm: Algorithm = run.algorithm
    return algorithm.init_server(start), algorithm.init_clients(start, job.federation.train.count)


def _read_saved_state(job: Job, run: StackedRun, start: Tensor, home: torch.device) -> tuple[State, State]:
    """Return the saved state with the types of the initial one; raise InputError if it does not fit."""
    assert job.progress is not None
    initial = _build_initial_state(job, run, start)
    saved = job.progress.server, job.progress.private
    if describe_shapes(saved) != describe_shapes(initial):
        raise InputError(
            "resume: the saved state does not fit this run; pass the method, model, dtype and clients of the "
            "saved run"
        )
    server, private = to_device(match_types(saved, initial), home)
    return server, private
