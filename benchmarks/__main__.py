"""Compare the time of a round with alternatives and with the limit of the machine, in one table.

Rounds of all systems are interleaved, since machines are shared and noisy, and the table shows medians of
ratios. FedAvg trains on the rows of Human Activity where they can be loaded, and on random rows of that shape
otherwise. With --results the table is written to a file, with date and versions.

    python -m benchmarks [--repeats 7] [--threads 2] [--results benchmarks/RESULTS.md] [--only ordinary]
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fedlap as fl
from benchmarks import growth, scale
from benchmarks.alternatives import ALTERNATIVES, Alternative, AlternativeError, UnavailableError
from benchmarks.limits import Least, Machine, least
from benchmarks.results import write_section
from benchmarks.workloads import EPOCHS, WORKLOADS, Workload, activity

# System, its number of cores, and the required and the target ratio. pfl uses a second core only through a
# second process, which its users start themselves, so the table shows both ways.
FEDAVG = {
    "pfl_research 1": ("pfl_research", 1, 12.0, 30.0),
    "pfl_research 2": ("pfl_research", 2, 12.0, 30.0),
    "flower": ("flower", 2, 12.0, 30.0),
    "fedjax": ("fedjax_simulation", 2, 2.0, 5.0),
}
TURN = (5, 0.4)  # rounds and seconds: a turn of a system lasts until both are reached
NEAR = (4.0, 2.0)  # multiples of the machine limit: required, and target
HEADERS = (
    "workload", "fedlap, ms/round", "compared with", "ms/round", "ratio", "required", "target", "",
    "limit, ms/round", "ratio to limit", f"required {NEAR[0]:g}×, target {NEAR[1]:g}×", "peak MB",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    name: str
    ours: float
    other: str
    theirs: float
    ratio: float
    must: float
    aim: float
    limit: tuple[float, str]
    above: float  # ratio to the least time that the machine needs
    memory: str = ""

    @property
    def met(self) -> bool:
        """True if both required ratios are met."""
        return self.ratio >= self.must and self.above <= NEAR[0]

    def cells(self) -> list[str]:
        """Cells of the row as text."""
        return [
            self.name, f"{1000 * self.ours:.1f}", self.other, f"{1000 * self.theirs:.0f}",
            f"{self.ratio:.1f}×", f"{self.must:g}×", f"{self.aim:g}×",
            _verdict(self.ratio >= self.must, self.ratio >= self.aim),
            f"{1000 * self.limit[0]:.1f} ({self.limit[1]})", f"{self.above:.1f}×",
            _verdict(self.above <= NEAR[0], self.above <= NEAR[1]), self.memory,
        ]  # fmt: skip


def _verdict(met: bool, aimed: bool) -> str:
    return "target met" if aimed else "met" if met else "MISSED"


def against_ordinary(workload: Workload, repeats: int) -> Line:
    """Measure fedlap, the ordinary way and the machine in turns."""
    theirs = workload.theirs()
    workload.ours(0)  # warm both up
    theirs()
    turns = [(workload.ours(repeat), theirs(), Machine.measure()) for repeat in range(repeats)]
    ours, others, machines = zip(*turns, strict=True)
    return Line(
        workload.name, statistics.median(ours), workload.other, statistics.median(others),
        _median_ratio(others, ours), workload.must, workload.aim, *_limit(workload.least(), machines, ours),
    )  # fmt: skip


def _median_ratio(of: Sequence[float], to: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def _limit(
    bound: Least, machines: Sequence[Machine], ours: Sequence[float]
) -> tuple[tuple[float, str], float]:
    """Return the least time that the machine needs, and the ratio of ours to it; medians over turns."""
    limits = [bound.seconds(machine) for machine in machines]
    return statistics.median_low(limits), _median_ratio(ours, [seconds for seconds, _ in limits])


def against_systems(repeats: int, threads: int, console: Console) -> Iterator[Line]:
    """Measure FedAvg by every available system, in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        data = Path(folder) / "activity.npz"
        bound = _write_activity(data)
        running: dict[str, Alternative] = {}
        limit, above = (0.0, ""), 0.0
        for name, (system, cores, _, _) in {"ours": ("ours", threads, 0, 0), **FEDAVG}.items():
            console.print(f"starting {name} …", style="dim")
            known = ALTERNATIVES[system]
            try:
                alone = Alternative(known.name, known.script)
                running[name] = stack.enter_context(alone.running(data, min(cores, threads)))
            except (UnavailableError, AlternativeError) as reason:
                console.print(f"{name} is unavailable here: {reason}", style="yellow")
            if name == "ours":  # measured before the others start, which use the CPU even while they wait
                alone_with_it = [(_turn(running[name]), Machine.measure()) for _ in range(repeats + 1)][1:]
                times, machines = zip(*alone_with_it, strict=True)
                limit, above = _limit(bound, machines, times)
        turns = [{name: _turn(system) for name, system in running.items()} for _ in range(repeats + 1)]
        seconds = {name: [turn[name] for turn in turns[1:]] for name in running}
        fedlap_system = running["ours"]
        for name, (_, cores, must, aim) in FEDAVG.items():
            if name in running:
                system = running[name]
                ready = system.ready
                ratio = _median_ratio(seconds[name], seconds["ours"])
                console.print(
                    f"{ready['system']} {ready['version']}: {ready['steps']:,} steps per round "
                    f"({ready['note']}), training accuracy {system.accuracy():.3f}; "
                    f"fedlap {fedlap_system.ready['steps']:,} steps, {fedlap_system.accuracy():.3f}",
                    style="dim",
                )
                yield Line(
                    "Human Activity logistic FedAvg, 5 epochs", statistics.median(seconds["ours"]),
                    f"{ready['system']} {ready['version']}, {cores} core{'s' * (cores > 1)}",
                    statistics.median(seconds[name]), ratio, must, aim, limit, above,
                    f"{fedlap_system.peak_mb():.0f} / {system.peak_mb():.0f}",
                )  # fmt: skip


def _turn(system: Alternative) -> float:
    """Return the mean seconds of consecutive rounds: a single round would start with cold caches."""
    seconds: list[float] = []
    while len(seconds) < TURN[0] or sum(seconds) < TURN[1]:
        seconds.append(system.round())
    return statistics.fmean(seconds)


def _write_activity(path: Path) -> Least:
    """Write the training rows of Human Activity to a file; return the least work of a round on them."""
    try:
        federation = fl.data.load("har")
    except fl.InputError:
        federation = activity()
    ready = federation.to_device(torch.device("cpu"), torch.float32)
    pairs = [ready.train.client(k) for k in range(len(ready.clients))]
    np.savez(
        path,
        x=torch.cat([x for x, _ in pairs]).numpy(),
        y=torch.cat([y for _, y in pairs]).numpy(),
        client=np.repeat(np.arange(len(pairs)), [len(y) for _, y in pairs]),
    )
    return least(ready, (561, 6), EPOCHS * int(ready.train.count.sum()))


def main() -> int:
    """Measure, print, and return 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", choices=["ordinary", "systems", "scale", "growth"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=200)
    machine = Machine.measure()
    rates = f"{machine.products / 1e9:.0f} GFLOP/s, {machine.bytes / 1e9:.1f} GB/s"
    console.print(f"{options.threads} threads, torch {torch.__version__}; this machine: {rates}")
    wanted = [options.only] if options.only else ["ordinary", "systems", "scale", "growth"]
    lines: list[Line] = []
    if "ordinary" in wanted:
        lines += [against_ordinary(workload, options.repeats) for workload in WORKLOADS]
    if "systems" in wanted:
        lines += against_systems(options.repeats, options.threads, console)
    missed = not all(line.met for line in lines)
    if lines:
        table = Table(*HEADERS, title="medians over interleaved rounds")
        for line in lines:
            table.add_row(*line.cells())
        console.print(table)
    for workload in WORKLOADS if "ordinary" in wanted else []:
        scored, trained = workload.evaluation(options.repeats)
        missed |= scored > trained
        console.print(
            f"{workload.name}: {1e6 * scored:.2f} µs to score a row, {1e6 * trained:.2f} µs to train on a row"
            f": {'met' if scored <= trained else 'MISSED'} (required: not slower than training)"
        )
    if "scale" in wanted:
        missed |= not scale.main_on("cpu", options.repeats)
    if "growth" in wanted:
        growth.draw(Path(__file__).with_name("growth.png"), console)
    if options.results and lines:
        about = f"{options.threads} threads; {rates}; medians of {options.repeats}, interleaved"
        about += "; `python -m benchmarks`"
        write_section(options.results, "cpu", about, HEADERS, [line.cells() for line in lines])
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
