"""Compare the default strength and strength = "auto" with the best strength of a grid, on six workloads.

Every seed is another split. The best strength is the one of the grid with the best mean test score over
seeds: it uses the test rows and is what no rule can know. The last columns are the difference in standard
errors of that best score over seeds, and the time of the choice over the time of training.

    python -m benchmarks.strengths [--seeds 6] [--only radon,colorado,har,har-sampled,digits,synthetic]
        [--results FILE]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import fedlap as fl
from benchmarks.results import write_section
from fedlap.errors import InputError
from fedlap.graph import build_graph
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule, compute_sample_size
from fedlap.training.strength_choice import choose_strength

GRID = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # ηρ
HEADERS = (
    "data", "score", "default", "best of the grid ± s.e.", "ηρ", "auto", "ηρ, each seed",
    "auto behind the best, s.e.", "default behind the best, s.e.", "choice / training time",
)  # fmt: skip
Loaded = tuple[fl.Federation, fl.Graph]


@dataclass(frozen=True)
class Workload:
    """A data set with its graph, and the settings that differ from the defaults."""

    load: Callable[[int], Loaded]
    rounds: int = 100
    sample: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)


def load_known(name: str, **settings: Any) -> Callable[[int], Loaded]:
    """Return a loader of data that bring their graph."""

    def load(seed: int) -> Loaded:
        federation, graph = fl.data.load_with_graph(name, seed, **settings)
        assert graph is not None
        return federation, graph

    return load


def load_joined(name: str, **settings: Any) -> Callable[[int], Loaded]:
    """Return a loader of data with the complete graph."""

    def load(seed: int) -> Loaded:
        federation, _ = fl.data.load_with_graph(name, seed, **settings)
        return federation, build_graph("complete", federation, seed)

    return load


SCARCE = load_joined("har", scale="pooled", scarce={})
WORKLOADS = {
    "radon": Workload(load_known("radon")),
    "colorado": Workload(load_known("colorado")),
    "har": Workload(SCARCE, settings={"local_epochs": 5}),
    "har-sampled": Workload(SCARCE, rounds=200, sample=0.1, settings={"local_epochs": 5}),
    "digits": Workload(load_joined("digits")),
    "synthetic": Workload(load_known("synthetic")),
}


def get_score(score: Any) -> float:
    """Return the accuracy in percent, or the loss of a regression."""
    return float(score.loss) if score.accuracy is None else 100 * float(score.accuracy)


def measure(work: Workload, seeds: int) -> list[str]:
    """Return the cells of a row."""
    tested: dict[str, list[float]] = {}
    pulls, ratios, sign, label = [], [], 1, "accuracy %"
    model, schedule = fl.models.linear(), Schedule(work.rounds, sample=work.sample, evaluate_every=0)
    for seed in range(seeds):
        federation, graph = work.load(seed)
        if federation.labels is None:
            sign, label = -1, "half squared error"
        auto = fl.FedU(graph, strength="auto", **work.settings)
        began = time.perf_counter()
        chosen: Any = choose_strength(auto, federation, model, schedule, seed)
        chose = time.perf_counter()
        (result,) = fit_all([Job(chosen, federation, model, seed)], schedule)
        ratios.append((chose - began) / (time.perf_counter() - chose))
        assert isinstance(result, fl.Result)
        tested.setdefault("auto", []).append(get_score(result.scores[-1]))
        pulls.append(chosen.strength * graph.rho)
        default = choose_strength(replace(auto, strength=None), federation, model, schedule, seed)
        methods = {"default": default}
        for pull in GRID:
            try:
                method = replace(auto, strength=pull / graph.rho)
                compute_sample_size(method, work.sample, len(federation.clients))
                methods[f"{pull:g}"] = method
            except InputError:  # mixing would be unstable
                continue
        results = fit_all([Job(method, federation, model, seed) for method in methods.values()], schedule)
        for name, outcome in zip(methods, results, strict=True):
            if isinstance(outcome, fl.Result):
                tested.setdefault(name, []).append(get_score(outcome.scores[-1]))
    means = {name: statistics.fmean(values) for name, values in tested.items() if len(values) == seeds}
    best = max(
        (name for name in means if name not in ("auto", "default")), key=lambda name: sign * means[name]
    )
    error = statistics.stdev(tested[best]) / seeds**0.5
    behind = [f"{sign * (means[best] - means[name]) / error:.2f}" for name in ("auto", "default")]
    form = ".2f" if sign > 0 else ".4f"
    return [
        label,
        f"{means['default']:{form}}",
        f"{means[best]:{form}} ± {error:{form}}",
        best,
        f"{means['auto']:{form}}",
        ", ".join(f"{pull:.2g}" for pull in pulls),
        *behind,
        f"{statistics.median(ratios):.1f}",
    ]


def main() -> int:
    """Measure, print and, with --results, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        rows.append([name, *measure(WORKLOADS[name], options.seeds)])
        print(" | ".join(rows[-1]), flush=True)
    if options.results:
        about = (
            f"{options.seeds} seeds, FedU, linear models, {torch.get_num_threads()} thread(s); har is Human "
            "Activity with half of the people cut to a fifth of their rows, 5 epochs per round (sampled: a "
            "tenth of the people per round); `python -m benchmarks.strengths`"
        )
        write_section(options.results, "strengths", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
