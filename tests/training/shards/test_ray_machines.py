"""Ray on two machines, which are two sessions of processes on loopback: full ones, lost ones, absent ones."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

import pytest
import torch

import fedlap as fl
from fedlap.training.shards.cluster import LOOPBACK_VARIABLE
from ray_marks import RAY_MARKS

pytestmark = RAY_MARKS

LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by the address of the machine.
SECONDS = 240  # for steps that take some seconds; a busy machine needs longer
STORE_BYTES = 80_000_000  # the smallest that Ray allows, rounded up

# The disk counts as full, so that Ray does not write there what its memory has no room for.
NODE_VARIABLES = {"RAY_local_fs_capacity_threshold": "0.001", "RAY_local_fs_monitor_interval_ms": "100"}
NODE = """
from ray.scripts.scripts import main
from fedlap.training.shards.ray_session import skip_dashboard
with skip_dashboard():
    main()
"""
START = """
import sys, time, ray, torch, fedlap as fl
address, path = sys.argv[1:]
ray.init(address, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.2)
ray.shutdown()
torch.set_num_threads(1)
settings = {"sample": 0.5, "seed": 1, "dtype": "float64", "engine": "ray", "workers": 2, "address": address}
"""
TRAIN = """
federation, graph = fl.data.load_with_graph("radon")
method = fl.FedU(graph, strength=0.01)
torch.save(fl.fit(method, federation, fl.models.linear(), rounds=6, **settings).models, path)
"""
FILL = """
large = fl.data.LargeSynthetic(clients=10_000, structure="ring", features=100, rows=40)
method = fl.FedU(large.build_graph(), strength=0.01)
try:
    fl.fit(method, large.generate(), fl.models.linear(), rounds=2, **settings)
except fl.InputError as error:
    print(error)
"""
TRAIN_ON = """
federation, graph = fl.data.load_with_graph("radon")
method = fl.FedU(graph, strength=0.01)
try:
    settings |= {"rounds": 10**6, "on_round": lambda _: open(path, "w")}
    fl.fit(method, federation, fl.models.linear(), **settings)
except fl.InputError as error:
    print(error)
"""


def start(*words, **variables):
    """Start Python in a session of its own, as on another machine."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", **variables}
    environment.pop(LOOPBACK_VARIABLE, None)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        [sys.executable, *words], env=environment, start_new_session=True, text=True, **streams
    )


def end(process, kind=signal.SIGTERM):
    """End a process and the session that it leads, and return what it printed."""
    with suppress(ProcessLookupError):  # It has ended, and so has its session.
        os.killpg(process.pid, kind)
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def find_free_port():
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def wait_until(is_true, process):
    """Wait for a condition that holds while a process runs."""
    for _ in range(10 * SECONDS):
        if is_true():
            return
        assert process.poll() is None, end(process)
        time.sleep(0.1)
    raise AssertionError("timed out")


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


@pytest.fixture
def processes():
    """Processes that end with the test, the last one first."""
    started = []
    yield started
    for process in reversed(started):
        end(process, signal.SIGKILL if process.poll() is None else signal.SIGTERM)


@pytest.fixture
def start_machines(processes):
    """Start two machines of one core each, and return the address of their cluster."""
    # A short path, which holds sockets; the file with the last address would stay in the usual folder.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:

        def run():
            port = find_free_port()
            node = ["-c", NODE, "start", "--block", "--num-cpus=1", f"--node-ip-address={LOOPBACK}"]
            node += [f"--object-store-memory={STORE_BYTES}"]
            head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
            processes.append(start(*node, *head, **NODE_VARIABLES))
            wait_until(lambda: answers(port), processes[0])
            processes.append(start(*node, f"--address={LOOPBACK}:{port}", **NODE_VARIABLES))
            return f"{LOOPBACK}:{port}"

        yield run
        for process in reversed(processes):
            end(process)


@pytest.fixture
def drive(processes):
    """Start a driver that waits for both machines and runs a script."""

    def run(address, script, path):
        processes.append(start("-c", START + script, address, str(path)))
        return processes[-1]

    return run


def finish(driver):
    printed, _ = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, printed
    return printed


def test_two_machines_train_as_one_process_and_say_when_they_are_full(
    tmp_path, shards, start_machines, drive
):
    address, path = start_machines(), tmp_path / "models"
    finish(drive(address, TRAIN, path))
    shards(1)
    federation, graph = fl.data.load_with_graph("radon")
    settings = {"rounds": 6, "sample": 0.5, "seed": 1, "dtype": "float64"}
    method = fl.FedU(graph, strength=0.01)
    expected = fl.fit(method, federation, fl.models.linear(), engine="ray", **settings).models
    assert torch.equal(torch.load(path), expected)
    message = finish(drive(address, FILL, path)).splitlines()[-1]
    assert message.startswith("a machine of the cluster is full (Local disk is full)")


@pytest.mark.slow
def test_a_lost_machine_is_one_line(tmp_path, start_machines, processes, drive):
    address, path = start_machines(), tmp_path / "started"
    driver = drive(address, TRAIN_ON, path)
    wait_until(path.exists, driver)
    end(processes[1], signal.SIGKILL)
    assert "a machine was lost" in finish(driver).splitlines()[-1]


@pytest.mark.parametrize("address", ["auto", f"{LOOPBACK}:1", "nowhere.invalid:6379"])
def test_a_cluster_that_does_not_answer_is_one_line_at_once(address, monkeypatch):
    """Ray itself would try for minutes, in which Ctrl-C is not answered."""
    from fedlap.training.shards import ray_session

    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_session.ray, "init", lambda **_: pytest.fail("Ray was started"))
    # As Ray's file names it, which stays when a cluster was killed.
    monkeypatch.setenv("RAY_ADDRESS", f"{LOOPBACK}:1")
    with pytest.raises(fl.InputError, match=r"cannot be used \(no answer from .*start it by `ray start`"):
        ray_session.start_ray(ray_session.ClusterSettings(address=address))
