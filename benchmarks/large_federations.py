"""Measure rounds and memory of up to a million clients, and compare them with `fedlap plan`.

A hundredth of the clients is sampled per round; each has about 10 training rows of 10 features, 10
neighbours, and a logistic model. Their rows are in a folder of memory-mapped arrays. Every row of the table
is measured in a separate process; seconds are the lower quartile over means of up to 20 consecutive rounds,
since an engine may draw the cohorts of 20 rounds at once. Memory is the largest sum of the proportional set
sizes of all processes, which another process with the same libraries lowers. The predictions are those of
`fedlap plan`. At the smallest size, FedAvg by Flower's simulation and by pfl-research is measured too. Exits
with 1 where a prediction is off by more than a factor of 1.5.

    python -m benchmarks.large_federations [--clients 10000,100000,1000000] [--workers 2] [--folder FOLDER]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fedlap as fl
from benchmarks.alternatives import ALTERNATIVES, AlternativeError, UnavailableError
from benchmarks.alternatives.protocol import family
from benchmarks.results import write_section
from fedlap.costs.calibration import Rates, calibrate
from fedlap.costs.estimate import Estimate, Machines, estimate_spread, estimate_stacked
from fedlap.costs.growth import take_lower_quartile
from fedlap.costs.memory import read_proportional_size
from fedlap.costs.method_sizes import count_method_sizes
from fedlap.costs.workload import Workload
from fedlap.data import FederationFolder, LargeSynthetic, write_federation

SAMPLE, STRENGTH, MOST_RATIO = 0.01, 0.01, 1.5
SETTINGS: dict[str, Any] = {"structure": "geometric", "rows": 10, "test_rows": 2}
LEAST_ROUNDS, MOST_ROUNDS, SAMPLED_PER_RUN, WARM_UP = 10, 200, 200_000, 3
SECONDS_BETWEEN_SIZES = 0.05
PAUSE_PER_LOOK = 20  # so that looking at memory takes a twentieth of a core at most
MOST_AVERAGED = 20  # rounds
ALTERNATIVE_ROUNDS = 5
HEADERS = (
    "clients", "engine", "ms/round", "predicted", "ratio", "µs per sampled client", "GB in all", "predicted",
    "ratio",
)  # fmt: skip


class Measured(NamedTuple):
    """Seconds and memory of a run."""

    seconds: float  # of a round
    bytes: float  # of all its processes


def build_settings(clients: int) -> LargeSynthetic:
    """Return the settings of a federation of this size."""
    return LargeSynthetic(clients=clients, **SETTINGS)


def build_workload(settings: LargeSynthetic, algorithm: str = "fedu") -> Workload:
    """Return the workload of a federation, as `fedlap plan` is given it."""
    return Workload(
        settings.clients,
        settings.rows,
        settings.test_rows,
        settings.features,
        settings.labels,
        graph=settings.structure,
        degree=settings.degree,
        algorithm=(algorithm, {}),
        sample=SAMPLE,
    )


def open_or_write(folder: Path, clients: int) -> FederationFolder:
    """Return the folder of a federation of this size; it is written unless it is there."""
    settings, path = build_settings(clients), folder / f"{clients}"
    if (path / "federation.json").exists() and LargeSynthetic(
        **FederationFolder.of(path).settings
    ) == settings:
        return FederationFolder.of(path)
    return write_federation(path, settings)


def train(folder: FederationFolder, engine: str, workers: int) -> list[float]:
    """Train, with workers unless the engine is stacked, and return the seconds of each round."""
    ends: list[float] = []
    most = SAMPLED_PER_RUN // max(1, int(SAMPLE * folder.clients))
    options = {} if engine == "stacked" else {"workers": workers}
    fl.fit(
        fl.FedU(folder.graph, strength=STRENGTH),
        folder.open(),
        fl.models.linear(),
        rounds=WARM_UP + min(MOST_ROUNDS, max(LEAST_ROUNDS, most)),
        sample=SAMPLE,
        engine=engine,
        evaluate_every=0,
        on_round=lambda _: ends.append(time.perf_counter()),
        **options,
    )
    return np.diff(ends[WARM_UP - 1 :]).tolist()


def measure(folder: FederationFolder, engine: str, workers: int) -> Measured:
    """Measure a run in a separate process."""
    words = ["--only", str(folder.path), "--engine", engine, "--workers", str(workers)]
    command = [sys.executable, "-m", "benchmarks.large_federations", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        meter = MemoryMeter(process.pid)
        meter.start()
        printed, _ = process.communicate()
        meter.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Measured(average_rounds(json.loads(printed.splitlines()[-1])), meter.peak)


def average_rounds(seconds: Sequence[float]) -> float:
    """Return the lower quartile over means of consecutive rounds, as many as an engine may draw at once."""
    number = min(MOST_AVERAGED, len(seconds) // 4)
    windows = np.array(seconds[: len(seconds) // number * number]).reshape(-1, number)
    return take_lower_quartile(windows.mean(1).tolist())


class MemoryMeter(threading.Thread):
    """Records the largest sum of the proportional set sizes of a process and its descendants."""

    def __init__(self, process: int) -> None:
        """Meter the process of this number."""
        super().__init__(daemon=True)
        self._process, self.peak = process, 0

    def run(self) -> None:
        """Add up the sizes again and again."""
        while processes := family(self._process):
            began = time.perf_counter()
            sizes = self.measure_sizes(processes)
            looked = time.perf_counter() - began
            self.peak = max(self.peak, sum(sizes))
            if not any(sizes):
                return
            time.sleep(max(SECONDS_BETWEEN_SIZES, PAUSE_PER_LOOK * looked))

    def measure_sizes(self, processes: Sequence[int]) -> list[int]:
        """Return the sizes of processes."""
        return [read_proportional_size(process) for process in processes]


def predict(workload: Workload, engine: str, rates: Rates, workers: int) -> Estimate:
    """Return the estimate of `fedlap plan`."""
    sizes = count_method_sizes(workload)
    if engine == "stacked":
        return estimate_stacked(workload, sizes, rates)
    machine = Machines(workers, 1, rates.loopback_rate, rates.loopback_latency)
    return estimate_spread(workload, sizes, rates, machine)


def describe(clients: int, engine: str, found: Measured, estimate: Estimate) -> list[str]:
    """Return the cells of a row."""
    ratios = compute_ratios(found, estimate)
    return [
        f"{clients:,}", engine, f"{1000 * found.seconds:.3g}", f"{1000 * estimate.round_seconds:.3g}",
        f"{ratios[0]:.2f}", f"{1e6 * found.seconds / max(1, int(SAMPLE * clients)):.3g}",
        f"{found.bytes / 1e9:.3g}", f"{estimate.machine_bytes / 1e9:.3g}", f"{ratios[1]:.2f}",
    ]  # fmt: skip


def describe_missing(clients: int, title: str, reason: str) -> list[str]:
    """Return the cells of a row without numbers, and why there are none."""
    lines = reason.strip().splitlines() or ["no reason"]
    cells = [f"{clients:,}", f"{title}: unavailable here ({lines[0].replace('|', '/')})"]
    return [*cells, *[""] * (len(HEADERS) - len(cells))]


def compute_ratios(found: Measured, estimate: Estimate) -> tuple[float, float]:
    """Return predicted over measured seconds and bytes."""
    return estimate.round_seconds / found.seconds, estimate.machine_bytes / found.bytes


def is_near(ratio: float) -> bool:
    """Return whether a prediction is within the factor that is required."""
    return 1 / MOST_RATIO <= ratio <= MOST_RATIO


def compare_alternatives(folder: FederationFolder, threads: int, console: Console) -> list[list[str]]:
    """Measure FedAvg on the training rows of a folder by every system that is available."""
    federation, rows = folder.open(), []
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "clients.npz"
        train = federation.train
        np.savez(data, x=train.store, y=train.y, client=train.find_owners(), sample=SAMPLE)
        for name in ("ours", "flower", "pfl_research"):
            console.print(f"starting {name} …", style="dim")
            try:
                with ALTERNATIVES[name].running(data, threads) as system:
                    seconds = take_lower_quartile([system.round() for _ in range(ALTERNATIVE_ROUNDS)])
                    title = f"{system.ready['system']} {system.ready['version']}: FedAvg"
                    per_client = f"{1e6 * seconds / max(1, int(SAMPLE * folder.clients)):.3g}"
                    size, cost = f"{system.peak_mb() / 1000:.3g}", f"{1000 * seconds:.3g}"
                    rows.append([f"{folder.clients:,}", title, cost, "", "", per_client, size, "", ""])
            except (UnavailableError, AlternativeError) as reason:
                console.print(f"{name} is unavailable here: {reason}", style="yellow")
                rows.append(describe_missing(folder.clients, name, str(reason)))
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a prediction is too far off."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", default="10000,100000,1000000", help="sizes, comma-separated")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--folder", type=Path, help="where the federations are written, and left for the next time"
    )
    parser.add_argument("--engine", default="stacked,ray", help="engines, comma-separated")
    parser.add_argument("--alone", action="store_true", help="without other systems")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", type=Path, help="train on this folder and print the seconds of its rounds")
    options = parser.parse_args(words)
    if options.only:
        torch.set_num_threads(1)
        print(json.dumps(train(FederationFolder.of(options.only), options.engine, options.workers)))
        return 0
    console, rows, near = Console(width=150), [], True
    with tempfile.TemporaryDirectory() as temporary:
        folders = [
            open_or_write(options.folder or Path(temporary), int(size)) for size in options.clients.split(",")
        ]
        rates = calibrate(build_workload(build_settings(folders[-1].clients)), 1, options.workers)
        for folder in folders:
            workload = build_workload(build_settings(folder.clients))
            for engine in options.engine.split(","):
                title = engine if engine == "stacked" else f"{engine}, {options.workers} workers"
                if engine == "ray" and find_spec("ray") is None:
                    rows.append(describe_missing(folder.clients, title, "run pip install 'fedlap[ray]'"))
                    continue
                found = measure(folder, engine, options.workers)
                estimate = predict(workload, engine, rates, options.workers)
                near &= all(map(is_near, compute_ratios(found, estimate)))
                rows.append(describe(folder.clients, title, found, estimate))
                console.print(" | ".join(rows[-1]))
        if not options.alone:
            rows += compare_alternatives(folders[0], options.workers, console)
    table = Table(*HEADERS)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if options.results:
        about = (
            "FedU, logistic models of 10 features, a hundredth of the clients per round, float32, one thread "
            "per process; `make bench-ray`"
        )
        write_section(options.results, "large federations", about, HEADERS, rows)
    return int(not near)


if __name__ == "__main__":
    sys.exit(main())
