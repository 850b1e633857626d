"""Measure on this machine what a training costs: seconds and bytes per client, from a small one of its kind.

The measurement runs in a process of its own, so that its memory is the training's alone.
"""

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from fedlap.costs.growth import Growth, solve_growth, take_lower_quartile
from fedlap.costs.memory import measure_memory, read_process_status
from fedlap.costs.shard_calibration import ShardRates, measure_shards
from fedlap.costs.workload import Workload
from fedlap.errors import InputError
from fedlap.randomness import digest_names
from fedlap.training.assemble import assemble
from fedlap.training.client_sampling import SamplingGroup
from fedlap.training.cohorts import RoundCohort
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.state import apply_updates

# The measured federations have at most as many clients as planned. For a large plan, the larger one exceeds
# the caches of a processor, so that its clients cost as much as those of any larger one; the others show
# which costs grow with all clients, and which with sampled.
MEASURED_BYTES: Final = 512_000_000  # of rows, models and neighbours
MOST_CLIENTS, LEAST_CLIENTS, STEPS_APART = 400_000, 20, 10
SMALLER_SHARE: Final = 0.6  # of the clients of the larger federation, where memory is measured as well
MEASURED_SECONDS, LEAST_ROUNDS, WARM_UP_ROUNDS = 0.3, 8, 2
ROSTER_CLIENTS: Final = 100_000
MOST_SAMPLED: Final = 1_000_000  # clients of the measured draw; more cost the same each
COPIED_VALUES: Final = 32_000_000  # float32 numbers, 128 MB
SOCKET_BYTES, SOCKET_MESSAGES = 64_000_000, 200


class PhaseSeconds(NamedTuple):
    """Seconds of the phases of a round."""

    draw: float  # of the cohort
    local: float
    merge: float  # with sending and writing the new models


@dataclass(frozen=True)
class Rates:
    """The costs of a workload on this machine.

    draw, local, merge: seconds of the phases of a round in one process.
    shared_bytes, private_bytes: memory of any process, shared with others of its machine or not.
    client_bytes: memory per client where clients train and are scored.
    block_bytes: memory of scoring beyond that; it works in blocks, so it grows up to `block_clients` clients.
    roster_bytes: memory per client that is known by name only.
    copy_rate: bytes read or written per second. cores: CPUs of the machine.
    loopback_rate: bytes per second between processes. loopback_latency: seconds of a message and its answer.
    """

    draw: Growth
    local: Growth
    merge: Growth
    shared_bytes: float
    private_bytes: float
    client_bytes: float
    block_bytes: float
    block_clients: int
    roster_bytes: float
    copy_rate: float
    cores: int
    loopback_rate: float
    loopback_latency: float
    shards: ShardRates | None = None  # None unless they are measured

    @staticmethod
    def of(values: dict[str, Any]) -> "Rates":
        """Build rates from plain values, as a process prints them."""
        growths = {name: Growth(*values[name]) for name in ("draw", "local", "merge")}
        shards = None if values["shards"] is None else ShardRates.of(values["shards"])
        return Rates(**{**values, **growths, "shards": shards})

    def count_client_memory(self, clients: float) -> float:
        """Return the memory of this many clients where they train and are scored."""
        return self.client_bytes * clients + self.block_bytes * min(1.0, clients / self.block_clients)


def calibrate(workload: Workload, threads: int, workers: int = 1) -> Rates:
    """Measure the rates of a workload in a new process with this many threads, and of shards if several."""
    command = [sys.executable, "-m", "fedlap.costs.calibration", str(threads), str(workers)]
    done = subprocess.run(
        command, input=json.dumps(asdict(workload)), capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"its process ended with code {done.returncode}"]
        reason = lines[-1].partition("; ")[0]  # without the advice, which is for a run
        raise InputError(f"the calibration failed ({reason}); use a smaller model or fewer rows")
    return Rates.of(json.loads(done.stdout.splitlines()[-1]))


def measure_rates(workload: Workload) -> Rates:
    """Measure the rates of a workload in this process, which should do nothing else."""
    warm_up = workload.with_clients(LEAST_CLIENTS, LEAST_CLIENTS)
    fit_all([warm_up.build_job()], warm_up.build_schedule(2))
    resident, anonymous = measure_memory()
    roster = _measure_roster()
    points = choose_sizes(workload)
    most, sampled = points[-1]
    smaller = max(1, int(SMALLER_SHARE * most))
    fewer = workload.with_clients(smaller, max(1, smaller * sampled // most))
    smaller_memory = _measure_training(fewer, fewer.build_job())
    jobs = {most: workload.with_clients(most, most).build_job()}
    memory = _measure_training(workload.with_clients(most, sampled), jobs[most])
    jobs |= {few: workload.with_clients(few, few).build_job() for few, _ in points if few != most}
    client_bytes = max(0.0, (memory.resident - smaller_memory.resident) / (most - smaller))
    phases = [measure_phases(workload.with_clients(*point), jobs[point[0]]) for point in points]
    growths = {
        name: solve_growth([getattr(of_point, name) for of_point in phases], points)
        for name in PhaseSeconds._fields
    }
    growths["local"] = growths["local"]._replace(per_client=0.0)  # what is measured there is noise
    if workload.is_sampled:
        growths["draw"] = growths["draw"]._replace(per_client=measure_sampling(workload.clients))
    rate, latency = measure_loopback()
    shared = resident - anonymous
    return Rates(
        draw=growths["draw"],
        local=growths["local"],
        merge=growths["merge"],
        shared_bytes=shared,
        private_bytes=max(anonymous, memory.resident - client_bytes * most - shared),
        client_bytes=client_bytes,
        block_bytes=memory.peak - memory.resident,
        block_clients=most,
        roster_bytes=roster,
        copy_rate=measure_copy_rate(),
        cores=len(os.sched_getaffinity(0)),
        loopback_rate=rate,
        loopback_latency=latency,
    )


def choose_sizes(workload: Workload) -> list[tuple[int, int]]:
    """Return the numbers of clients, and of sampled ones, that are measured.

    One of the two grows from each point to the next; without sampling both do.
    """
    room = min(MOST_CLIENTS, MEASURED_BYTES // workload.measured_client_bytes, workload.clients)
    most = max(LEAST_CLIENTS, room)
    few = max(2, most // STEPS_APART)
    if not workload.is_sampled:
        return [(few, few), (most, most)]
    fewest = max(1, few // STEPS_APART // STEPS_APART)
    return [(few, fewest), (most, fewest), (most, STEPS_APART * fewest)]


# Time.


class ClockedSampler:
    """A sampler whose time is added up, also while the engine draws ahead."""

    def __init__(self, sampler: Any) -> None:
        """Start at zero seconds."""
        self._sampler, self.seconds = sampler, 0.0

    def draw(self, round: int) -> RoundCohort:
        """Draw the cohort of a round."""
        cohort: RoundCohort = self._clock(self._sampler.draw, round)
        return cohort

    def prepare(self, round: int) -> None:
        """Draw the cohort of the next round."""
        self._clock(self._sampler.prepare, round)

    def _clock(self, function: Any, round: int) -> Any:
        began = time.perf_counter()
        value = function(round)
        self.seconds += time.perf_counter() - began
        return value


def measure_phases(workload: Workload, job: Job) -> PhaseSeconds:
    """Measure the phases of a round of the stacked engine; the lower quartile over rounds."""
    rounds, began = [], time.perf_counter()
    for phases in play_clocked(workload, job):
        rounds.append(phases)
        if len(rounds) >= LEAST_ROUNDS and time.perf_counter() - began > MEASURED_SECONDS:
            break
    return PhaseSeconds(
        *(take_lower_quartile(values) for values in zip(*rounds[WARM_UP_ROUNDS:], strict=True))
    )


@torch.no_grad()
def play_clocked(workload: Workload, job: Job) -> Iterator[PhaseSeconds]:
    """Play rounds as `training.loop.play` does, and yield the seconds of their phases."""
    most = 1_000_000
    training = assemble([job], workload.build_schedule(most))
    method, engine, server = training.method, training.engine, training.server
    sampler: Any = ClockedSampler(engine.sampler)
    engine.sampler = sampler  # type: ignore[misc]
    for round in range(1, most + 1):
        sampler.seconds, began = 0.0, time.perf_counter()
        cohort = sampler.draw(round)
        down = method.send(server, cohort.ids) if method.has_server else None
        drawn, asked = sampler.seconds, time.perf_counter()
        replies = engine.local(method, round, cohort, down)
        answered, prepared = time.perf_counter(), sampler.seconds - drawn
        if method.has_server:
            server = apply_updates(server, method.merge(server, replies.ids, replies.up))
        else:
            engine.mix(method, round, replies.up)
        whole, local = time.perf_counter() - began, answered - asked - prepared
        yield PhaseSeconds(sampler.seconds, local, whole - local - sampler.seconds)


def measure_sampling(clients: int) -> float:
    """Return the seconds per client to draw a hundredth of them; engines may draw several rounds at once."""
    clients = min(clients, MOST_SAMPLED)
    digests = torch.arange(clients).unsqueeze(0)
    group = SamplingGroup([0], digests, max(1, clients // 100))
    times = []
    for round in range(1, 5):
        began = time.perf_counter()
        group.draw(range(round, round + 1), torch.device("cpu"))
        times.append(time.perf_counter() - began)
    return take_lower_quartile(times) / clients


def measure_copy_rate() -> float:
    """Return the bytes read or written per second by a copy that exceeds all caches."""
    one, other = torch.zeros(COPIED_VALUES), torch.zeros(COPIED_VALUES)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        other.copy_(one)
        times.append(time.perf_counter() - began)
    return 2 * one.nbytes / min(times)


def measure_loopback() -> tuple[float, float]:
    """Return bytes per second, and seconds of a message and its answer, over a connection to this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_answer, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            for _ in range(SOCKET_MESSAGES):
                line.sendall(b"x")
                line.recv(1)
            latency = (time.perf_counter() - began) / SOCKET_MESSAGES
            began = time.perf_counter()
            line.sendall(bytes(SOCKET_BYTES))
            line.shutdown(socket.SHUT_WR)
            line.recv(1)
            seconds = time.perf_counter() - began
        echo.join()
    return SOCKET_BYTES / seconds, latency


def _answer(server: socket.socket) -> None:
    """Answer each single byte, then read all until the end and answer once."""
    line, _ = server.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(SOCKET_MESSAGES):
            line.recv(1)
            line.sendall(b"x")
        while line.recv(1 << 20):
            pass
        line.sendall(b"x")


# Memory.


class TrainingMemory(NamedTuple):
    """Resident bytes of a process between rounds, and the most of them until its last round is scored."""

    resident: int
    peak: int


def _measure_training(workload: Workload, job: Job) -> TrainingMemory:
    """Measure the memory of a training that scores its last round."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # returns what building the job has freed
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    resident: list[int] = []
    fit_all([job], workload.build_schedule(2), on_round=lambda _: resident.append(measure_memory()[0]))
    return TrainingMemory(resident[0], read_process_status()["VmHWM"])


def _measure_roster() -> float:
    """Return the memory per client of names, digests and counts."""
    before = measure_memory()[0]
    names = tuple(map(str, range(ROSTER_CLIENTS)))
    digests, counts = digest_names(names), torch.ones(ROSTER_CLIENTS, dtype=torch.int64)
    grown = measure_memory()[0] - before
    del names, digests, counts
    return grown / ROSTER_CLIENTS


def print_rates() -> None:
    """Read a workload from standard input, and print its rates as JSON."""
    torch.set_num_threads(int(sys.argv[1]))
    workload, workers = Workload.of(json.load(sys.stdin)), int(sys.argv[2])
    try:
        rates = measure_rates(workload)
        if workers > 1:
            torch.set_num_threads(1)
            rates = replace(rates, shards=measure_shards(workload, workers, rates.private_bytes))
    except InputError as error:
        sys.exit(str(error))
    print(json.dumps(asdict(rates)))


if __name__ == "__main__":
    print_rates()
