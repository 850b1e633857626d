"""The command that estimates the cost of a training: plan."""

import json
import os
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.table import Table

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.arguments import parse_assignment, parse_value
from fedlap.cli.threads import choose_threads
from fedlap.costs.calibration import Rates, calibrate
from fedlap.costs.estimate import Estimate, Machines, estimate_spread, estimate_stacked
from fedlap.costs.method_sizes import MethodSizes, count_method_sizes
from fedlap.costs.shard_calibration import RayRates
from fedlap.costs.workload import Workload, check_poolable
from fedlap.errors import InputError, check_number
from fedlap.experiments.settings import check_section_name, complete_section, split_section
from fedlap.models import MODELS
from fedlap.summaries import count_nouns

GIGA, MILLI = 1e9, 1e-3
MOST_CLIENTS = 1e12
STEP_OPTIONS = ("lr", "local_steps", "local_epochs")
ASSUMPTIONS = (
    "assumed     rows are in the page cache; every client has the mean number of rows; all cores are as fast",
    "            as the measured one and do not share its memory bandwidth; parts of a round do not overlap;",
    "            calls of Ray do not depend on the number of workers; seconds do not count scores",
)


def estimate_costs(options: dict[str, Any]) -> None:
    """Measure rates on this machine, and print the estimated cost for each number of clients."""
    sizes = parse_sizes(options["clients"])
    workloads = [build_workload(size, options) for size in sizes]
    largest = workloads[-1]
    check_cluster(largest, options)
    method = count_method_sizes(largest)
    rates = calibrate(largest, options["threads"] or choose_threads(1), options["workers"])
    cluster = build_cluster(options, rates)
    rows = []
    for workload in workloads:
        rows.append(("stacked", workload, estimate_stacked(workload, method, rates)))
        if cluster.workers > 1:
            spread = estimate_spread(workload, method, rates, cluster)
            rows.append((f"ray × {cluster.workers}", workload, spread))
    memory = options["memory"] * GIGA if options["memory"] else measure_machine_memory()
    if options["json"]:
        estimates = [
            {"engine": engine, "clients": workload.clients, **describe_estimate(estimate, memory)}
            for engine, workload, estimate in rows
        ]
        facts = {"rates": asdict(rates), "sizes": asdict(method), "merges": largest.merge_place}
        print(json.dumps({**facts, "estimates": estimates}))
        return
    print_estimates(rows, memory)
    print_remarks(largest, method, rates, cluster, memory)
    print_gathering(rows)
    for line in ASSUMPTIONS:
        console.print_result(line)


def parse_sizes(text: str) -> list[int]:
    """Parse numbers of clients, such as 10000,1e6."""
    try:
        sizes = [float(word) for word in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(1 <= size <= MOST_CLIENTS and size.is_integer() for size in sizes):
        raise InputError(
            f"--clients {text}: expected whole numbers of clients from 1 to 1e12, e.g. 10000,1e6"
        )
    return sorted(set(map(int, sizes)))


def build_workload(clients: int, options: dict[str, Any]) -> Workload:
    """Build the workload of the options for one number of clients."""
    sections: dict[str, dict[str, Any]] = {
        "algorithm": {name: options[name] for name in STEP_OPTIONS if options[name] is not None},
        "model": {},
    }
    for assignment in options["set"] or []:
        field, value = parse_assignment(assignment)
        section, _, setting = field.partition(".")
        if section not in sections or not setting:
            raise InputError(f"--set {assignment}: plan only uses algorithm and model; remove it")
        sections[section][setting] = value
    algorithm, model = options["algorithm"], options["model"]
    for section, name, known in (("algorithm", algorithm, ALGORITHMS), ("model", model, MODELS)):
        check_section_name(section, section, {"name": name}, known)
    settings = {
        "algorithm": complete_section(
            "algorithm", algorithm, ALGORITHMS[algorithm], sections["algorithm"], skip=("graph",)
        ),
        "model": complete_section("model", model, MODELS[model], sections["model"]),
    }
    numbers = {name: options[name] for name in ("rows", "test_rows", "features", "labels", "graph", "degree")}
    return Workload(
        clients,
        **numbers,
        algorithm=split_section(settings["algorithm"]),
        model=split_section(settings["model"]),
        sample=options["sample"],
        batch=parse_value(options["batch"]),
    )


def check_cluster(workload: Workload, options: dict[str, Any]) -> None:
    """Raise InputError for machines that cannot be, before anything is measured."""
    for name, zero in (("memory", False), ("bandwidth", False), ("latency", True)):
        if options[name] is not None:
            check_number(f"--{name}", options[name], zero=zero)
    fewest = parse_sizes(options["clients"])[0]
    if options["degree"] >= max(2, fewest):
        raise InputError(
            f"--degree {options['degree']}: expected less than the smallest number of clients, {fewest}"
        )
    if options["workers"] > 1:
        check_poolable(workload)
    if options["machines"] > options["workers"]:
        raise InputError(
            f"--machines {options['machines']}: expected at most one per worker; set --workers, which is "
            f"{options['workers']}"
        )


def build_cluster(options: dict[str, Any], rates: Rates) -> Machines:
    """Build the cluster of the options; between processes of one machine, bytes move as measured."""
    bandwidth, latency = options["bandwidth"], options["latency"]
    return Machines(
        options["workers"],
        options["machines"],
        rates.loopback_rate if bandwidth is None else bandwidth * GIGA,
        rates.loopback_latency if latency is None else latency * MILLI,
    )


def measure_machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe_estimate(estimate: Estimate, memory: float) -> dict[str, Any]:
    """Return an estimate as plain values."""
    return {
        **asdict(estimate),
        "round_seconds": estimate.round_seconds,
        "limit": estimate.limit,
        "fits": estimate.machine_bytes <= memory,
    }


def print_estimates(rows: list[tuple[str, Workload, Estimate]], memory: float) -> None:
    """Print one line per number of clients and engine."""
    table = Table(box=SIMPLE_HEAVY, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("clients", justify="right", no_wrap=True)
    table.add_column("engine")
    table.add_column("limit")
    headers = ("s/round", "GB per worker", "GB of driver", "GB per machine", "MB sent")
    for header in headers:
        table.add_column(header, justify="right", min_width=len("machine"))
    for engine, workload, estimate in rows:
        machine = f"{estimate.machine_bytes / GIGA:.3g}"
        table.add_row(
            f"{workload.clients:,}",
            engine,
            estimate.limit,
            f"{estimate.round_seconds:.3g}",
            f"{estimate.worker_bytes / GIGA:.3g}" if estimate.worker_bytes else "",
            f"{estimate.driver_bytes / GIGA:.3g}",
            machine if estimate.machine_bytes <= memory else f"{machine}*",
            f"{estimate.network_bytes / 1e6:.3g}" if estimate.network_bytes else "",
        )
    console.out.print(table)
    if any(estimate.machine_bytes > memory for *_, estimate in rows):
        console.print_result(f"* more than the {memory / GIGA:.3g} GB of a machine")


def print_remarks(
    workload: Workload, method: MethodSizes, rates: Rates, cluster: Machines, memory: float
) -> None:
    """Print how the method merges, its messages, and the measured rates."""
    name = workload.algorithm[0]
    console.print_result(f"merges      {name} {describe_merge(workload, method)}")
    console.print_result(
        f"client      sends {method.up:,.0f} bytes per round and receives {method.down:,.0f}; "
        f"{method.private:,.0f} bytes of private state, {method.server:,.0f} of server state"
    )
    draw, local, merge = (growth.per_sampled for growth in (rates.draw, rates.local, rates.merge))
    console.print_result(
        f"measured    {1e9 * rates.draw.per_client:.3g} ns per client to sample; per sampled client "
        f"{1e6 * draw:.3g} µs to draw, {1e6 * local:.3g} µs to train, {1e6 * merge:.3g} µs to merge"
    )
    console.print_result(
        f"            {rates.client_bytes:,.0f} bytes per client, {rates.roster_bytes:,.0f} at a driver; "
        f"{(rates.shared_bytes + rates.private_bytes) / 1e6:.0f} MB per process; copies at "
        f"{rates.copy_rate / GIGA:.3g} GB/s"
    )
    if rates.shards is not None:
        work, ray = rates.shards.work, rates.shards.ray
        console.print_result(
            f"shards      {1e3 * work.per_block:.3g} ms per block of up to 4,096 clients, "
            f"{1e6 * work.per_sampled:.3g} µs per sampled client"
        )
        console.print_result("Ray         " + describe_ray(ray))
        console.print_result(
            f"network     {cluster.bandwidth / GIGA:.3g} GB/s, {1e3 * cluster.latency:.3g} ms; "
            f"{count_nouns(cluster.workers, 'worker')} on {count_nouns(cluster.machines, 'machine')} "
            f"of {count_nouns(rates.cores, 'core')}, "
            f"{memory / GIGA:.3g} GB each"
        )


def describe_merge(workload: Workload, method: MethodSizes) -> str:
    """Return where the rows of the method meet."""
    if workload.merge_place == "neighbours":
        return "merges at the workers, from the rows of neighbours"
    if not workload.has_server:
        return "mixes at the driver, which receives the private state of all peers in every round"
    if not method.up:
        return "sends no uploads: clients only train"
    if workload.merge_place == "sum":
        return "merges at the driver, from one sum of uploads per block of clients"
    return "merges at the driver, which receives every upload; private state stays at the workers"


def print_gathering(rows: list[tuple[str, Workload, Estimate]]) -> None:
    """Print how much the driver gathers at the end, if it is more than it gathers in memory."""
    most = max(estimate.disk_bytes for *_, estimate in rows)
    if most:
        console.print_result(
            f"gathering   checkpoints and results need up to {most / GIGA:.3g} GB in the driver's folder for "
            "temporary files (TMPDIR)"
        )


def describe_ray(ray: RayRates | None) -> str:
    """Return what Ray costs."""
    if ray is None:
        return "not installed, so that neither its calls nor its memory are counted"
    calls = ray.calls
    return (
        f"{1e3 * calls.fixed:.3g} ms per round and {1e6 * calls.per_sampled:.3g} µs per sampled client; "
        f"{ray.daemon_bytes / 1e6:.0f} MB per machine and {ray.worker_bytes / 1e6:.0f} MB per worker"
    )
