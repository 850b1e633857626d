"""Runs that are killed at random moments and resumed each time end like runs that were never killed.

A few kills here; `make torture` kills every run twenty times.
"""

import os
import random
import resource
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import fedlap as fl
from child_processes import start_child, wait_for_child
from fedlap.algorithms import ALGORITHMS
from fedlap.errors import DivergedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan
from method_kinds import PEER_METHODS

KILLS = int(os.environ.get("FEDLAP_KILLS", "2"))
SEEDS = {"alone": [3], "stack": [3, 4, 5]}
DATA = {"name": "synthetic", "clients": 8, "rows": 12, "test_rows": 6}
SETTINGS = {"mocha": {"strength": 0.1}, "fedper": {}}
WORKS = {"steps": {"local_steps": 2}, "epochs": {"local_epochs": 1}}


def experiments(name, work, seeds, rounds):
    sampled = name not in PEER_METHODS
    return [
        Experiment.of(
            {
                "data": DATA,
                "graph": {"name": "known"},
                "model": {"name": "mlp", "hidden": [6]}
                if name in ("fedper", "fedrep")
                else {"name": "linear"},
                "algorithm": {"name": name, **WORKS[work], **SETTINGS.get(name, {})},
                "rounds": rounds,
                "batch": 4,
                "sample": 0.5 if sampled else 1.0,
                "seed": seed,
                "evaluate_every": 3,
            }
        )
        for seed in seeds
    ]


def train(out, ready):
    """All that is left, saved after every round."""
    plan = ResumePlan.of(out, ready)
    for _, outcome in plan.train(plan.pack(), ProgressCallbacks(CheckpointInterval(rounds=1))):
        assert not isinstance(outcome, DivergedError)


def read_results(out):
    """Return the results of runs without times: tensors bit by bit, and scores."""
    found = {}
    for path in sorted(out.rglob("*.safetensors")):
        at = path.relative_to(out)
        found.update({(str(at), name): tensor for name, tensor in load_file(path).items()})
    lines = {}
    for path in sorted(out.glob("*/rounds.jsonl")):
        scores = [line.rpartition(b', "seconds": ')[0] for line in path.read_bytes().splitlines()]
        assert all(scores)
        lines[path.parent.name] = scores
    return found, lines


def torture(tmp_path, ready, kills, seed):
    began = time.monotonic()
    assert wait_for_child(start_child(train, tmp_path / "unbroken", ready)) == 0
    lasted = time.monotonic() - began
    draw, killed = random.Random(seed), 0
    while killed < kills:
        if (
            wait_for_child(
                start_child(train, tmp_path / "broken", ready), draw.uniform(0, 1.5 * lasted / kills)
            )
            < 0
        ):
            killed += 1
        else:  # it was done before; so that there are as many kills as asked for, from the beginning
            shutil.rmtree(tmp_path / "broken")
    assert wait_for_child(start_child(train, tmp_path / "broken", ready)) == 0
    check_equal(tmp_path, ready)


def check_equal(tmp_path, ready):
    """Check that both runs left the same results, to the last bit."""
    (one, lines), (other, also) = read_results(tmp_path / "unbroken"), read_results(tmp_path / "broken")
    assert lines == also
    assert all(len(scores) == -(-ready[0].experiment.rounds // 3) for scores in lines.values())
    last = {key for key in one if f"round-{ready[0].experiment.rounds:08d}" in key[0] or "models" in key[0]}
    assert len(last) >= 2 * len(ready)
    assert all(torch.equal(one[key], other[key]) for key in last)


QUICK = ("fedu", "fedu-learned", "scaffold", "mocha", "apfl")  # the others are slow ones
TORTURED = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ALGORITHMS]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["steps", pytest.param("epochs", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TORTURED)
def test_killed_runs_end_as_unbroken_ones(tmp_path, name, work):
    ready = list(prepare(experiments(name, work, SEEDS["alone"], rounds=10 + KILLS)))
    torture(tmp_path, ready, KILLS, f"{name} {work}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedu", "scaffold"])
def test_killed_stacks_end_as_unbroken_ones(tmp_path, name):
    ready = list(prepare(experiments(name, "steps", SEEDS["stack"], rounds=10 + KILLS)))
    torture(tmp_path, ready, KILLS, name)


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "checkpoint/*/state.safetensors"], ids=["line", "checkpoint"]
)
def test_a_full_disk_costs_no_more_than_what_was_not_saved(tmp_path, name):
    """No file may grow to nine tenths of what this one had in the end, as if the disk were full by then."""
    ready = list(prepare(experiments("fedu", "steps", SEEDS["alone"], rounds=30)))
    assert wait_for_child(start_child(train, tmp_path / "unbroken", ready)) == 0
    size = max(path.stat().st_size for path in tmp_path.glob(f"unbroken/*/{name}"))
    reading, writing = os.pipe()

    def within():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * 9 // 10, size * 9 // 10))
        try:
            train(tmp_path / "broken", ready)
        except fl.InputError as error:
            os.write(writing, str(error).encode())

    assert wait_for_child(start_child(within)) == 0
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    assert "cannot be written" in text
    assert "File too large" in text
    assert "make room there" in text
    assert wait_for_child(start_child(train, tmp_path / "broken", ready)) == 0
    check_equal(tmp_path, ready)
