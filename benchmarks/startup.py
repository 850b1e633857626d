"""Measure how long the command line takes to print its version and its help: medians over several starts.

    python -m benchmarks.startup [--repeats 10]

Seconds are wall time and CPU time of a process with a warm file cache. On a busy machine only the CPU time
means something. Exits with 1 where the version or the help takes more than 0.3 s of CPU time.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

MOST_SECONDS = 0.3
COMMANDS = (["--version"], ["--help"], ["run", "--help"], ["graph", "draw", "--help"], ["data", "list"])
STRICT = 4  # the first commands, which load no data, models or methods


def measure_start(words: list[str], repeats: int) -> tuple[float, float]:
    """Return the median wall time and CPU time of a command, in seconds; the first start is not counted."""
    walls, cpus = [], []
    for _ in range(repeats + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "fedlap.cli", *words], check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls[1:]), statistics.median(cpus[1:])


def main() -> None:
    """Measure and print every command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    repeats, slow = parser.parse_args().repeats, False
    for number, words in enumerate(COMMANDS):
        wall, cpu = measure_start(words, repeats)
        print(f"fedlap {' '.join(words):20} {wall:6.3f} s, CPU {cpu:6.3f} s", flush=True)
        slow |= number < STRICT and cpu > MOST_SECONDS
    sys.exit(int(slow))


if __name__ == "__main__":
    main()
