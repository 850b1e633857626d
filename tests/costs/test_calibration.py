"""Measured rates: of rounds that train as they should, and plain values on the way between processes."""

import json
import subprocess
from dataclasses import asdict, replace
from io import StringIO

import pytest
import torch

import fedlap as fl
from cost_rates import RATES
from fedlap.costs import calibration
from fedlap.costs.calibration import Rates, choose_sizes, play_clocked
from fedlap.costs.memory import read_process_status
from fedlap.costs.shard_calibration import (
    ClockedCluster,
    ShardWork,
    choose_points,
    measure_shards,
    solve_work,
)
from fedlap.costs.workload import Workload
from fedlap.training.assemble import assemble
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.shards.cluster import ClusterSettings, use_cluster

TINY = Workload(60, rows=4, test_rows=1, features=3, degree=4, sample=0.5)


@pytest.mark.parametrize("algorithm", ["fedu", "fedavg", "dfedu", "scaffold"])
def test_clocked_rounds_have_phases(algorithm):
    workload = Workload(60, rows=4, features=3, algorithm=(algorithm, {}), sample=1.0)
    rounds = play_clocked(workload, workload.build_job())
    for _ in range(3):
        phases = next(rounds)
        assert phases.local > 0
        assert phases.merge > 0


def test_shards_that_are_clocked_train_as_one_process():
    job, schedule = TINY.build_job(), TINY.build_schedule(3)
    (expected,) = fit_all([job], schedule)
    with use_cluster(ClusterSettings(2)) as session:
        session.cluster = cluster = ClockedCluster(2)
        (found,) = fit_all([job], TINY.build_schedule(3, "ray"))
    assert cluster.seconds > 0
    assert torch.allclose(found.models, expected.models, atol=1e-5)


def test_rates_of_shards_are_measured(monkeypatch):
    monkeypatch.setattr("fedlap.costs.shard_calibration.find_spec", lambda name: None)
    monkeypatch.setattr("fedlap.costs.shard_calibration.ROUNDS", 5)
    rates = measure_shards(TINY, 2, 0.0)
    assert rates.ray is None
    assert rates.work.seconds(3_200, 32) > 0


def test_rates_and_workloads_survive_json():
    assert Rates.of(json.loads(json.dumps(asdict(RATES)))) == RATES
    workload = Workload(60, model=("mlp", {"hidden": (4, 3)}), algorithm=("fedu", {"lr": 0.1}))
    assert Workload.of(json.loads(json.dumps(asdict(workload)))) == workload


def test_measured_sizes_change_one_number_at_a_time():
    (few, fewest), (most, same), (again, sampled) = choose_sizes(Workload(10**8, sample=0.01))
    assert few < most == again
    assert fewest == same < sampled
    assert choose_sizes(Workload(10**8))[0][0] == choose_sizes(Workload(10**8))[0][1]
    large_model = Workload(10**6, features=3_000, model=("mlp", {"hidden": (1_000,)}))
    assert choose_sizes(large_model)[-1][0] < 100


def test_measured_shards_have_no_more_clients_than_planned_or_than_fit():
    usual = choose_points(Workload(10**8, sample=0.01))
    assert usual == [(3_200, 32), (100_000, 32), (100_000, 3_225)]
    assert max(clients for clients, _ in choose_points(Workload(5_000, sample=0.01))) == 5_000
    large_model = replace(TINY, clients=10**7, features=784, labels=10, model=("mlp", {"hidden": (100,)}))
    assert large_model.parameters == 79_510
    for sample in (0.01, 1.0):
        (few, fewest), (middle, _), (many, most) = choose_points(replace(large_model, sample=sample))
        assert few < middle <= many < 300
        assert fewest < most


def test_noise_of_the_measured_points_is_not_multiplied():
    work = ShardWork(0.001, 1e-6, 2e-5)
    large = Workload(10**8, sample=0.01)
    for workload in (large, replace(large, clients=5_000), Workload(200, sample=0.1)):
        points = choose_points(workload)
        for factors in ((1.1, 0.9, 1.0), (0.9, 1.1, 1.1)):
            noisy = [work.seconds(*point) * factor for point, factor in zip(points, factors, strict=True)]
            planned = workload.clients, workload.cohort_size
            assert solve_work(noisy, points).seconds(*planned) == pytest.approx(
                work.seconds(*planned), rel=0.3
            )


@pytest.mark.slow
def test_a_model_of_many_parameters_is_measured_within_memory(monkeypatch):
    """About 150 MB of rows and models, in place of 32 GB."""
    monkeypatch.setattr("fedlap.costs.shard_calibration.find_spec", lambda name: None)
    large = replace(TINY, clients=10**7, features=784, labels=10, model=("mlp", {"hidden": (100,)}))
    before = read_process_status()["VmRSS"]
    assert measure_shards(large, 2, 0.0).work.seconds(10**7, 100) > 0
    assert read_process_status()["VmHWM"] - before < 1e9


def test_a_job_of_a_workload_has_its_numbers():
    job = TINY.build_job()
    assert isinstance(job, Job)
    federation, graph = job.federation, job.algorithm.graph
    assert (len(federation.clients), federation.inputs, federation.outputs) == (60, (3,), 3)
    assert set(federation.train.count.tolist()) == {4}
    assert 2 * graph.edges == 60 * 4
    training = assemble([job], TINY.build_schedule(1))
    assert training.model.size == TINY.parameters
    assert training.method.runs[0].cohort_size == TINY.cohort_size == 30


def test_a_failed_measurement_says_why(monkeypatch):
    monkeypatch.setattr(calibration.sys, "executable", "/bin/false")
    with pytest.raises(fl.InputError, match=r"the calibration failed \(its process ended with code 1\); use"):
        calibration.calibrate(TINY, 1)


def test_a_machine_that_is_full_is_one_clean_line(monkeypatch):
    words = "a machine is full (128 MB); use more machines, and resume from the run's folder"
    done = subprocess.CompletedProcess([], 1, "", f"warning\n{words}\n")
    monkeypatch.setattr(calibration.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(fl.InputError) as error:
        calibration.calibrate(TINY, 1, 2)
    expected = "the calibration failed (a machine is full (128 MB)); use a smaller model or fewer rows"
    assert str(error.value) == expected


def test_the_process_prints_its_mistake_without_a_traceback(monkeypatch):
    def refuse(workload):
        raise fl.InputError("no room")

    monkeypatch.setattr(calibration, "measure_rates", refuse)
    monkeypatch.setattr(calibration.sys, "argv", ["", "1", "2"])
    monkeypatch.setattr(calibration.sys, "stdin", StringIO(json.dumps(asdict(TINY))))
    with pytest.raises(SystemExit) as end:
        calibration.print_rates()
    assert end.value.code == "no room"
