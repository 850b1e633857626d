"""Write the table of what `fedlap plan` predicts for up to 10⁸ clients on a cluster.

python -m benchmarks.planned [--results FILE]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.large_federations import build_settings, build_workload
from benchmarks.results import write_section
from fedlap.costs.calibration import calibrate
from fedlap.costs.estimate import Estimate, Machines, estimate_spread, estimate_stacked
from fedlap.costs.method_sizes import count_method_sizes

CLIENTS: Final = (10**6, 10**7, 10**8)
METHODS: Final = ("fedu", "fedavg")
CLUSTER: Final = Machines(workers=64, machines=8, bandwidth=1.25e9, latency=2e-4)
HEADERS = (
    "method", "clients", "engine", "s/round", "limit", "GB per worker", "GB of driver", "GB per machine",
    "GB on disk", "MB sent/round",
)  # fmt: skip


def describe(method: str, clients: int, engine: str, estimate: Estimate) -> list[str]:
    """Return the cells of a row."""
    giga = [
        f"{value / 1e9:.3g}" if value else ""
        for value in (
            estimate.worker_bytes,
            estimate.driver_bytes,
            estimate.machine_bytes,
            estimate.disk_bytes,
        )
    ]
    sent = f"{estimate.network_bytes / 1e6:.3g}" if estimate.network_bytes else ""
    seconds = f"{estimate.round_seconds:.3g}"
    return [method, f"{clients:,}", engine, seconds, estimate.limit, *giga, sent]


def main(words: Sequence[str] | None = None) -> int:
    """Measure rates on this machine, and print or write the predictions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(words)
    rows = []
    for method in METHODS:
        workloads = [build_workload(build_settings(clients), method) for clients in CLIENTS]
        sizes, rates = count_method_sizes(workloads[-1]), calibrate(workloads[-1], 1, CLUSTER.workers)
        for workload in workloads:
            pairs = (
                ("stacked", estimate_stacked(workload, sizes, rates)),
                (f"ray × {CLUSTER.workers}", estimate_spread(workload, sizes, rates, CLUSTER)),
            )
            rows += [describe(method, workload.clients, engine, found) for engine, found in pairs]
    for row in rows:
        print(" | ".join(row))
    if options.results:
        about = (
            "predictions, from rates measured on one machine: logistic models of 10 features, about 10 rows "
            "and 10 neighbours in a plane, a hundredth of the clients per round, float32; 64 workers on 8 "
            f"machines of {rates.cores} cores, 1.25 GB/s and 0.2 ms between machines; rows in page cache, "
            "cores as fast as the measured one, calls of Ray independent of the number of workers; "
            "`python -m benchmarks.planned`"
        )
        write_section(options.results, "planned federations", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
