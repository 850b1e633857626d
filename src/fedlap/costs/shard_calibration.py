"""Measure the costs of shards of clients: their work, the process that leads them, and the calls of Ray."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from fedlap.costs.growth import Growth, solve_growth, take_lower_quartile
from fedlap.costs.memory import list_descendants, read_process_status, read_proportional_size, read_title
from fedlap.costs.workload import Workload
from fedlap.training.assemble import assemble
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.shards.cluster import ClusterSettings, use_cluster
from fedlap.training.shards.engine import Sharded
from fedlap.training.shards.layout import MIN_BLOCKS, split_blocks
from fedlap.training.shards.shard import Shard

ROUNDS, WARM_UP_ROUNDS = 8, 2
RAY_ROUNDS, RAY_WARM_UP_ROUNDS = 25, 5
TINY_CLIENTS: Final = 64
# The measured federations, where memory allows: a client is in the memory of two processes, and on its way.
FEW_CLIENTS, MANY_CLIENTS, MOST_UNSAMPLED, LEAST_CLIENTS = 3_200, 100_000, 10_000, 20
# In the last measured federation each block has several sampled clients, unlike in the first one: otherwise
# the seconds of a block could not be separated from those of a client.
SAMPLED_PART, SAMPLED_PER_BLOCK = 31, 20
SHARDED_BYTES: Final = 250_000_000
ROUND_VERBS: Final = ("train", "train_cohort", "merge")


class ShardWork(NamedTuple):
    """Seconds of all shards in a round: blocks · (per_block + per_member · size) + per_sampled · S.

    blocks: those with a sampled client. size: clients of a block, at most 4,096, so that the seconds of large
    federations grow in proportion to their clients.
    """

    per_block: float
    per_member: float
    per_sampled: float

    def seconds(self, clients: int, sampled: int) -> float:
        """Return the seconds that all shards take together."""
        block = self.per_block + self.per_member * measure_block(clients)
        return count_busy_blocks(clients, sampled) * block + self.per_sampled * sampled


def measure_block(clients: int) -> int:
    """Return the number of clients of a block."""
    return len(split_blocks(clients)[0])


def count_busy_blocks(clients: int, sampled: int) -> float:
    """Return how many blocks have a sampled client, in the mean over draws of clients."""
    blocks = len(split_blocks(clients))
    return blocks * (1 - (1 - 1 / blocks) ** sampled)


@dataclass(frozen=True)
class RayRates:
    """The costs of Ray on this machine.

    calls: seconds of a round beyond those of the shards and of the process that leads them. daemon_bytes:
    memory of Ray's own processes on each machine. worker_bytes: of Ray in each process with a shard.
    """

    calls: Growth
    daemon_bytes: float
    worker_bytes: float


@dataclass(frozen=True)
class ShardRates:
    """The costs of a workload in shards.

    work: seconds of the shards. driver: seconds of the process that leads them. ray: the costs of Ray; None
    where it is not installed.
    """

    work: ShardWork
    driver: Growth
    ray: RayRates | None

    @staticmethod
    def of(values: dict[str, Any]) -> "ShardRates":
        """Build rates from plain values, as a process prints them."""
        ray = values["ray"]
        found = None if ray is None else RayRates(**{**ray, "calls": Growth(*ray["calls"])})
        return ShardRates(ShardWork(*values["work"]), Growth(*values["driver"]), found)


class ClockedCluster:
    """Shards in this process whose time is added up; references are the values themselves."""

    def __init__(self, workers: int) -> None:
        """Start without shards."""
        self.workers, self.seconds = workers, 0.0
        self._shards: dict[int, Shard] = {}

    def put(self, value: Any) -> Any:
        """Return the value."""
        return value

    def start(self, shard: int, plan: Any) -> Any:
        """Build a shard."""
        self._shards[shard] = Shard(plan)

    def call(self, shard: int, verb: str, *arguments: Any, returns: int | None = None) -> list[Any]:
        """Call a method of a shard, and add its time if it is a part of every round."""
        began = time.perf_counter()
        result = self._shards[shard].run(verb, *arguments)
        if verb in ROUND_VERBS:
            self.seconds += time.perf_counter() - began
        return [result] if returns is None else list(result)

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(references)

    def find_lost(self, shards: int) -> list[int]:
        """Return no shards: none is lost."""
        return []

    def release(self) -> None:
        """Forget all shards."""
        self._shards.clear()

    def close(self) -> None:
        """Forget all shards."""
        self.release()


def measure_shards(workload: Workload, workers: int, private_bytes: float) -> ShardRates:
    """Measure the rates of a workload in `workers` shards, at most two of which are measured.

    private_bytes: memory of a process without Ray that is not shared with others.
    """
    points, workers = choose_points(workload), min(workers, 2)
    jobs: dict[int, Job] = {}
    measured = []
    for clients, sampled in points:
        sized = workload.with_clients(clients, sampled)
        if clients not in jobs:
            jobs[clients] = sized.build_job()
        measured.append(measure_round(sized, jobs[clients], workers))
    work = solve_work([found[0] for found in measured], points)
    driver = solve_growth([found[1] for found in measured], points)
    rates = ShardRates(work, driver, None)
    if find_spec("ray") is None:
        return rates
    return replace(rates, ray=measure_ray(workload, rates, jobs, workers, private_bytes))


def choose_points(workload: Workload) -> list[tuple[int, int]]:
    """Return the numbers of clients, and of sampled ones, that are measured.

    One of the two grows from each point to the next; without sampling both do. There are no more clients than
    planned, and no more than fit into SHARDED_BYTES.
    """
    room = min(workload.clients, SHARDED_BYTES // workload.measured_client_bytes)
    if not workload.is_sampled:
        most = max(LEAST_CLIENTS, min(MOST_UNSAMPLED, room))
        return [(size, size) for size in (max(2, most // 30), most // 3, most)]
    many = max(LEAST_CLIENTS, min(MANY_CLIENTS, room))
    few = min(FEW_CLIENTS, many // 4)
    fewest = max(1, few // 100)
    sampled = max(many // SAMPLED_PART, min(many // 2, SAMPLED_PER_BLOCK * MIN_BLOCKS))
    return [(few, fewest), (many, fewest), (many, sampled)]


@torch.no_grad()
def measure_round(workload: Workload, job: Job, workers: int) -> tuple[float, float]:
    """Return the seconds of the shards, and of the process that leads them, in a round."""
    schedule = workload.build_schedule(ROUNDS, "ray")
    work, driver = [], []
    with use_cluster(ClusterSettings(workers)) as session:
        session.cluster = cluster = ClockedCluster(workers)
        training = assemble([job], schedule)
        server, engine = training.server, training.engine
        assert isinstance(engine, Sharded)
        for round in range(1, ROUNDS + 1):
            cluster.seconds, began = 0.0, time.perf_counter()
            cohort = engine.sampler.draw(round)
            server, _ = engine.play(training.method, engine, server, round, cohort)
            work.append(cluster.seconds)
            driver.append(time.perf_counter() - began - cluster.seconds)
    return take_lower_quartile(work[WARM_UP_ROUNDS:]), take_lower_quartile(driver[WARM_UP_ROUNDS:])


def solve_work(seconds: Sequence[float], points: Sequence[tuple[int, int]]) -> ShardWork:
    """Return the work through the measured points; no part is negative."""
    blocks = [count_busy_blocks(*point) for point in points]
    equations = [
        [number, number * measure_block(clients), sampled]
        for number, (clients, sampled) in zip(blocks, points, strict=True)
    ]
    found = np.linalg.lstsq(np.array(equations), np.array(seconds), rcond=None)[0]
    return ShardWork(*(max(0.0, float(value)) for value in found))


def measure_ray(
    workload: Workload, rates: ShardRates, jobs: dict[int, Job], workers: int, private_bytes: float
) -> RayRates:
    """Measure the costs of Ray: its memory with few clients, and its calls at the sizes of `choose_points`.

    jobs: the job of each size, by number of clients.
    """
    points = choose_points(workload)
    with use_cluster(ClusterSettings(workers)):
        tiny_clients = min(TINY_CLIENTS, points[-1][0])
        tiny = workload.with_clients(tiny_clients, tiny_clients)
        before = read_proportional_size(os.getpid())
        fit_all([tiny.build_job()], tiny.build_schedule(2, "ray"))
        grown = read_proportional_size(os.getpid()) - before
        daemons, of_shards = split_processes(list_descendants(os.getpid()))
        daemon_bytes = max(0, grown) + sum(map(read_proportional_size, daemons))
        resident = [read_process_status(process)["RssAnon"] for process in of_shards]
        beyond = [
            measure_calls(workload.with_clients(*point), jobs[point[0]], rates, workers) for point in points
        ]
    worker_bytes = max(0.0, statistics.fmean(resident) - private_bytes)
    # Messages have rows of sampled clients alone. What seems to grow with all clients is noise, which larger
    # numbers of clients would multiply.
    calls = solve_growth(beyond, points)._replace(per_client=0.0)
    return RayRates(calls, daemon_bytes, worker_bytes)


def split_processes(processes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the processes that Ray needs itself, and those of shards, whose titles name their class."""
    of_shards = [process for process in processes if "ShardActor" in read_title(process)]
    return [process for process in processes if process not in of_shards], of_shards


def measure_calls(workload: Workload, job: Job, rates: ShardRates, workers: int) -> float:
    """Return the seconds of a round of Ray beyond those of the shards and of the process that leads them."""
    ends: list[float] = []
    schedule = workload.build_schedule(RAY_ROUNDS, "ray")
    fit_all([job], schedule, on_round=lambda _: ends.append(time.perf_counter()))
    seconds = take_lower_quartile(np.diff(ends[RAY_WARM_UP_ROUNDS - 1 :]).tolist())
    clients, sampled = workload.clients, workload.cohort_size
    known = rates.driver.seconds(clients, sampled) + rates.work.seconds(clients, sampled) / workers
    return max(0.0, seconds - known)
