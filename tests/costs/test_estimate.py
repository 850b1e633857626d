"""The cost model: exact answers from given rates, and laws of its growth."""

from dataclasses import replace

import numpy as np
import pytest

import fedlap as fl
from cost_rates import RATES, SIZES
from fedlap.costs.estimate import (
    Machines,
    count_spread_bytes,
    cut_share,
    estimate_spread,
    estimate_stacked,
)
from fedlap.costs.growth import Growth, solve_growth
from fedlap.costs.method_sizes import count_method_sizes
from fedlap.costs.shard_calibration import ShardWork, count_busy_blocks, solve_work
from fedlap.costs.workload import Workload
from fedlap.data import LargeSynthetic
from fedlap.training.shards.layout import split_blocks

LARGE = Workload(1_000_000, sample=0.01)
ON_ONE = Machines(workers=4, machines=1, bandwidth=1e9, latency=1e-4)


def test_one_process_adds_up_its_parts():
    estimate = estimate_stacked(LARGE, SIZES, RATES)
    draw, local, merge = 0.001 + 0.1 + 0.01, 0.002 + 0.1, 0.003 + 0.02
    assert estimate.round_seconds == pytest.approx(draw + local + merge)
    assert estimate.seconds["driver"] == pytest.approx(draw)
    assert estimate.driver_bytes == estimate.machine_bytes == pytest.approx(300e6 + 1e9 + 50e6)
    assert estimate.network_bytes == 0


def test_scoring_takes_less_memory_with_fewer_clients():
    small = estimate_stacked(replace(LARGE, clients=50_000), SIZES, RATES)
    assert small.driver_bytes == pytest.approx(300e6 + 50e6 + 25e6)


def test_all_clients_are_not_drawn():
    assert estimate_stacked(replace(LARGE, sample=1.0), SIZES, RATES).seconds["driver"] == 0


def test_workers_share_work_and_memory():
    estimate = estimate_spread(LARGE, SIZES, RATES, ON_ONE)
    blocks = len(split_blocks(1_000_000))
    assert estimate.seconds["compute"] == pytest.approx((0.001 * blocks + 0.2) / 4)
    assert estimate.seconds["driver"] == pytest.approx(0.001 + 0.1 + 0.01)
    moved = count_spread_bytes(LARGE, SIZES, 4)
    assert estimate.seconds["network"] == pytest.approx(moved / 1e9 + 2e-4 + 0.005 + 0.002)
    worker = 200e6 + 250e6 + 50e6 + 70e6
    assert estimate.worker_bytes == pytest.approx(100e6 + worker)
    driver = 200e6 + 100e6 + 16e6
    stored = 2 * 132e6  # a checkpoint of the models, and changes of as many bytes
    assert estimate.machine_bytes == pytest.approx(100e6 + driver + 4 * worker + 400e6 + stored)


def test_without_ray_its_costs_are_not_counted():
    alone = replace(RATES, shards=replace(RATES.shards, ray=None))
    both = [
        estimate_spread(LARGE, SIZES, rates, replace(ON_ONE, workers=8, machines=2))
        for rates in (RATES, alone)
    ]
    assert both[0].seconds["network"] - both[1].seconds["network"] == pytest.approx(0.007)
    assert both[0].machine_bytes - both[1].machine_bytes == pytest.approx(400e6 + 4 * 70e6)


def test_more_workers_than_cores_are_no_faster():
    four, eight = (estimate_spread(LARGE, SIZES, RATES, replace(ON_ONE, workers=number)) for number in (4, 8))
    assert eight.seconds["compute"] == pytest.approx(four.seconds["compute"])
    two_machines = estimate_spread(LARGE, SIZES, RATES, replace(ON_ONE, workers=8, machines=2))
    assert two_machines.seconds["compute"] == pytest.approx(four.seconds["compute"] / 2)


def test_the_limit_is_the_largest_part():
    slow_network = replace(ON_ONE, bandwidth=1e5)
    assert estimate_spread(LARGE, SIZES, RATES, slow_network).limit == "network"
    slow_draw = replace(RATES, shards=replace(RATES.shards, driver=Growth(9.0, 0, 0)))
    assert estimate_spread(LARGE, SIZES, slow_draw, ON_ONE).limit == "driver"
    assert estimate_stacked(LARGE, SIZES, replace(RATES, draw=Growth(0, 0, 0))).limit == "compute"
    slow_memory = replace(RATES, copy_rate=1e6, draw=Growth(0, 0, 0))
    assert estimate_stacked(LARGE, SIZES, slow_memory).limit == "memory bandwidth"


def test_merges_at_the_server_need_its_memory():
    """FedU with passed steps has a model per client there; pFedMe has one, and its private state stays."""
    passing, pfedme = (replace(LARGE, algorithm=(name, {})) for name in ("fedu-passing", "pfedme"))
    assert passing.merge_place == pfedme.merge_place == "server"
    assert LARGE.merge_place == "neighbours"
    at_shards, *at_server = (
        estimate_spread(workload, count_method_sizes(workload), RATES, ON_ONE).driver_bytes
        for workload in (LARGE, passing, pfedme)
    )
    assert [found - at_shards for found in at_server] == pytest.approx([132e6 + 2 * 132, 132], abs=1)


def test_peers_that_mix_at_the_driver_need_its_memory():
    dpsgd = replace(LARGE, algorithm=("dpsgd", {}), sample=1.0)
    estimate = estimate_spread(dpsgd, count_method_sizes(dpsgd), RATES, ON_ONE)
    fedu = estimate_spread(LARGE, SIZES, RATES, ON_ONE)
    assert estimate.driver_bytes - fedu.driver_bytes == pytest.approx(3 * 264e6)
    assert estimate.network_bytes > 2 * 264e6


def test_models_are_gathered_in_files_unless_they_are_few():
    """A table of 33 parameters per client reaches 64 MB at 485,000 clients."""
    few, many = (estimate_spread(replace(LARGE, clients=n), SIZES, RATES, ON_ONE) for n in (400_000, 10**6))
    assert few.disk_bytes == 0
    assert many.disk_bytes == 2 * 132e6
    gathered = [of_all.driver_bytes - 300e6 - 100 * n for of_all, n in ((few, 400_000), (many, 10**6))]
    assert gathered == pytest.approx([2 * 132 * 400_000 + 16e6, 16e6])


def test_sums_of_uploads_do_not_grow_with_the_sampled_clients():
    """With many sampled clients per block, only their numbers do."""
    few, many = (replace(LARGE, algorithm=("fedavg", {}), sample=sample) for sample in (0.1, 0.2))
    assert few.merge_place == "sum"
    numbers = 8 * (many.cohort_size - few.cohort_size)
    sizes = count_method_sizes(few)
    grown = count_spread_bytes(many, sizes, 2) - count_spread_bytes(few, sizes, 2)
    assert grown == pytest.approx(numbers, rel=1e-3)


def test_implicit_mixing_merges_at_the_server():
    assert replace(LARGE, algorithm=("fedu", {"mixing": "implicit"})).merge_place == "server"


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("structure", ["clusters", "ring", "geometric"])
def test_the_share_of_cut_edges_is_that_of_the_graph(structure, workers):
    settings = LargeSynthetic(clients=10_000, structure=structure, degree=10)
    edges = settings.join_clients(range(settings.clients)).tocoo()
    size = settings.clients / workers
    counted = np.mean(edges.row // size != edges.col // size)
    predicted = cut_share(Workload(settings.clients, graph=structure, degree=10), workers)
    if structure == "clusters":  # at most: a cut may fall between two clusters
        assert counted <= predicted < 0.003
    else:
        assert predicted == pytest.approx(counted, rel=0.15, abs=1e-4)


def test_neighbours_anywhere_are_mostly_in_other_shards():
    assert cut_share(replace(LARGE, graph="random"), 5) == pytest.approx(0.8)


def test_growth_passes_through_the_measured_points():
    growth = Growth(0.5, 0.01, 0.2)
    points = [(100, 10), (1_000, 10), (1_000, 100)]
    assert solve_growth([growth.seconds(*point) for point in points], points) == pytest.approx(growth)
    full = [(10, 10), (100, 100)]
    assert solve_growth([3.0, 21.0], full) == pytest.approx((1.0, 0.0, 0.2))
    assert solve_growth([3.0, 2.0], full) == Growth(3.0, 0.0, 0.0)  # noise gives no negative slope


def test_few_sampled_clients_are_in_few_blocks():
    """In the mean over draws; with 32 blocks of equal size, as of boxes that balls are thrown into."""
    assert count_busy_blocks(3_200, 1) == pytest.approx(1)
    assert count_busy_blocks(3_200, 3_200) == pytest.approx(32)
    draws = np.random.default_rng(0).integers(0, 32, (4_000, 40))
    found = np.mean([len(set(draw)) for draw in draws.tolist()])
    assert count_busy_blocks(3_200, 40) == pytest.approx(found, rel=0.01)


def test_work_of_shards_passes_through_the_measured_points():
    work = ShardWork(0.001, 1e-8, 1e-5)
    points = [(3_200, 32), (100_000, 32), (100_000, 3_200)]
    seconds = [work.seconds(*point) for point in points]
    assert solve_work(seconds, points) == pytest.approx(work, rel=1e-6)


def test_work_of_shards_grows_in_proportion_to_large_federations():
    work = ShardWork(0.001, 1e-8, 1e-5)
    few, many = (work.seconds(clients, clients // 100) for clients in (10**6, 10**8))
    assert many == pytest.approx(100 * few, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients = 0; expected an integer"),
        ({"algorithm": ("fedx", {})}, "unknown algorithm 'fedx'"),
        ({"model": ("tree", {})}, "unknown model 'tree'"),
        ({"algorithm": ("fedu-learned", {})}, "learns a weight per pair of clients"),
        ({"algorithm": ("dfedu", {})}, "peers are not sampled"),
    ],
)
def test_workloads_that_cannot_be_planned_are_refused(change, message):
    with pytest.raises(fl.InputError) as error:
        replace(LARGE, **change)
    assert message in str(error.value)


def test_pooled_clients_are_not_spread():
    with pytest.raises(fl.InputError, match="pools all rows into one client"):
        estimate_spread(replace(LARGE, algorithm=("global", {})), SIZES, RATES, ON_ONE)


def test_rates_of_one_process_do_not_plan_workers():
    with pytest.raises(fl.InputError, match="calibrate with several workers"):
        estimate_spread(LARGE, SIZES, replace(RATES, shards=None), ON_ONE)
