"""What it takes to load each of the paper's data sets once it is cached: seconds and memory.

Each set is loaded, cut into its clients, split and scaled in a process of its own. Peak memory includes
Python and PyTorch themselves, shown as the first line. Exits with 1 where CIFAR-10 takes a gigabyte or five
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


def measured(name: str) -> tuple[int, float, float]:
    """Clients, seconds and megabytes of loading this set; of nothing, for no name."""
    command = [sys.executable, "-c", PROGRAM, name]
    clients, seconds, megabytes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return clients, seconds, megabytes


def main() -> int:
    """Print the table."""
    table = Table("data", "clients", "seconds", "peak MB")
    table.add_row("(none)", "", "", f"{measured('')[2]:.0f}")
    within = True
    for name, source in SOURCES.items():
        if source.distribution is None:
            continue
        try:
            source.distribution.arrays()  # fills the cache
        except InputError as error:
            print(error, file=sys.stderr)
            continue
        clients, seconds, megabytes = measured(name)
        table.add_row(name, str(clients), f"{seconds:.2f}", f"{megabytes:.0f}")
        within &= name != "cifar10" or (seconds < MOST_SECONDS and megabytes < MOST_MEGABYTES)
    Console().print(table)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
