"""Measure the CPU seconds of each command that uses a whole federation, by its number of clients.

Every client has 4 rows of 10 features and two neighbours on a ring; a run of two rounds is trained first.
Each command runs in a separate process with one thread, and its start counts; the time of other processes on
a busy machine does not. The wide file has 10 clients.

    python -m benchmarks.commands [--clients 1000,10000,100000] [--only report,nearest] [--state before]

Times go into benchmarks/commands.json under the `--state` (by default "after"), and the table of both states
into benchmarks/RESULTS.md. Exits with 1 where a command takes more than 10 s.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas

from benchmarks.results import write_section

ROWS, FEATURES, WIDE, WIDE_CLIENTS = 4, 10, 50_000, 10
MOST_SECONDS, LIMIT = 10.0, 600  # the aim, and when a command is stopped
HERE = Path(__file__).parent
WIDE_FILE = "wide"

# The command of each table row; {data}, {run} and {out} are filled in.
COLUMNS = ["--client", "client", "--label", "label"]
COMMANDS = {
    "report": ["report", "{run}", "--out", "{out}/page"],
    "draw": ["graph", "draw", "{run}", "{out}/graph.png"],
    "predict": ["predict", "{run}", "{data}", "--by", "client", "--to", "{out}/predictions.csv"],
    "nearest": [
        *("graph", "make", "{out}/near.npz", "--data", "{data}", *COLUMNS),
        *("--graph", "nearest", "--set", "graph.by=means"),
    ],
    "describe": ["data", "describe", "{data}", *COLUMNS, "--out", "{out}"],
    WIDE_FILE: ["data", "describe", "{data}", *COLUMNS, "--out", "{out}"],
}
TITLES = {
    "report": "`report`",
    "draw": "`graph draw`",
    "predict": "`predict --by`",
    "nearest": "`graph make --graph nearest --set graph.by=means`",
    "describe": "`data describe`",
    WIDE_FILE: f"`data describe`, CSV with {WIDE:,} columns",
}

Times = dict[str, dict[str, float | None]]  # seconds by command and number of clients; None: stopped


def write_data(path: Path, clients: int, features: int) -> None:
    """Write a CSV file in which every client's features lie around a centre of its own."""
    random = np.random.default_rng(0)
    x = random.normal(size=(clients, 1, features)) + random.normal(size=(clients, ROWS, features))
    frame = pandas.DataFrame(x.reshape(-1, features).round(5), columns=[f"f{k}" for k in range(features)])
    frame.insert(0, "client", np.repeat([f"c{k}" for k in range(clients)], ROWS))
    frame.insert(1, "label", np.where(x.sum(-1).ravel() > 0, "yes", "no"))
    frame.to_csv(path, index=False)


def run_command(arguments: list[str]) -> float | None:
    """Return the CPU seconds that a command takes, or None where it is stopped at the limit."""
    command = [sys.executable, "-m", "fedlap.cli", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5)),
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode == -signal.SIGXCPU:
        return None
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def train(folder: Path, data: Path) -> Path:
    """Train the run that the commands read; return its folder."""
    ring = ["--graph", "ring", "--rounds", "2", "--threads", "1"]
    run_command(["run", "--data", str(data), *COLUMNS, *ring, "--out", str(folder / "runs")])
    return next(path.parent for path in (folder / "runs").rglob("experiment.toml"))


def measure(clients: int, names: list[str]) -> dict[str, float | None]:
    """Return the seconds of each command for this number of clients."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wide = names == [WIDE_FILE]
        data = folder / "data.csv"
        write_data(data, clients, WIDE if wide else FEATURES)
        trained = {"report", "draw", "predict"} & set(names)
        filled = {"data": data, "out": folder, "run": train(folder, data) if trained else ""}
        seconds = {}
        for name in names:
            seconds[name] = run_command([part.format(**filled) for part in COMMANDS[name]])
            outcome = "stopped" if seconds[name] is None else f"{seconds[name]:.1f} s"
            print(f"{clients:>9,} clients  {name:10} {outcome}", flush=True)
    return seconds


def table(states: dict[str, Times]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows, with one column per number of clients and state."""
    every = [times for state in states.values() for name, times in state.items() if name != WIDE_FILE]
    sizes = sorted({int(size) for times in every for size in times})
    columns = [(size, state) for size in sizes for state in ("before", "after")]
    headers = ["CPU seconds", *(f"{size:,} clients, {state}" for size, state in columns)]
    rows = []
    for name, title in TITLES.items():
        # The wide file has its number of features in the title; its times stand with the largest federation.
        cells = {"before": {}, "after": {}}
        for state, times in states.items():
            seconds = times.get(name, {})
            cells[state] = {str(sizes[-1]): s for s in seconds.values()} if name == WIDE_FILE else seconds
        rows.append([title, *(_cell(cells[state], str(size)) for size, state in columns)])
    return headers, rows


def _cell(times: dict[str, float | None], size: str) -> str:
    if size not in times:
        return ""
    seconds = times[size]
    return f"more than {LIMIT}" if seconds is None else f"{seconds:.1f}"


def main() -> int:
    """Measure, store, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", default="1000,10000,100000")
    parser.add_argument("--only", default=",".join(COMMANDS), help="commands, comma-separated")
    parser.add_argument("--state", default="after", choices=["before", "after"])
    parser.add_argument("--times", type=Path, default=HERE / "commands.json")
    parser.add_argument("--results", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    names = options.only.split(",")
    sized = [name for name in names if name != WIDE_FILE]
    jobs = [(int(size), sized) for size in options.clients.split(",") if sized]
    jobs += [(WIDE_CLIENTS, [WIDE_FILE])] if WIDE_FILE in names else []
    states: dict[str, Times] = json.loads(options.times.read_text()) if options.times.exists() else {}
    within = True
    for clients, chosen in jobs:
        for name, seconds in measure(clients, chosen).items():
            rounded = None if seconds is None else round(seconds, 2)
            states.setdefault(options.state, {}).setdefault(name, {})[str(clients)] = rounded
            within &= seconds is not None and seconds <= MOST_SECONDS
        options.times.write_text(json.dumps(states, indent=1) + "\n", encoding="utf-8")
    about = "CPU seconds with 1 thread, start included; `python -m benchmarks.commands`"
    write_section(options.results, "commands", about, *table(states))
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
