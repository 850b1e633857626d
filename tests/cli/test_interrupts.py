"""Signals to a process that trains: the first lets the round end and saves, the second stops at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TINY = ("--data", "synthetic", "--set", "data.clients=4", "--set", "data.rows=20")
WORDS = ("run", *TINY, "--algorithm", "scaffold")
MANY = ("--rounds", "1000000", "--set", "evaluate_every=3")


@pytest.fixture
def start_training(tmp_path):
    """Start a process that trains, and wait until it does."""
    started = []

    def start(wanted, *words):
        command = [sys.executable, "-m", "fedlap.cli", *words, "--out", str(tmp_path / "runs")]
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(running)
        while not any(path.stat().st_size for path in (tmp_path / "runs").glob(f"*/{wanted}")):
            assert running.poll() is None, running.communicate()
            time.sleep(0.02)
        return running

    yield start
    for running in started:
        running.kill()
        running.communicate()


def rounds(folder):
    """The lines of rounds.jsonl but for the times."""
    return [{**json.loads(line), "seconds": 0} for line in (folder / "rounds.jsonl").read_text().splitlines()]


def is_caught(pid, number):
    """Return whether a process has a handler of a signal; where the system does not tell, after a second."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        time.sleep(1.0)
        return True
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(mask >> (number - 1) & 1)


def find_last_round(folder):
    return max(int(path.name[-8:]) for path in (folder / "checkpoint").glob("round-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_round_end_and_saves(number, start_training, call, tmp_path):
    running = start_training("rounds.jsonl", *WORDS, *MANY)
    running.send_signal(number)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert "Stopping after this round (press Ctrl-C again to quit now)" in err
    (folder,) = (tmp_path / "runs").iterdir()
    at = find_last_round(folder)
    assert err.splitlines()[-1] == f"stopped after round {at}, checkpoint saved; repeat the command to resume"
    assert rounds(folder)[-1]["round"] in range(at - 2, at + 1)
    assert (folder / "models" / "models.safetensors").exists()
    same_as_unbroken(folder, at + 4, call, tmp_path)


def test_a_second_signal_stops_at_once(start_training, call, tmp_path):
    """In the middle of a round that would take long; what was saved before is of use."""
    long = ("--local-steps", "5000000", "--batch", "all", "--rounds", "3")
    running = start_training("experiment.toml", *WORDS, *long)
    while not is_caught(running.pid, signal.SIGTERM):
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    assert "Stopping after this round" in running.stderr.readline()
    time.sleep(0.2)  # nobody is quicker
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, ""), err
    assert err == "error: interrupted\n"
    (folder,) = (tmp_path / "runs").iterdir()
    assert rounds(folder) == []
    (line,) = call("runs", "--json")[1].splitlines()
    assert json.loads(line)["state"] == "unfinished"
    assert "no checkpoint yet" in call("show", str(folder))[2]


def same_as_unbroken(folder, last, call, tmp_path):
    """Resume up to round `last` and compare everything with a run that was never stopped."""
    words = ("--rounds", str(last), "--set", "evaluate_every=3")
    assert call(*WORDS, *words)[0] == 0
    assert call(*WORDS, *words, "--out", str(tmp_path / "other"), out=False)[0] == 0
    other = tmp_path / "other" / folder.name
    assert find_last_round(folder) == find_last_round(other) == last
    assert rounds(folder) == rounds(other)
    for name in ("models/models.safetensors", f"checkpoint/round-{last:08d}/state.safetensors"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
