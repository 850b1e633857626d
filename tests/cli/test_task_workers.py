"""Ray workers of compare, sweep, tune and reproduce: the bits of one process, lost workers, and stops."""

import json
import shutil
from contextlib import contextmanager

import pytest

import interrupted_stacks
from fedlap.training.shards.cluster import ClusterSettings
from ray_marks import RAY_MARKS
from small_recipes import SMALL

pytestmark = RAY_MARKS

DATA = ("--data", "synthetic", "--set", "data.clients=5", "--set", "data.rows=16", "--rounds", "6")
COMPARE = ("compare", *DATA, "--algorithms", "fedu,local", "--seeds", "0,1")
COMMANDS = {
    "compare": COMPARE,
    "sweep": ("sweep", *DATA, "--vary", "batch=5,all", "--vary", "strength=0,0.1", "--seeds", "0,1"),
    "tune": ("tune", *DATA, "--algorithm", "ditto", "--vary", "batch=5,all", "--vary", "lr=0.05,0.1"),
}
# Facts that differ between two trainings of one run: times, and names of command and folder.
VARYING = {"seconds", "command", "folder", "tuned", "commands"}


@pytest.fixture(scope="module")
def started_ray():
    """A Ray that all tests of this file use."""
    from fedlap.training.shards.ray_session import start_ray, stop_ray

    assert start_ray(ClusterSettings(2))
    yield
    stop_ray()


@pytest.fixture
def train(call, started_ray, tmp_path):
    """Run a command, and return its facts and the bytes of all models; the folder is removed."""

    def run(*words):
        code, out, err = call(*words, "--json", "--threads", "1")
        assert code == 0, err
        folder = tmp_path / "runs"
        models = {path.parts[-3]: path.read_bytes() for path in folder.glob("*/models/models.safetensors")}
        shutil.rmtree(folder)
        return drop_varying(json.loads(out)), models

    return run


def drop_varying(facts):
    """Return facts without those that differ between two trainings."""
    if isinstance(facts, dict):
        return {key: drop_varying(value) for key, value in facts.items() if key not in VARYING}
    return [drop_varying(value) for value in facts] if isinstance(facts, list) else facts


@pytest.mark.parametrize("name", COMMANDS)
def test_workers_give_the_bits_of_one_process(train, name):
    facts, models = train(*COMMANDS[name], "--workers", "2")
    expected, expected_models = train(*COMMANDS[name])
    assert facts == expected
    assert models == expected_models
    assert models


@pytest.mark.slow
def test_reproduced_tables_are_those_of_one_process(call, started_ray, tmp_path):
    other = (
        '[cells.other]\ntitle = "other"\ndata = { name = "digits" }\nmodel = { name = "mlp", hidden = [4] }\n'
    )
    (tmp_path / "table.toml").write_text(f"{SMALL}\n{other}")
    words = ("reproduce", str(tmp_path / "table.toml"), "--seeds", "0,3", "--no-page", "--threads", "1")

    def read_runs():
        lines = (tmp_path / "runs" / "ledger.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        shutil.rmtree(tmp_path / "runs")
        return {entry["run"]: drop_varying(entry) for entry in entries}

    code, out, err = call(*words, "--address", "auto", "--workers", "2")
    assert code == 0, err
    assert err.count("Local: tuning, 20 runs") == 2
    runs = read_runs()
    code, expected, err = call(*words)
    assert code == 0, err
    assert out == expected
    assert runs == read_runs()


def test_a_lost_worker_changes_no_bit(train, monkeypatch):
    expected = train(*COMPARE)
    monkeypatch.setattr(
        "fedlap.comparisons.stack_tasks.train_stored_stack", interrupted_stacks.train_and_end_once
    )
    assert train(*COMPARE, "--workers", "2", "--save-rounds", "1") == expected


def test_a_task_is_repeated_once(call, started_ray, monkeypatch):
    monkeypatch.setattr("fedlap.comparisons.stack_tasks.train_stored_stack", interrupted_stacks.train_and_end)
    code, _, err = call(*COMPARE, "--workers", "1")
    assert code == 2
    assert err.count("its task is repeated") == 1
    assert "2 workers ended during the same task" in err.splitlines()[-1]


def test_a_stopped_command_resumes(train, call, monkeypatch, tmp_path):
    expected = train(*COMPARE)
    words = (*COMPARE, "--workers", "2")

    @contextmanager
    def stop_when_waiting():
        yield lambda: len(list((tmp_path / "runs").glob("*.interrupted"))) == 2

    with monkeypatch.context() as patch:
        patch.setattr("fedlap.cli.train_runs.stop_on_signal", stop_when_waiting)
        patch.setattr(
            "fedlap.comparisons.stack_tasks.train_stored_stack", interrupted_stacks.train_until_stopped
        )
        code, _, err = call(*words)
    assert code == 130
    assert f"stopped after round {interrupted_stacks.ROUND}, checkpoint saved" in err
    code, _, err = call(*words)
    assert code == 0
    assert f"4 of 4 runs resume from round {interrupted_stacks.ROUND}" in err
    assert train(*words) == expected


def test_mistakes_are_one_line(call, started_ray):
    code, _, err = call(*COMPARE, "--workers", "1000")
    assert code == 2
    assert "workers = 1000, but the cluster has 2 CPUs" in err.splitlines()[-1]
    code, _, err = call(*COMPARE, "--workers", "2", "--set", "engine=ray")
    assert code == 2
    assert "engine = 'ray' divides the clients of a run" in err.splitlines()[-1]
