"""Hold `fedlap plan` against runs of several methods and models, by one process and by workers of Ray.

The cases are a method whose workers send sums of uploads, one that merges in the first process, a model of
10,000 parameters, and long local work; the federation, and how seconds are measured, are those of
`benchmarks.large_federations`. Memory is the largest sum of the proportional set sizes of all processes, and
that of the largest worker. Bytes between processes are counted by shards in one process. Exits with 1 where
a prediction is off by more than a factor of 1.5.

    python -m benchmarks.large_methods [--clients 10000] [--cases fedavg,scaffold,…] [--results FILE]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fedlap as fl
from benchmarks.counting import CountingCluster
from benchmarks.large_federations import (
    SAMPLE,
    STRENGTH,
    WARM_UP,
    MemoryMeter,
    average_rounds,
    build_settings,
    build_workload,
    is_near,
    open_or_write,
)
from benchmarks.results import write_section
from fedlap.algorithms import ALGORITHMS
from fedlap.costs.calibration import calibrate
from fedlap.costs.estimate import Estimate, Machines, estimate_spread, estimate_stacked
from fedlap.costs.memory import read_proportional_size, read_title
from fedlap.costs.method_sizes import count_method_sizes
from fedlap.costs.workload import Workload
from fedlap.data import FederationFolder
from fedlap.models import MODELS
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.shards.cluster import ClusterSettings, use_cluster

ROUNDS: Final = 80
COUNTED_ROUNDS: Final = 5
HEADERS = (
    "case", "clients", "engine", "ms/round", "predicted", "ratio", "GB in all", "predicted", "ratio",
    "GB per worker", "predicted", "ratio", "MB sent/round", "predicted", "ratio",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A method with its settings, and a model with its own."""

    title: str
    algorithm: str
    settings: dict[str, Any]
    model: tuple[str, dict[str, Any]] = ("linear", {})


CASES: Final = {
    "fedavg": Case("fedavg, 33 parameters", "fedavg", {}),
    "scaffold": Case("scaffold, 33 parameters", "scaffold", {}),
    "mlp": Case("fedu, 10,503 parameters", "fedu", {}, ("mlp", {"hidden": (750,)})),
    "long": Case("fedu, 33 parameters, 500 local steps", "fedu", {"local_steps": 500, "strength": 0.0005}),
}


class Engine(NamedTuple):
    """The engine of a case: with threads of one process, or workers with one thread each."""

    name: str
    threads: int
    workers: int

    @property
    def title(self) -> str:
        """The words of the table."""
        if self.name == "stacked":
            return f"stacked, {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"ray, {self.workers} workers"


class Found(NamedTuple):
    """Seconds and memory of a run."""

    seconds: float
    bytes: float
    worker_bytes: float


class WorkerMeter(MemoryMeter):
    """Records the largest memory of a worker as well."""

    largest = 0

    def measure_sizes(self, processes: Sequence[int]) -> list[int]:
        """Return the sizes of processes."""
        sizes = [read_proportional_size(process) for process in processes]
        workers = (
            size
            for process, size in zip(processes, sizes, strict=True)
            if "ShardActor" in read_title(process)
        )
        self.largest = max(self.largest, *workers, 0)
        return sizes


def build_case(case: Case, clients: int) -> Workload:
    """Return the workload of a case, as `fedlap plan` is given it."""
    workload = build_workload(build_settings(clients))
    return replace(workload, algorithm=(case.algorithm, case.settings), model=case.model)


def build_job(folder: FederationFolder, case: Case) -> Job:
    """Return the training of a case on the rows and the graph of a folder."""
    settings = case.settings
    if case.algorithm == "fedu":
        settings = {"graph": folder.graph, "strength": STRENGTH, **settings}
    name, sizes = case.model
    return Job(ALGORITHMS[case.algorithm](**settings), folder.open(), MODELS[name](**sizes))


def train(folder: FederationFolder, case: Case, engine: Engine) -> list[float]:
    """Train, and return the seconds of each round."""
    job, ends = build_job(folder, case), list[float]()
    fl.fit(
        job.algorithm,
        job.federation,
        job.model,
        rounds=WARM_UP + ROUNDS,
        sample=SAMPLE,
        engine=engine.name,
        evaluate_every=0,
        on_round=lambda _: ends.append(time.perf_counter()),
        **({"workers": engine.workers} if engine.name == "ray" else {}),
    )
    return np.diff(ends[WARM_UP - 1 :]).tolist()


def measure(folder: FederationFolder, case: str, engine: Engine) -> Found:
    """Measure a run in a separate process."""
    words = ["--only", str(folder.path), "--cases", case, "--engine", json.dumps(engine)]
    command = [sys.executable, "-m", "benchmarks.large_methods", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(engine.threads)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        meter = WorkerMeter(process.pid)
        meter.start()
        printed, _ = process.communicate()
        meter.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Found(average_rounds(json.loads(printed.splitlines()[-1])), meter.peak, meter.largest)


def count_sent(workload: Workload, job: Job, workers: int) -> float:
    """Return the bytes between processes per round, counted by shards in this process."""
    cluster, moved = CountingCluster(workers), [0]
    with use_cluster(ClusterSettings(workers)) as session:
        session.cluster = cluster
        schedule = workload.build_schedule(COUNTED_ROUNDS + 1, "ray")
        fit_all([job], schedule, on_round=lambda _: moved.append(cluster.moved))
    return moved[COUNTED_ROUNDS] / COUNTED_ROUNDS


def describe(
    case: Case, workload: Workload, job: Job, engine: Engine, found: Found, estimate: Estimate
) -> list[str]:
    """Return the cells of a row."""
    pairs = [
        (1000 * found.seconds, 1000 * estimate.round_seconds),
        (found.bytes / 1e9, estimate.machine_bytes / 1e9),
    ]
    if engine.name == "ray":
        sent = count_sent(workload, job, engine.workers), estimate.network_bytes
        pairs += [(found.worker_bytes / 1e9, estimate.worker_bytes / 1e9), (sent[0] / 1e6, sent[1] / 1e6)]
    cells = [f"{value:.3g}" for one, other in pairs for value in (one, other, other / one)]
    row = [case.title, f"{workload.clients:,}", engine.title, *cells]
    return row + [""] * (len(HEADERS) - len(row))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a prediction is too far off."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="where the federation is written")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", type=Path, help="train on this folder and print the seconds of its rounds")
    parser.add_argument("--engine", help="of --only, as JSON")
    options = parser.parse_args(words)
    cases = {name: CASES[name] for name in options.cases.split(",")}
    if options.only:
        engine = Engine(*json.loads(options.engine))
        torch.set_num_threads(engine.threads)
        (case,) = cases.values()
        print(json.dumps(train(FederationFolder.of(options.only), case, engine)))
        return 0
    load = os.getloadavg()[0]
    console, rows, near = Console(width=200), [], True
    with tempfile.TemporaryDirectory() as temporary:
        folder = open_or_write(options.folder or Path(temporary), options.clients)
        for name, case in cases.items():
            workload = build_case(case, folder.clients)
            sizes, rates = count_method_sizes(workload), {}
            for engine in (
                Engine("stacked", 1, 1),
                Engine("stacked", options.workers, 1),
                Engine("ray", 1, options.workers),
            ):
                if engine.threads not in rates:
                    rates[engine.threads] = calibrate(workload, engine.threads, options.workers)
                known = rates[engine.threads]
                machine = Machines(engine.workers, 1, known.loopback_rate, known.loopback_latency)
                estimate = (
                    estimate_stacked(workload, sizes, known)
                    if engine.name == "stacked"
                    else estimate_spread(workload, sizes, known, machine)
                )
                found = measure(folder, name, engine)
                job = build_job(folder, case)
                rows.append(describe(case, workload, job, engine, found, estimate))
                near &= all(is_near(float(ratio)) for ratio in rows[-1][5::3] if ratio)
                console.print(" | ".join(rows[-1]))
    table = Table(*HEADERS)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if options.results:
        about = (
            "a hundredth of the clients per round, float32; load by others before the start "
            f"{load:.1f}; `python -m benchmarks.large_methods`"
        )
        write_section(options.results, "large federations, methods", about, HEADERS, rows)
    return int(not near)


if __name__ == "__main__":
    sys.exit(main())
