"""The estimate of a training's cost: memory, bytes and seconds per round, and what limits it."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from fedlap.algorithms.interface import MergePlace
from fedlap.costs.calibration import Rates
from fedlap.costs.growth import Growth
from fedlap.costs.method_sizes import MethodSizes
from fedlap.costs.shard_calibration import RayRates, count_busy_blocks, measure_block
from fedlap.costs.workload import Workload, check_poolable
from fedlap.errors import InputError
from fedlap.storage.mapped_tensors import MAPPED_BYTES
from fedlap.training.shards.gathering import PIECE_BYTES

Limit = Literal["driver", "compute", "memory bandwidth", "network"]

CALLS_PER_ROUND: Final[dict[MergePlace, int]] = {"neighbours": 2, "sum": 1, "server": 1}
MIXING_CALLS: Final = 3  # of peers that mix at the driver: local work, gathering and writing their state
NO_RAY: Final = RayRates(Growth(0, 0, 0), 0, 0)  # where it is not installed
ID_BYTES: Final = 8  # of a client's number in a message
# Of the state of shards, in the object store of their machine: the last checkpoint, and what later rounds
# changed, which a new checkpoint replaces when it is as large.
STORED_COPIES: Final = 2
MIXED_COPIES: Final = 3  # of the state of peers that mix at the driver: before, after, and on its way back
BOUND_SHARE: Final = (
    0.5  # of the measured time that moving the bytes alone must take, for memory to be the limit
)


@dataclass(frozen=True)
class Machines:
    """The processes that train: one thread each.

    workers: their number. machines: those over which workers are spread evenly. bandwidth: bytes per second
    between machines. latency: seconds of a message and its answer.
    """

    workers: int
    machines: int
    bandwidth: float
    latency: float

    def count_parallel(self, cores: int) -> int:
        """Return how many workers run at the same time on machines with this many cores."""
        return self.machines * min(math.ceil(self.workers / self.machines), cores)


@dataclass(frozen=True)
class Estimate:
    """The cost of a training.

    driver_bytes: memory of the process with the server, or of the only one. worker_bytes: of each worker.
    machine_bytes: memory of all processes on the machine with the driver, with those of Ray and its object
    store, which holds the state of shards for the restart of a worker.
    disk_bytes: files for temporary data that the driver maps when it gathers states and models: at
    checkpoints, and at the end.
    client_traffic: bytes that clients send and receive per round, as in a deployment.
    network_bytes: bytes between processes per round.
    seconds: seconds of a round, by what limits them.
    """

    driver_bytes: float
    worker_bytes: float
    machine_bytes: float
    disk_bytes: float
    client_traffic: float
    network_bytes: float
    seconds: dict[Limit, float]

    @property
    def round_seconds(self) -> float:
        """Seconds of a round: its parts follow each other."""
        return sum(self.seconds.values())

    @property
    def limit(self) -> Limit:
        """The part that takes most of a round."""
        return max(self.seconds, key=lambda part: self.seconds[part])


def estimate_stacked(workload: Workload, sizes: MethodSizes, rates: Rates) -> Estimate:
    """Estimate a training in one process, by the engine `stacked`."""
    clients, sampled = workload.clients, workload.cohort_size
    memory = rates.shared_bytes + rates.private_bytes + rates.count_client_memory(clients)
    seconds = _add_parts(
        ("driver", rates.draw.seconds(clients, sampled) if workload.is_sampled else 0.0),
        _locate_limit(rates.local.seconds(clients, sampled), count_local_bytes(workload), rates),
        _locate_limit(rates.merge.seconds(clients, sampled), count_merge_bytes(workload), rates),
    )
    return Estimate(memory, 0.0, memory, 0.0, count_client_traffic(workload, sizes), 0.0, seconds)


def estimate_spread(workload: Workload, sizes: MethodSizes, rates: Rates, cluster: Machines) -> Estimate:
    """Estimate a training by workers with shards of clients, and a driver that knows clients by name."""
    check_poolable(workload)
    shards = rates.shards
    if shards is None:
        raise InputError("the rates are of one process; calibrate with several workers", field="workers")
    clients, sampled, workers = workload.clients, workload.cohort_size, cluster.workers
    merges_at_driver = workload.merge_place != "neighbours"
    gathered, disk_bytes = count_gathered_bytes(workload, sizes)
    driver = rates.private_bytes + rates.roster_bytes * clients + gathered
    if merges_at_driver:
        driver += sizes.fixed_server + sizes.server * clients
        driver += 0.0 if workload.has_server else MIXED_COPIES * sizes.private * clients
    worker = rates.private_bytes + rates.count_client_memory(clients / workers)
    at_machine = math.ceil(workers / cluster.machines)
    parallel = cluster.count_parallel(rates.cores)
    ray = shards.ray or NO_RAY
    worker += ray.worker_bytes
    moved = count_spread_bytes(workload, sizes, workers)
    stored = STORED_COPIES * count_shard_state(workload, sizes) * clients / cluster.machines
    bytes_of_work = count_local_bytes(workload) + (0 if merges_at_driver else count_merge_bytes(workload))
    steps = (
        CALLS_PER_ROUND[workload.merge_place] if workload.has_server or not merges_at_driver else MIXING_CALLS
    )
    calls = steps * cluster.latency + ray.calls.seconds(clients, sampled)
    seconds = _add_parts(
        ("driver", shards.driver.seconds(clients, sampled)),
        _locate_limit(shards.work.seconds(clients, sampled) / parallel, bytes_of_work / parallel, rates),
        ("network", moved / cluster.bandwidth + calls),
    )
    return Estimate(
        driver + rates.shared_bytes,
        worker + rates.shared_bytes,
        rates.shared_bytes + driver + at_machine * worker + ray.daemon_bytes + stored,
        disk_bytes,
        count_client_traffic(workload, sizes),
        moved,
        seconds,
    )


def _add_parts(*parts: tuple[Limit, float]) -> dict[Limit, float]:
    """Add up the seconds of parts with the same limit."""
    sums: dict[Limit, float] = {}
    for limit, seconds in parts:
        sums[limit] = sums.get(limit, 0.0) + seconds
    return sums


def _locate_limit(seconds: float, moved: float, rates: Rates) -> tuple[Limit, float]:
    """Return whether memory or arithmetic limits a part of a round that moves these bytes; its seconds."""
    bound = moved / rates.copy_rate > BOUND_SHARE * seconds
    return ("memory bandwidth" if bound else "compute"), seconds


def count_local_bytes(workload: Workload) -> float:
    """Return the bytes that local work must move: every row of a batch once, every model in and out."""
    rows = workload.trained_rows * (4 * workload.features + 8)
    return workload.cohort_size * (rows + 8 * workload.parameters)


def count_merge_bytes(workload: Workload) -> float:
    """Return the bytes that a merge must move: a model per neighbour, and the own one in and out."""
    neighbours = workload.degree if workload.merge_place == "neighbours" else 0
    return workload.cohort_size * (neighbours + 2) * 4 * workload.parameters


def count_client_traffic(workload: Workload, sizes: MethodSizes) -> float:
    """Return the bytes that clients send and receive per round."""
    return workload.cohort_size * (sizes.up + sizes.down)


def count_spread_bytes(workload: Workload, sizes: MethodSizes, workers: int) -> float:
    """Return the bytes between the driver and the workers, and between workers, per round.

    Where neighbours merge, every worker gets the numbers of the cohort, and the shard of a sampled client the
    rows of its neighbours in other shards. Otherwise workers get the numbers of their clients and messages to
    them, one if all clients get an equal one, and the driver gets the uploads; where a sum of uploads
    suffices, one from each block of clients. Peers that mix at the driver send all of their state there, and
    get it back. What a round changes stays on the machine of its worker.
    """
    sampled, place = workload.cohort_size, workload.merge_place
    if place == "neighbours":
        row = sizes.message if workload.has_server else sizes.private
        outside = min(sampled * workload.degree * cut_share(workload, workers), workload.clients)
        return ID_BYTES * sampled * workers + outside * (row + ID_BYTES)
    down = sampled * (sizes.down - sizes.equal_down) + workers * sizes.equal_down
    if not workload.has_server:
        down = 2 * workload.clients * sizes.private
    uploads = count_busy_blocks(workload.clients, sampled) if place == "sum" else sampled
    return ID_BYTES * sampled + down + uploads * sizes.message


def count_gathered_bytes(workload: Workload, sizes: MethodSizes) -> tuple[float, float]:
    """Return the memory and the mapped files of the driver while it gathers all states and all models."""
    clients = workload.clients
    tables = sizes.model * clients, count_shard_state(workload, sizes) * clients
    piece = min(max(tables), max(PIECE_BYTES, sizes.model * measure_block(clients)))
    mapped = sum(table for table in tables if table >= MAPPED_BYTES)
    return sum(tables) - mapped + piece, mapped


def count_shard_state(workload: Workload, sizes: MethodSizes) -> float:
    """Return the bytes per client of the state in a shard: private, and the server's if neighbours merge."""
    return sizes.private + (sizes.server if workload.merge_place == "neighbours" else 0.0)


def cut_share(workload: Workload, workers: int) -> float:
    """Return the share of a client's neighbours that are in another shard of consecutive clients."""
    clients, degree, cuts = workload.clients, workload.degree, workers - 1
    if not degree or not cuts:
        return 0.0
    if workload.graph == "random":
        return 1 - 1 / workers
    if workload.graph == "clusters":  # a cut goes through the middle of a cluster, at most
        cut_edges = cuts * ((degree + 1) / 2) ** 2
    elif workload.graph == "ring":
        cut_edges = workers * (degree / 2) * (degree / 2 + 1) / 2
    else:  # edges of length up to r that cross a line of length √N, at one client per unit of area
        cut_edges = cuts * math.sqrt(clients) * 2 / 3 * ((degree + 1) / math.pi) ** 1.5
    return min(1 - 1 / workers, cut_edges / (clients * degree / 2))
