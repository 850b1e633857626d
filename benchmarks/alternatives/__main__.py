"""Try the alternatives out: start each in turn, run a few rounds and print their medians.

python -m benchmarks.alternatives DATA.npz [--rounds 3] [--threads 2] [--only flower]
"""

import argparse
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import ALTERNATIVES, AlternativeError, UnavailableError


def main() -> int:
    """Run every alternative and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="an .npz with x, y and client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=ALTERNATIVES, action="append")
    options = parser.parse_args()
    console = Console(width=110)
    table = Table("system", "ms/round", "steps", "train accuracy", "peak MB", "note")
    failed = False
    for name in options.only or ALTERNATIVES:
        console.print(f"{name} …")
        try:
            with ALTERNATIVES[name].running(options.data, options.threads) as system:
                seconds = statistics.median(system.round() for _ in range(options.rounds))
                ready = system.ready
                table.add_row(
                    f"{ready['system']} {ready['version']}", f"{1000 * seconds:.0f}", f"{ready['steps']:,}",
                    f"{system.accuracy():.4f}", f"{system.peak_mb():.0f}", ready["note"],
                )  # fmt: skip
        except UnavailableError as reason:
            table.add_row(name, "", "", "", "", f"unavailable here: {reason}")
        except AlternativeError as reason:
            table.add_row(name, "", "", "", "", str(reason))
            failed = True
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
