"""Measure the time of scoring and of training: every round, and with the interval that fedlap chooses.

    python -m benchmarks.scoring [--results benchmarks/RESULTS.md] [--threads 1] [--device cpu]

Each workload is trained by FedU with 5 local steps of 20 rows. `training/scoring_interval.py` chooses the
interval by counting: the last column is the cost of a round as a number of scored rows, and the column before
it is the measured number, which is low where few rows are scored, since a scoring has a fixed cost, too. The
exit code is 1 if scoring takes longer than training on a workload with the chosen interval.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import fedlap as fl
from benchmarks.results import write_section
from fedlap.training import recorder
from fedlap.training.engines import Engine
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.recorder import Recorder
from fedlap.training.schedule import Schedule
from fedlap.training.scoring_interval import (
    SCORED_ROWS_PER_TRAINED_ROW,
    choose_interval,
    count_scored_rows,
    count_trained_rows,
    estimate_fixed_rows,
)

ROUNDS = 100
REPEATS = 3
HEADERS = [
    "workload",
    "sample",
    "ms/round",
    "ms/scoring, test rows",
    "every round, training rows too",
    "every round",
    "chosen interval",
    "interval",
    "scored rows per round, measured",
    "counted",
]


@dataclass(frozen=True)
class Workload:
    """A model on some clients, with the share that is sampled per round."""

    name: str
    load: Callable[[], fl.Federation]
    model: fl.models.Architecture
    sample: float


def load_activity() -> fl.Federation:
    """Load Human Activity."""
    return fl.data.load("har")


def load_many() -> fl.Federation:
    """Generate 2,000 synthetic clients, with 100 test rows each."""
    return fl.data.load("synthetic", clients=2000)


WORKLOADS = [
    Workload("digits, linear", lambda: fl.data.load("digits"), fl.models.linear(), 1.0),
    Workload("radon, linear", lambda: fl.data.load("radon"), fl.models.linear(), 1.0),
    Workload("Human Activity, linear", load_activity, fl.models.linear(), 1.0),
    Workload("Human Activity, linear", load_activity, fl.models.linear(), 0.1),
    Workload("Human Activity, MLP 100", load_activity, fl.models.mlp((100,)), 1.0),
    Workload("Human Activity, MLP 100", load_activity, fl.models.mlp((100,)), 0.1),
    Workload("2,000 synthetic clients, linear", load_many, fl.models.linear(), 1.0),
    Workload("2,000 synthetic clients, linear", load_many, fl.models.linear(), 0.01),
    Workload("2,000 synthetic clients, MLP 20", load_many, fl.models.mlp((20,)), 0.1),
]


@dataclass(frozen=True)
class Spent:
    """Seconds of a run: training, and all scorings."""

    training: float
    scoring: float


def train(job: Job, schedule: Schedule, clock: Callable[[], float]) -> Spent:
    """Train a run and measure its scorings, without the training that a device had still to finish."""
    calls: list[float] = []
    add_scores = Recorder.add_scores

    def measure_scoring(record: Recorder, engine: Engine, *arguments: Any) -> None:
        engine.wait()
        began = clock()
        add_scores(record, engine, *arguments)
        calls.append(clock() - began)

    with (
        patch.object(Recorder, "add_scores", measure_scoring),
        patch.object(recorder, "time", SimpleNamespace(perf_counter=clock)),
    ):
        (result,) = fit_all([job], schedule)
    assert isinstance(result, fl.Result)
    return Spent(result.progress.seconds, sum(calls))


def measure(workload: Workload, device: str, clock: Callable[[], float]) -> tuple[list[str], bool]:
    """Return the cells of a workload, and whether scoring took less time than training."""
    federation = workload.load()
    method = fl.FedU(fl.Graph.complete(federation.clients), strength=1e-4)
    job = Job(method, federation, workload.model)
    automatic = Schedule(ROUNDS, sample=workload.sample, device=device)
    schedules = [
        replace(automatic, evaluate_every=1, score_training="always"),
        replace(automatic, evaluate_every=1),
        automatic,
    ]
    train(job, replace(automatic, rounds=5), clock)
    turns = [[train(job, schedule, clock) for schedule in schedules] for _ in range(REPEATS)]
    shares = [
        statistics.median(turn[place].scoring / turn[place].training for turn in turns)
        for place in range(len(schedules))
    ]
    round = statistics.median(turn[2].training for turn in turns) / ROUNDS
    score = statistics.median(turn[1].scoring for turn in turns) / ROUNDS
    rows = count_scored_rows(method, federation, automatic)
    counted = SCORED_ROWS_PER_TRAINED_ROW * count_trained_rows(method, federation, automatic)
    counted += estimate_fixed_rows(federation, workload.model)
    cells = [
        workload.name,
        f"{workload.sample:g}",
        f"{1e3 * round:.2f}",
        f"{1e3 * score:.2f}",
        *(f"{100 * share:.0f} %" for share in shares),
        str(choose_interval(job, automatic)),
        f"{round / (score / rows):,.0f}",
        f"{counted:,.0f}",
    ]
    return cells, shares[2] < 1


def main() -> int:
    """Measure, print, write the table if asked to, and return 1 if scoring took longer than training."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # The processor time of one thread is the same on a busy machine; several threads or a GPU need a clock.
    alone = options.device == "cpu" and options.threads == 1
    clock = time.process_time if alone else time.perf_counter
    lines, met = [], True
    for workload in WORKLOADS:
        try:
            cells, cheaper = measure(workload, options.device, clock)
        except fl.InputError as error:
            print(f"{workload.name}: skipped, {error}")
            continue
        met &= cheaper
        lines.append(cells)
        print(" | ".join(cells), flush=True)
    where = f"{options.threads} threads" if options.device == "cpu" else torch.cuda.get_device_name()
    where = "1 thread, processor time" if alone else where
    if options.results is not None:
        about = (
            f"{where}; FedU, 5 steps of 20 rows, {ROUNDS} rounds, medians of {REPEATS}, in turns; scoring in "
            "% of the training time; `python -m benchmarks.scoring`"
        )
        write_section(options.results, f"scoring, {where}", about, HEADERS, lines)
    print("scoring took less time than training" if met else "MISSED: scoring took longer than training")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
