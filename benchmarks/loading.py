"""Measure seconds and memory to load each of the paper's data sets from the cache.

Each set is loaded, partitioned into clients, split and scaled in a separate process. Peak memory includes
Python and PyTorch, which the first row shows alone. Exits with 1 if CIFAR-10 takes a gigabyte or five
seconds.
"""

import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from fedlap.data import SOURCES
from fedlap.errors import InputError

MOST_SECONDS, MOST_MEGABYTES = 5.0, 1000.0

PROGRAM = """
import json, sys, time
import fedlap as fl
began = time.perf_counter()
clients = len(fl.data.load(sys.argv[1]).clients) if sys.argv[1] else 0
seconds = time.perf_counter() - began
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([clients, seconds, peak / 1000]))
"""


def measure_loading(name: str) -> tuple[int, float, float]:
    """Return clients, seconds and megabytes of loading this set; an empty name loads nothing."""
    command = [sys.executable, "-c", PROGRAM, name]
    clients, seconds, megabytes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return clients, seconds, megabytes


def main() -> int:
    """Measure, print the table, and return 1 if CIFAR-10 takes too much."""
    table = Table("data", "clients", "seconds", "peak MB")
    table.add_row("(none)", "", "", f"{measure_loading('')[2]:.0f}")
    within = True
    for name, source in SOURCES.items():
        if source.distribution is None:
            continue
        try:
            source.distribution.arrays()  # fills the cache
        except InputError as error:
            print(error, file=sys.stderr)
            continue
        clients, seconds, megabytes = measure_loading(name)
        table.add_row(name, str(clients), f"{seconds:.2f}", f"{megabytes:.0f}")
        within &= name != "cifar10" or (seconds < MOST_SECONDS and megabytes < MOST_MEGABYTES)
    Console().print(table)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
