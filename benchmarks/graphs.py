"""Compare known, learned and no graphs on real data, with every method tuned on training rows only.

Every seed is another split. The settings of a method are chosen per seed by five-fold cross-validation on the
training rows (`fedlap.tune`); then the method trains on all of them and is scored on the test rows once,
after the last round. Differences are paired over seeds. Strengths are reported as ηρ, which is comparable
between graphs.


    python -m benchmarks.graphs [--seeds 10] [--device cpu] [--only synthetic,har,mnist] [--results FILE]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import ttest_rel

import fedlap as fl
from benchmarks.results import write_section
from fedlap.graph import build_graph

COUPLINGS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # μRηρ at the middle rate
EPOCHS, MIDDLE = 5, 0.03
Values = dict[str, list[float]]


@dataclass(frozen=True)
class Case:
    """A data set, its number of rounds, the rates and methods to try, and the claims about the methods."""

    name: str
    data: Callable[[int], tuple[fl.Federation, fl.Graph | None]]
    rounds: int
    rates: tuple[float, ...]
    methods: tuple[str, ...]
    # First method against second: better (0), no worse (None), or at most this number of points below.
    claims: tuple[tuple[str, str, float | None], ...]


def synthetic(seed: int) -> tuple[fl.Federation, fl.Graph | None]:
    """Generate thirty clients in five clusters, with about 25 rows each."""
    generated = fl.data.synthetic(clients=30, clusters=5, rows=25, seed=seed)
    return generated.federation, generated.graph


def activity(scale: str) -> Callable[[int], tuple[fl.Federation, None]]:
    """Return a loader of Human Activity, half of the clients with a fifth of their training rows."""

    def load(seed: int) -> tuple[fl.Federation, None]:
        return fl.data.load_with_graph("har", seed, scale=scale, scarce={})[0], None

    return load


def pairs(seed: int) -> tuple[fl.Federation, None]:
    """Load MNIST with two labels per client."""
    return fl.data.load("mnist", seed), None


EQUAL = ("local", "fedavg", "equal", "learned")
CASES = {
    "synthetic": Case(
        "synthetic, 30 clients in 5 clusters",
        synthetic,
        60,
        (0.01, 0.03, 0.1),
        ("local", "fedavg", "random", "equal", "true", "learned"),
        (
            ("learned", "local", 0.0),
            ("learned", "equal", 0.0),
            ("learned", "random", 0.0),
            ("learned", "true", 3.0),
        ),
    ),
    "har": Case(
        "Human Activity, scarce, standardised",
        activity("pooled"),
        100,
        (0.003, 0.01, 0.03),
        EQUAL,
        (("equal", "local", 0.0), ("equal", "fedavg", 0.0), ("learned", "equal", None)),
    ),
    "har-raw": Case(
        "Human Activity, scarce, as distributed",
        activity("none"),
        100,
        (0.01, 0.03, 0.1),
        EQUAL,
        (("equal", "local", 0.0), ("equal", "fedavg", 0.0), ("learned", "equal", None)),
    ),
    "mnist": Case(
        "MNIST, two labels per client",
        pairs,
        30,
        (0.003, 0.01, 0.03),
        ("local", "fedavg", "equal", "similar", "learned"),
        (("similar", "equal", 0.0), ("learned", "similar", 0.2)),
    ),
}


def method(name: str, federation: fl.Federation, known: fl.Graph | None, seed: int) -> Any:
    """Return a method before tuning."""
    if name in ("local", "fedavg"):
        return {"local": fl.Local, "fedavg": fl.FedAvg}[name](local_epochs=EPOCHS)
    if name == "true":
        graph = known
    else:
        graph = build_graph("complete" if name in ("equal", "learned") else name, federation, seed)
    return (fl.FedULearned if name == "learned" else fl.FedU)(graph, strength=0.0, local_epochs=EPOCHS)


def tune_and_score(name: str, case: Case, seed: int, device: str) -> tuple[float, str]:
    """Return a tuned method's test accuracy in %, mean over clients, and its settings."""
    federation, known = case.data(seed)
    begin, model = method(name, federation, known, seed), fl.models.linear()
    vary = {"lr": list(case.rates)}
    if name == "learned":
        vary["nearest"] = [5, 15]
    if name not in ("local", "fedavg"):
        vary["strength"] = [coupling / (MIDDLE * EPOCHS * begin.graph.rho) for coupling in COUPLINGS]
    settings = {"rounds": case.rounds, "seed": seed, "device": device}
    best = fl.tune(begin, federation, model, vary, **settings).algorithm
    result = fl.fit(best, federation, model, evaluate_every=0, **settings)
    pull = f", ηρ {best.coupling.eta * best.graph.rho:.2g}" if "strength" in vary else ""
    near = f", {best.nearest} nearest" if name == "learned" else ""
    return 100 * float(result.scores[-1].accuracy_mean or 0), f"lr {best.lr:g}{pull}{near}"


def rows_of(case: Case, seeds: int, device: str) -> list[list[str]]:
    """Return one row per method and claim."""
    scores: Values = {}
    lines = []
    for name in case.methods:
        began, settings = time.perf_counter(), []
        for seed in range(seeds):
            score, words = tune_and_score(name, case, seed, device)
            scores.setdefault(name, []).append(score)
            settings.append(words)
        usual = statistics.mode(settings)
        mean, std = statistics.fmean(scores[name]), statistics.pstdev(scores[name])
        lines.append(
            [
                name,
                f"{mean:.2f} ± {std:.2f}",
                f"{usual} ({settings.count(usual)} of {seeds})",
                " ",
                f"{time.perf_counter() - began:.0f} s",
            ]
        )
        print(" | ".join(lines[-1]), flush=True)
    for this, that, less in case.claims:
        apart = [a - b for a, b in zip(scores[this], scores[that], strict=True)]
        mean, error = statistics.fmean(apart), statistics.stdev(apart) / seeds**0.5
        p = float(ttest_rel(scores[this], scores[that]).pvalue)
        if less is None:
            claim, holds = "no worse", mean >= 0 or p >= 0.05
        elif less:
            claim, holds = f"at least −{less:g}", mean >= -less
        else:
            claim, holds = "better", mean > 0 and p < 0.05
        verdict = f"{claim}: {'holds' if holds else 'DOES NOT HOLD'}"
        words = f"{mean:+.2f} ± {error:.2f} (s.e.), p = {p:.2g}"
        lines.append([f"{this} − {that}", words, " ", verdict, " "])
        print(" | ".join(lines[-1]), flush=True)
    return lines


def main() -> int:
    """Measure, print and, with --results, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    for name in options.only.split(","):
        lines = rows_of(CASES[name], options.seeds, options.device)
        if options.results:
            about = (
                f"{options.seeds} seeds, each method tuned on every seed's training rows by 5 folds, "
                f"logistic models, {EPOCHS} epochs per round, all clients, {options.device}; accuracy %, "
                "mean over clients, ± std over seeds; `python -m benchmarks.graphs`"
            )
            headers = ("graph or method", "accuracy, or difference", "most frequent settings", "", "")
            write_section(options.results, f"graphs: {CASES[name].name}", about, headers, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
