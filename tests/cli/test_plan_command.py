"""`fedlap plan`: its tables, its JSON, and mistakes. The measurement is replaced, but for one slow test."""

import json

import pytest

from cost_rates import RATES
from fedlap.cli import plan


@pytest.fixture
def measurements(monkeypatch):
    """Replace the measurement, and return the workloads that were to be measured."""
    workloads = []

    def calibrate(workload, threads, workers):
        workloads.append((workload, threads, workers))
        return RATES

    monkeypatch.setattr(plan, "calibrate", calibrate)
    return workloads


def test_a_plan_names_limits_and_assumptions(call, measurements):
    words = (
        "--clients",
        "1e4,1e6",
        "--sample",
        "0.01",
        "--workers",
        "4",
        "--graph",
        "ring",
        "--threads",
        "1",
    )
    code, out, err = call("plan", *words, out=False)
    assert (code, err) == (0, "")
    ray = "5 ms per round and 0.2 µs per sampled client; 400 MB per machine and 70 MB per worker"
    words = (
        "1,000,000",
        "stacked",
        "ray",
        "driver",
        "at the workers",
        "gathering",
        "4 workers on 1 machine",
        "assumed",
        "100 at a driver",
        ray,
    )
    for word in words:
        assert word in " ".join(out.split()), word
    ((workload, threads, workers),) = measurements  # measured once, for the largest number
    assert (workload.clients, workload.sample, workload.graph) == (10**6, 0.01, "ring")
    assert (threads, workers) == (1, 4)


def test_a_plan_as_json(call, measurements):
    words = ("--clients", "1e8", "--memory", "16", "--algorithm", "pfedme", "--set", "algorithm.lr=0.1")
    code, out, _ = call("plan", *words, "--json", out=False)
    answer = json.loads(out)
    assert code == 0
    assert answer["merges"] == "server"
    (estimate,) = answer["estimates"]
    assert (estimate["engine"], estimate["clients"], estimate["fits"]) == ("stacked", 10**8, False)
    assert estimate["round_seconds"] == pytest.approx(sum(estimate["seconds"].values()))
    assert measurements[0][0].algorithm[1]["lr"] == 0.1


def test_bandwidth_and_latency_replace_the_measured_ones(call, measurements):
    seconds = []
    for words in ((), ("--bandwidth", "0.001", "--latency", "50")):
        cluster = ("--workers", "4", "--machines", "2", *words)
        _, out, _ = call("plan", "--clients", "1e6", "--sample", "0.01", *cluster, "--json", out=False)
        seconds.append(json.loads(out)["estimates"][1]["seconds"]["network"])
    assert seconds[1] > seconds[0] + 2 * 0.0499


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--clients", "many"),
            "--clients many: expected whole numbers of clients",
        ),
        (("--clients", "0"), "--clients 0: expected whole numbers of clients from 1 to 1e12"),
        (("--clients", "inf"), "--clients inf: expected whole numbers of clients"),
        (("--clients", "1.5,1e4"), "--clients 1.5,1e4: expected whole numbers of clients"),
        (("--clients", "1e30"), "--clients 1e30: expected whole numbers of clients from 1 to 1e12"),
        (
            ("--clients", "100", "--degree", "9999999"),
            "--degree 9999999: expected less than the smallest number of clients, 100",
        ),
        (("--workers", "0"), "Invalid value for '--workers': 0; expected at least 1"),
        (("--workers", "two"), "Invalid value for '--workers': two; expected an integer"),
        (("--algorithm", "mocha"), "has server state that grows with the square of the clients"),
        (("--algorithm", "fedfomo"), "has server state that grows with the square of the clients"),
        (("--bandwidth", "0"), "--bandwidth = 0.0; expected a finite number above zero"),
        (("--latency", "-1"), "--latency = -1.0; expected a finite number of at least zero"),
        (("--memory", "-16"), "--memory = -16.0; expected a finite number above zero"),
        (("--algorithm", "global", "--workers", "2"), "pools all rows into one client"),
        (("--machines", "2"), "--machines 2: expected at most one per worker"),
        (("--set", "data.rows=3"), "--set data.rows=3: plan only uses algorithm and model; remove it"),
        (("--graph", "star"), "unknown graph of a plan 'star'"),
        (("--algorithm", "fedu-learned"), "learns a weight per pair of clients"),
        (("--algorithm", "fedx"), "unknown algorithm 'fedx'"),
        (("--set", "algorithm.mu=3"), "algorithm.mu: unknown setting"),
        (("--sample", "2"), "sample = 2"),
        (("plan.toml",), "unexpected extra argument"),
    ],
)
def test_mistakes_are_reported_before_anything_is_measured(call, measurements, words, message):
    code, _, err = call("plan", *words, out=False)
    assert code == 2
    assert message in err
    assert not measurements


@pytest.mark.slow
def test_a_plan_is_measured(call):
    code, out, err = call("plan", "--clients", "1e5", "--sample", "0.01", "--json", out=False)
    assert code == 0, err
    (estimate,) = json.loads(out)["estimates"]
    assert estimate["round_seconds"] > 0
    assert estimate["machine_bytes"] > 1e8
