"""Measure a round between peers on a ring: `fedlap peer` with TLS, and torch.distributed (gloo).

Every peer has 79,510 parameters and takes five local steps. gloo has no TLS, writes no checkpoint, and ends
all processes if one dies; it shows what the links alone cost.

    python -m benchmarks.peers [--peers 4,8] [--rounds 100] [--results benchmarks/RESULTS.md]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.deployments import measure_rounds
from benchmarks.fedlap_federation import PeerFederation, find_ports
from benchmarks.results import write_section

HEADERS = ("system", "peers", "rounds", "ms/round", "least to most", "CPU s/round", "MB per peer")
COMPRESSIONS = ("none", "float16", "int8", "top-k:0.1")
GLOO_TIMEOUT = 300.0  # seconds


def measure_fedlap_peers(compression: str, count: int, rounds: int) -> list[str]:
    """Measure real processes of `fedlap peer` and return the cells of a row."""
    algorithm = f'name = "dfedu"\nstrength = 0.01\ncompression = "{compression}"'
    names = [f"peer-{k:02}" for k in range(count)]
    with tempfile.TemporaryDirectory() as folder, PeerFederation(Path(folder), names) as federation:
        seconds, used, most = measure_rounds(federation, algorithm, rounds)
    label = "fedlap peer, TLS" + ("" if compression == "none" else f", {compression}")
    return describe(label, count, seconds, f"{used:.3g}", f"{max(most.values()):.0f}")


def measure_gloo(count: int, rounds: int) -> list[str]:
    """Measure torch.distributed and return the cells of a row; the first tenth of rounds is not counted."""
    skipped = max(1, rounds // 10)
    with tempfile.TemporaryDirectory() as folder:
        path, (port, *_) = Path(folder) / "seconds.json", find_ports(["port"])
        words = [sys.executable, "-m", "benchmarks.gloo_peers"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen([*words, str(k), str(count), str(port), str(rounds + skipped), str(path)],
                             env=variables)
            for k in range(count)
        ]  # fmt: skip
        end = time.monotonic() + GLOO_TIMEOUT
        for process in processes:
            process.wait(max(1.0, end - time.monotonic()))
        seconds = json.loads(path.read_text())[skipped:]
    return describe("torch.distributed (gloo), no TLS", count, seconds, "", "")


def describe(system: str, count: int, seconds: list[float], used: str, memory: str) -> list[str]:
    """Return the cells of a row."""
    middle, least, most = (f"{1000 * f(seconds):,.1f}" for f in (statistics.median, min, max))
    return [system, str(count), str(len(seconds)), middle, f"{least} to {most}", used, memory]


def main() -> int:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers", default="4,8", help="numbers of peers, comma-separated")
    parser.add_argument("--rounds", type=int, default=100, help="rounds that count")
    parser.add_argument("--results", type=Path, help="the file whose table is replaced")
    options = parser.parse_args()
    console, rows, load = Console(width=160), [], os.getloadavg()[0]
    for count in map(int, options.peers.split(",")):
        rows.append(measure_gloo(count, options.rounds))
        rows += [measure_fedlap_peers(compression, count, options.rounds) for compression in COMPRESSIONS]
    table = Table(*HEADERS)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if options.results:
        about = (
            "79,510 parameters, 5 local steps, a ring; processes on loopback, one thread each, "
            f"{os.cpu_count()} cores, load by others before the start {load:.1f}; a peer writes a checkpoint "
            "per round; `python -m benchmarks.peers`"
        )
        write_section(options.results, "peers", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
