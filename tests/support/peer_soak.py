"""A soak: peers train for a time, some are killed and restarted, and memory and open files are watched.

    python tests/support/peer_soak.py --peers 16 --minutes 20 --results benchmarks/RESULTS.md

starts peers on a ring with chords, kills one or two at random moments, and appends a table of what it saw.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from peer_processes import PeerProcesses, describe_peers
from process_starter import ProcessStarter

NAMES = "abcdefghijklmnop"
SAMPLE_SECONDS = 1.0  # between two looks at the processes
PAUSE = (3.0, 6.0)  # seconds between two kills
FIRST_PART = 0.3  # of the time, in which memory may still grow


@dataclass
class Samples:
    """Memory in megabytes and open files of a process that was never killed, by seconds since the start."""

    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def take(self, pid, seconds):
        """Look at a process, unless it has ended."""
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
            files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            self.seconds.append(seconds)
            self.megabytes.append(resident / 1024)
            self.files.append(files)

    def compute_slope(self, end):
        """Return megabytes per minute after the first part of `end` seconds, by least squares."""
        late = [k for k, second in enumerate(self.seconds) if second >= FIRST_PART * end]
        slope, _ = statistics.linear_regression(
            [self.seconds[k] / 60 for k in late], [self.megabytes[k] for k in late]
        )
        return slope


@dataclass
class Soak:
    """The outcome of a soak: kills, rounds, restarts, and samples of the peers that were never killed."""

    seconds: float
    kills: int
    rounds: dict[str, int]
    stood_in: int  # lines in the logs that a last model stood in
    samples: dict[str, Samples]

    @property
    def slopes(self):
        """Megabytes per minute of each peer that was never killed."""
        return {name: samples.compute_slope(self.seconds) for name, samples in self.samples.items()}


def list_chords(count):
    """Return the edges of a ring with chords to the vertex opposite."""
    ring = [(k, (k + 1) % count) for k in range(count)]
    return ring + [(k, k + count // 2) for k in range(count // 2)]


def write_graph(path, names):
    """Write a ring with chords as a file of edges."""
    rows = [f"{names[i]},{names[j]}" for i, j in list_chords(len(names))]
    path.write_text("\n".join(["from,to", *rows]) + "\n")


def run_soak(starter, folder, count, seconds, seed=0):
    """Run peers for some seconds, kill some of them, and end them by SIGTERM."""
    names, draw = NAMES[:count], random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(folder / "edges.csv", names)
    graph = {"name": "file", "path": str(folder / "edges.csv")}
    settings = {"staleness": "any", "deadline": 1.0}
    values = describe_peers(names, settings, rounds=10**6, graph=graph, evaluate_every=0)
    run = PeerProcesses(starter, folder, values)
    victims, spared = names[: count // 2], names[count // 2 :]
    samples, kills, chosen = {name: Samples() for name in spared}, 0, []
    try:
        run.start_all()
        run.wait_for_round(1)
        start, next_kill = time.monotonic(), draw.uniform(*PAUSE)
        while (now := time.monotonic() - start) < seconds:
            for name in spared:
                samples[name].take(run.pids[name], now)
            if now >= next_kill:
                chosen = draw.sample(victims, draw.choice([1, 2]))
                run.kill(*chosen)
                for name in chosen:
                    run.start_peer(name)
                kills, next_kill = kills + len(chosen), now + draw.uniform(*PAUSE)
            time.sleep(SAMPLE_SECONDS)
        for name in chosen:  # A process ends in order as soon as it trains.
            began = run.find_round(name)
            run.wait(lambda name=name, began=began: run.find_round(name) > began, f"{name} trains again")
        for name in names:
            run.send_signal(name, signal.SIGTERM)
        run.finish()
        rounds = {name: run.find_round(name) for name in names}
        stood_in = sum(len(run.list_events("stands-in", name)) for name in names)
        return Soak(seconds, kills, rounds, stood_in, samples)
    finally:
        run.close()


def main():
    """Run a soak and write its table."""
    from benchmarks.results import write_section

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    starter = ProcessStarter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            soak = run_soak(starter, Path(folder) / "run", options.peers, 60 * options.minutes)
    finally:
        starter.close()
    headers = ("peer", "rounds", "MB at the start", "MB at the end", "MB/minute", "files, least to most")
    rows = [
        [
            name, f"{soak.rounds[name]:,}", f"{samples.megabytes[0]:.1f}", f"{samples.megabytes[-1]:.1f}",
            f"{soak.slopes[name]:.3f}", f"{min(samples.files)} to {max(samples.files)}",
        ]
        for name, samples in soak.samples.items()
    ]  # fmt: skip
    about = (
        f"{options.peers} peers on a ring with chords for {options.minutes:g} minutes, {soak.kills} kills of "
        f"the {options.peers // 2} others; the peers below were never killed; the slope is that after "
        f"the first {FIRST_PART:.0%} of the time; `make soak`"
    )
    for row in [headers, *rows]:
        print("  ".join(f"{cell:>16}" for cell in row))
    print(about)
    if options.results:
        write_section(options.results, "soak of peers", about, headers, rows)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
