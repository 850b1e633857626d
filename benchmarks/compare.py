"""Compare the speed of two commits: is B slower than A?

    python -m benchmarks.compare A B [--repeats 30] [--device cuda] [--only NAME] [--results FILE.md]

A and B are commits, folders of checkouts, or `.` for the working tree. Each checkout measures the workloads
of its `benchmarks/compare_workloads.py`; without that file, it takes the one next to this script.

Each side has one process, which runs from start to end and builds its data once. The processes measure in
turns, in the order A B, B A, A B, …, so that a drift of the machine's speed affects both sides equally; while
one process measures, the other one waits. The number of threads is OMP_NUM_THREADS, by default 1.

A row of the table gives the median milliseconds per round of both sides, the median of the ratios B/A of all
pairs with its 95 % interval, and the median of the differences B − A. B is SLOWER if the ratio is above 1.03
and the difference is above 5 µs per round. The exit code is 1 if B is slower in any workload.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
WORKLOADS = "compare_workloads.py"
SERVE = "--serve"  # first word of a process that measures

LARGEST_RATIO = 1.03  # of B to A
LARGEST_DIFFERENCE = 5.0  # µs per round; overhead of this size never counts as slower
CONFIDENCE = 0.95
HEADERS = ("workload", "A, ms/round", "B, ms/round", "B/A", "95 % interval", "B − A, µs/round", "")


# Statistics


def bound_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of order statistics that contains the median with a confidence of at least 95 %.

    Fewer than six values give no such interval; their smallest and largest value are returned.
    """
    ordered, count = sorted(values), len(values)
    tails = itertools.accumulate(math.comb(count, below) / 2**count for below in range(count // 2))
    rank = max(0, sum(tail <= (1 - CONFIDENCE) / 2 for tail in tails) - 1)
    return ordered[rank], ordered[count - 1 - rank]


@dataclass(frozen=True)
class Comparison:
    """Milliseconds per round of both sides, in pairs measured one after the other."""

    a: Sequence[float]
    b: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Ratio B/A of every pair."""
        return [b / a for a, b in zip(self.a, self.b, strict=True)]

    @property
    def difference(self) -> float:
        """Median of the differences B − A, in µs per round."""
        return 1000 * statistics.median(b - a for a, b in zip(self.a, self.b, strict=True))

    @property
    def is_slower(self) -> bool:
        """True if B is slower than A by more than both limits."""
        return statistics.median(self.ratios) > LARGEST_RATIO and self.difference > LARGEST_DIFFERENCE

    def format_cells(self) -> list[str]:
        """Return the cells of the table after the name of the workload."""
        low, high = bound_median(self.ratios)
        return [
            f"{statistics.median(self.a):.4g}",
            f"{statistics.median(self.b):.4g}",
            f"{statistics.median(self.ratios):.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{self.difference:+.1f}",
            "SLOWER" if self.is_slower else "ok",
        ]


# Process of a side


def serve(source: Path, device: str) -> int:
    """Measure the workloads that the parent asks for, one JSON line each, until it closes the pipe."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as answers:
        os.dup2(2, 1)  # Only answers may reach the parent; everything printed goes to standard error.
        import compare_workloads  # of the folder in PYTHONPATH, as fedlap is
        import fedlap

        if not Path(fedlap.__file__).resolve().is_relative_to(source.resolve()):
            sys.exit(f"compare: fedlap was imported from {fedlap.__file__}, expected {source}")
        workloads = compare_workloads.list_workloads(device)
        print(json.dumps({"workloads": list(workloads)}), file=answers)
        for line in sys.stdin:
            workload = workloads[json.loads(line)["workload"]]
            print(json.dumps({"ms": workload.measure(device)}), file=answers)
    return 0


class Side:
    """A checkout and the process that measures it."""

    def __init__(self, label: str, tree: Path, device: str) -> None:
        self.label = label
        self.file = find_workloads(tree)
        others = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": count_threads(),
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(self.file.parent), *others]),
            "PYTHONHASHSEED": "0",  # Otherwise the layout of sets and dictionaries differs between processes.
            "PYTHONSAFEPATH": "1",  # Otherwise the folder of this script comes first.
        }
        words = [sys.executable, str(HERE), SERVE, str(tree / "src"), device]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, text=True, encoding="utf-8"
        )
        self.workloads: list[str] = self._read_answer("start")["workloads"]

    def measure(self, workload: str) -> float:
        """Return the milliseconds per round of a workload."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"workload": workload}) + "\n")
        self.process.stdin.flush()
        return self._read_answer(workload)["ms"]

    def _read_answer(self, task: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"compare: the process of {self.label} failed at '{task}'; see the error above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


# Checkouts


def count_threads() -> str:
    """Return the number of threads of each process."""
    return os.environ.get("OMP_NUM_THREADS", "1")


def find_workloads(tree: Path) -> Path:
    """Return the file of workloads of a checkout, or the one next to this script."""
    file = tree / "benchmarks" / WORKLOADS
    return file if file.exists() else HERE.with_name(WORKLOADS)


def call_git(*words: str) -> str:
    """Return the output of git; exit if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"compare: 'git {' '.join(words)}' failed with exit code {done.returncode}")
    return done.stdout.strip()


@contextlib.contextmanager
def open_tree(place: str) -> Iterator[tuple[str, Path]]:
    """Yield a label and the folder of a commit, of a checkout or of the working tree."""
    folder = ROOT if place == "." else Path(place).resolve()
    if (folder / "src" / "fedlap").is_dir():
        yield ("working tree" if folder == ROOT else place), folder
        return
    commit = call_git("rev-parse", "--verify", "--short", f"{place}^{{commit}}")
    with tempfile.TemporaryDirectory() as parent:
        tree = Path(parent) / "tree"
        call_git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield commit if commit.startswith(place) else f"{place} ({commit})", tree
        finally:
            call_git("worktree", "remove", "--force", str(tree))


# Command


def select_workloads(a: Side, b: Side, only: str) -> list[str]:
    """Return the workloads that both sides have and whose name contains this text."""
    if a.file.read_bytes() != b.file.read_bytes():
        print(f"compare: {WORKLOADS} differs between A and B", file=sys.stderr)
    names = [name for name in b.workloads if name in a.workloads and only in name]
    if not names:
        sys.exit(f"compare: no workload contains '{only}'; use one of {', '.join(b.workloads)}")
    return names


def compare_sides(a: Side, b: Side, workload: str, repeats: int) -> Comparison:
    """Measure a workload on both sides in turns, after one measurement that warms up."""
    times: dict[Side, list[float]] = {a: [], b: []}
    a.measure(workload), b.measure(workload)
    for repeat in range(repeats):
        for side in (a, b) if repeat % 2 == 0 else (b, a):
            times[side].append(side.measure(workload))
    return Comparison(times[a], times[b])


def compare(a: Side, b: Side, options: argparse.Namespace) -> int:
    """Print and write the table row by row; return 1 if B is slower in any workload."""
    about = f"A: {a.label}, B: {b.label}; {count_threads()} threads, {options.repeats} pairs"
    print(about, " | ".join(HEADERS), sep="\n", flush=True)
    rows, is_slower = [], False
    for workload in select_workloads(a, b, options.only):
        comparison = compare_sides(a, b, workload, options.repeats)
        is_slower |= comparison.is_slower
        rows.append([workload, *comparison.format_cells()])
        print(" | ".join(rows[-1]), flush=True)
        if options.results:
            from benchmarks.results import write_section  # here, since it is not in a side's PYTHONPATH

            write_section(options.results, f"comparison on {options.device}", about, HEADERS, rows)
    return int(is_slower)


def count_repeats(text: str) -> int:
    """Return a positive number of repeats."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def parse_words(words: Sequence[str]) -> argparse.Namespace:
    """Return the two sides and the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.split("\n")[0])
    parser.add_argument("a", metavar="A", help="commit, folder, or '.' for the working tree")
    parser.add_argument("b", metavar="B", help="side that must not be slower")
    parser.add_argument(
        "--repeats", type=count_repeats, default=30, help="pairs of measurements per workload"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to train on")
    parser.add_argument("--only", default="", help="measure only workloads whose name contains this text")
    parser.add_argument("--results", type=Path, help="Markdown file to write the table to")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Compare two sides, or measure one of them for the parent."""
    if words[:1] == [SERVE]:
        source, device = words[1:]
        return serve(Path(source), device)
    options = parse_words(words)
    with contextlib.ExitStack() as stack:
        sides = []
        for place in (options.a, options.b):
            label, tree = stack.enter_context(open_tree(place))
            sides.append(Side(label, tree, options.device))
            stack.callback(sides[-1].close)
        return compare(*sides, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
