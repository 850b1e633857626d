"""Runs in shards on the command line: their numbers, and a first process that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from benchmarks.alternatives.protocol import family
from safetensors.torch import load_file

from fedlap.training.shards.cluster import ClusterSettings, open_cluster
from ray_marks import RAY_MARKS

pytestmark = RAY_MARKS

SECONDS = 240  # for processes that end within some seconds; a busy machine needs longer
# Two agents of Ray wait this long, and else for a minute, for a server of Ray that has ended.
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
DATA = ("--data", "synthetic", "--set", "data.clients=40", "--set", "data.rows=20", "--graph", "known")
WORDS = ("run", *DATA, "--sample", "0.5", "--set", "evaluate_every=20", "--engine", "ray")


@pytest.fixture(scope="module")
def ray_started():
    """Ray with three cores in this process, which all runs of this process use."""
    cluster = open_cluster(ClusterSettings(3))
    yield
    cluster.close()


def call_well(call, out, *words):
    """Run a command in this process and return the folder of its run."""
    code, _, err = call(*words, "--out", str(out), out=False)
    assert code == 0, err
    (folder,) = out.iterdir()
    return folder


def read_run(folder):
    """Return the models and the scores, without times, of a run."""
    tensors = load_file(folder / "models" / "models.safetensors")
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return tensors, [{**json.loads(line), "seconds": None} for line in lines]


def assert_equal_runs(folder, other):
    (tensors, scores), (same_tensors, same_scores) = read_run(folder), read_run(other)
    assert tensors.keys() == same_tensors.keys()
    assert all(torch.equal(tensors[name], same_tensors[name]) for name in tensors)
    assert scores == same_scores
    assert len(scores) > 1


def is_running(process, began):
    """Return whether the process that began then has not ended; nobody may have asked for its exit code."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == began and fields[0] not in "ZX"


def kill_at_a_checkpoint(out, *words):
    """Start a command in a process, kill it after its first checkpoint, and return all its processes."""
    command = [sys.executable, "-m", "fedlap.cli", *words, "--save-rounds", "1", "--out", str(out)]
    environment = {**os.environ, **PATIENCE, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as run:
        while not list(out.glob("*/checkpoint/round-*")):
            assert run.poll() is None, run.stderr.read().decode()
            time.sleep(0.01)
        processes = family(run.pid)
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    return processes


def test_a_run_on_the_command_line_has_the_numbers_of_shards_in_one_process(
    call, ray_started, shards, tmp_path
):
    words = *WORDS, "--rounds", "40"
    folder = call_well(call, tmp_path / "ray", *words, "--workers", "2")
    shards(1)
    assert_equal_runs(folder, call_well(call, tmp_path / "one", *words))


def test_a_killed_first_process_takes_its_workers_along_and_resumes_to_the_same_bits(
    call, ray_started, shards, tmp_path
):
    words = *WORDS, "--rounds", "80"
    processes = kill_at_a_checkpoint(tmp_path / "killed", *words, "--workers", "2")
    assert len(processes) > 3  # Ray, and two workers
    for _ in range(10 * SECONDS):
        if not (left := [pid for pid, began in processes.items() if is_running(pid, began)]):
            break
        time.sleep(0.1)
    assert not left
    (folder,) = (tmp_path / "killed").iterdir()
    assert not (folder / "models").exists()
    resumed = call_well(call, folder.parent, "resume", str(folder), "--workers", "3")
    shards(1)
    assert_equal_runs(resumed, call_well(call, tmp_path / "unbroken", *words))
