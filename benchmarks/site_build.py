"""Measure how long the documentation site takes to build.

    python -m benchmarks.site_build [--results benchmarks/RESULTS.md] [--jobs 2]

The site is built in a copy of the tracked files, as `make docs` builds it: first without any cache, then with
the outputs of notebooks and the figures of the gallery cached, then after one page has changed. Processor
seconds count all processes of a build; unlike seconds, they hardly depend on the load by others.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import write_section

ROOT = Path(__file__).resolve().parents[1]
SECTION = "documentation site"
HEADERS = ["build", "seconds", "processor seconds"]
CHANGED_PAGE = "docs/howto/strength.md"


def copy_tracked_files(folder: Path) -> None:
    """Copy the files that git tracks, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copy(source, target)


def build_site(folder: Path, jobs: int) -> tuple[float, float]:
    """Build the site of a copy; return the seconds that passed and those of all processors."""
    paths = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    words = ["-W", "--keep-going", "-n", "-q", "-j", str(jobs), "-b", "html", "docs", "build/docs"]
    begun, used = time.perf_counter(), _count_processor_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - begun, _count_processor_seconds() - used


def _count_processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(jobs: int) -> list[list[str]]:
    """Build the site three times; return a row per build."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tracked_files(folder)

        def add_row(title: str) -> None:
            seconds, processor_seconds = build_site(folder, jobs)
            rows.append([title, f"{seconds:.0f}", f"{processor_seconds:.0f}"])

        add_row("nothing is cached")
        shutil.rmtree(folder / "build" / "docs")
        add_row("outputs of notebooks and figures are cached")
        with (folder / CHANGED_PAGE).open("a", encoding="utf-8") as page:
            page.write("\nOne more sentence.\n")
        add_row("one page has changed")
    return rows


def main() -> None:
    """Measure, print the rows and write them, if a file is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = measure(options.jobs)
    for row in [HEADERS, *rows]:
        print("  ".join(row))
    if options.results is not None:
        about = (
            f"{options.jobs} jobs, {os.cpu_count()} cores, load by others before the start {load:.1f}; "
            "`python -m benchmarks.site_build`"
        )
        write_section(options.results, SECTION, about, HEADERS, rows)


if __name__ == "__main__":
    main()
