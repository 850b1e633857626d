"""Compare fedu-passing with FedU and with personalised baselines if a tenth of the clients work per round.

Seeds 10 to 19 were not used to design the method. Each seed is another split. The settings of every method
are chosen per seed by five-fold cross-validation on the training rows (`fedlap.tune`); then the method trains
on all of them and is scored on the test rows once, after round 200. Differences are paired over seeds, with
p-values corrected by Holm's method over all differences of all cases. The benchmark was planned to compare
fedu-passing with FedU, so these differences are also corrected among themselves, one per case. The race takes
FedU's settings for both methods and counts the rounds until fedu-passing reaches the J that FedU has after
round 200.

Every finished method of a case and seed is a line of the ledger, with its score, and is not repeated. The
ledger is part of the repository, so that `--table` computes all tables and tests again without a run. An
asterisk marks a chosen value at an end of its range.

    python -m benchmarks.passing [--seeds 10-19] [--only har-linear-steps,…] [--methods fedu,…]
        [--folds 5] [--device cpu] [--ledger FILE] [--results FILE] [--remark TEXT] [--table]
"""

import argparse
import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fedlap as fl
from benchmarks.names import check_names
from benchmarks.passing_methods import HIDDEN_LAYER_ONLY, IMPLICIT, LINEAR_ONLY, METHODS, Entry
from benchmarks.results import describe_versions, write_section
from fedlap.graph import build_graph
from fedlap.report.paired_tests import PairedComparison, adjust_holm, compare_paired
from fedlap.training.metrics import METRICS, choose_metric

ROUNDS, SHARE, RACE_EVERY = 200, 0.1, 5
Loaded = tuple[fl.Federation, fl.Graph]
Lines = dict[tuple[str, str, int], dict[str, Any]]
SHUFFLED = " (shuffled)"
SHUFFLED_PAIR = f"fedu-passing{SHUFFLED} − fedu{SHUFFLED}"
CLAIM = "fedu, Holm over differences to FedU alone"
LEDGER = Path(__file__).with_name("passing_scores.jsonl")
NOT_RUN = "not run"
# Sections named "passing: CASE" are from an earlier measurement with fewer rivals and without stored scores.
KIND = "passing, scores stored"


@dataclass(frozen=True)
class Case:
    """A data set with its graph, a model, the local work and the methods to compare."""

    load: Callable[[int], Loaded]
    model: Callable[[], Any]
    work: Mapping[str, int]
    methods: Mapping[str, Entry]
    shuffled: bool = False  # whether methods on a graph are also tried on the shuffled graph


def load_activity(seed: int) -> Loaded:
    """Load Human Activity, half of the people with a fifth of their training rows, on the complete graph."""
    federation, _ = fl.data.load_with_graph("har", seed, scale="pooled", scarce={})
    return federation, build_graph("complete", federation, seed)


def load_synthetic(clusters: int, seed: int) -> Loaded:
    """Generate thirty clients with about 25 rows each, and their true graph."""
    generated = fl.data.synthetic(clients=30, clusters=clusters, rows=25, seed=seed)
    return generated.federation, generated.graph


def load_known(name: str, seed: int) -> Loaded:
    """Load data that bring their graph."""
    federation, graph = fl.data.load_with_graph(name, seed)
    assert graph is not None
    return federation, graph


def list_cases() -> dict[str, Case]:
    """Return all cases by name."""
    readings = {"steps": {"local_steps": 5}, "epochs": {"local_epochs": 5}}
    models: dict[str, Callable[[], Any]] = {
        "linear": fl.models.linear,
        "mlp": functools.partial(fl.models.mlp, (100,)),
    }
    methods = {
        "linear": {name: entry for name, entry in METHODS.items() if name not in HIDDEN_LAYER_ONLY},
        "mlp": {name: entry for name, entry in METHODS.items() if name not in LINEAR_ONLY},
    }
    cases = {
        f"har-{model}-{reading}": Case(load_activity, models[model], work, methods[model])
        for model in models
        for reading, work in readings.items()
    }
    steps = readings["steps"]
    for name, clusters in (("clusters", 5), ("ring", 0)):
        load = functools.partial(load_synthetic, clusters)
        cases[name] = Case(load, models["linear"], steps, methods["linear"], shuffled=True)
    for name in ("radon", "colorado"):
        of_data = {**methods["linear"], **IMPLICIT}
        cases[name] = Case(
            functools.partial(load_known, name), models["linear"], steps, of_data, shuffled=True
        )
    return cases


def tune_method(
    case: Case, name: str, seed: int, folds: int, device: str
) -> tuple[Any, fl.Federation, dict[str, Any], list[str]]:
    """Return the method with the settings that cross-validation chose, the data, the settings and their ends.

    Ends are the names of settings whose chosen value is the lowest or highest of its range.
    """
    federation, graph = case.load(seed)
    if name.endswith(SHUFFLED):
        graph = graph.shuffle(seed)
    entry = case.methods[name.removesuffix(SHUFFLED)]
    tried = entry.list_values(graph.rho)
    tuned = fl.tune(
        entry.build(graph, case.work), federation, case.model(), tried, folds=folds, rounds=ROUNDS,
        sample=SHARE, seed=seed, device=device,
    )  # fmt: skip
    chosen = tuned.best.values
    return tuned.algorithm, federation, chosen, list_ends(chosen, tried)


def list_ends(chosen: Mapping[str, float], tried: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the settings whose chosen value is at an end of the values that were tried."""
    ranges = {name: (min(values), max(values)) for name, values in tried.items() if len(values) > 1}
    return [name for name, value in chosen.items() if value in ranges.get(name, ())]


def run_unit(case: Case, name: str, seed: int, folds: int, device: str) -> dict[str, Any]:
    """Tune, train and score one method of a case on one seed; for FedU run the race as well."""
    method, federation, values, ends = tune_method(case, name, seed, folds, device)
    settings = {"rounds": ROUNDS, "sample": SHARE, "seed": seed, "device": device}
    last = fl.fit(method, federation, case.model(), evaluate_every=0, **settings).scores[-1]
    metric = choose_metric([last])
    facts = {
        "metric": metric.name,
        "score": metric.factor * getattr(last, metric.name),
        "values": values,
        "ends": ends,
        "bytes": [last.bytes_up, last.bytes_down],
        "environment": f"{describe_versions()} on {name_device(device)}",
    }
    if name == "fedu":
        facts |= {"race": run_race(method, last.objective, case, federation, settings)}
    return facts


def name_device(device: str) -> str:
    """Return the name of a GPU, or the architecture of the processor."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()


def run_race(
    fedu: Any, goal: float, case: Case, federation: fl.Federation, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Count the rounds until fedu-passing with FedU's settings has FedU's last J."""
    passing = fl.FedUPassing(fedu.graph, strength=fedu.strength, lr=fedu.lr, mixing=fedu.mixing, **case.work)
    scores = fl.fit(
        passing, federation, case.model(), evaluate_every=RACE_EVERY, score_training="always", **settings
    ).scores
    reached = next((score.round for score in scores if score.objective <= goal), None)
    return {"goal": goal, "rounds": reached, "bytes": [scores[-1].bytes_up, scores[-1].bytes_down]}


def list_names(case: Case) -> list[str]:
    """Return the names of the rows of a case."""
    names = list(case.methods)
    return names + [f"{name}{SHUFFLED}" for name in ("fedu-passing", "fedu") if case.shuffled]


def read_ledger(path: Path) -> Lines:
    """Return the finished lines by case, method and seed; an incomplete last line is ignored."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    entries = [json.loads(line) for line in text.split("\n")[:-1]]
    return {(entry["case"], entry["method"], entry["seed"]): entry for entry in entries}


def run_missing(
    cases: Mapping[str, Case],
    methods: Sequence[str],
    seeds: Sequence[int],
    folds: int,
    path: Path,
    device: str,
) -> Lines:
    """Run what the ledger does not have, seed by seed, and return all lines."""
    done = read_ledger(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for label, case in cases.items():
            for name in list_names(case):
                if (label, name, seed) in done or (methods and name not in methods):
                    continue
                began = time.perf_counter()
                facts = run_unit(case, name, seed, folds, device)
                entry = {"case": label, "method": name, "seed": seed, **facts}
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
                done[label, name, seed] = entry
                seconds = time.perf_counter() - began
                print(f"{label} {name}, seed {seed}: {facts['score']:.3f} ({seconds:.0f} s)", flush=True)
    return done


Difference = tuple[str, str, PairedComparison]


def list_pairs(case: Case) -> Iterator[tuple[str, str, str]]:
    """Yield the row of each difference, and the two rows that it compares."""
    names = list_names(case)
    yield from ((name, "fedu-passing", name) for name in names if name != "fedu-passing")
    if case.shuffled:
        yield SHUFFLED_PAIR, f"fedu-passing{SHUFFLED}", f"fedu{SHUFFLED}"


def list_differences(cases: Mapping[str, Case], seeds: Sequence[int], lines: Lines) -> Iterator[Difference]:
    """Yield fedu-passing against every other row of each case, positive if it is better.

    On the shuffled graph, fedu-passing is also compared with FedU on this graph.
    """
    for label, case in cases.items():
        for row, name, other in list_pairs(case):
            pairs = [
                (lines[label, name, s], lines[label, other, s])
                for s in seeds
                if {(label, name, s), (label, other, s)} <= lines.keys()
            ]
            if len(pairs) < 2:
                continue
            sign = METRICS[pairs[0][0]["metric"]].sign
            ours, theirs = ([sign * entry["score"] for entry in side] for side in zip(*pairs, strict=True))
            yield label, row, compare_paired(ours, theirs)


def build_tables(cases: Mapping[str, Case], seeds: Sequence[int], lines: Lines) -> dict[str, list[list[str]]]:
    """Return one table per case with any line: scores, differences and the race."""
    differences = list(list_differences(cases, seeds, lines))
    adjusted = adjust_holm([1.0 if pair.p_value is None else pair.p_value for *_, pair in differences])
    words = {
        (label, row): describe_difference(pair, p)
        for (label, row, pair), p in zip(differences, adjusted, strict=True)
    }
    claimed = [(label, pair) for label, row, pair in differences if row == "fedu"]
    adjusted = adjust_holm([1.0 if pair.p_value is None else pair.p_value for _, pair in claimed])
    claims = {label: describe_difference(pair, p) for (label, pair), p in zip(claimed, adjusted, strict=True)}
    tables: dict[str, list[list[str]]] = {}
    for label, case in cases.items():
        rows = []
        for name in list_names(case):
            found = [lines[label, name, s] for s in seeds if (label, name, s) in lines]
            rows.append([name, *describe_lines(found, words.get((label, name), ""))])
        if (label, SHUFFLED_PAIR) in words:
            rows.append([SHUFFLED_PAIR, "", "", words[label, SHUFFLED_PAIR], ""])
        if label in claims:
            rows.append([CLAIM, "", "", claims[label], ""])
        rows += describe_races([lines[label, "fedu", s] for s in seeds if (label, "fedu", s) in lines])
        if any(label == of for of, *_ in lines):
            tables[label] = rows
    return tables


def describe_difference(pair: PairedComparison, p: float) -> str:
    """Return a difference, its standard error and its corrected p-value."""
    return "" if pair.error is None else f"{pair.mean:+.3f} ± {pair.error:.3f}, p = {p:.2g}"


def describe_lines(found: Sequence[Mapping[str, Any]], difference: str) -> list[str]:
    """Return the mean score of a method, the number of seeds, the difference and the usual settings."""
    if not found:
        return [NOT_RUN, "0", "", ""]
    scores = [line["score"] for line in found]
    score = f"{statistics.fmean(scores):.3f} ± {statistics.pstdev(scores):.3f}"
    return [score, str(len(found)), difference, statistics.mode(map(describe_settings, found))]


def describe_settings(line: Mapping[str, Any]) -> str:
    """Return the chosen values; an asterisk marks an end of the range."""
    return ", ".join(
        f"{name} {value:.3g}{'*' * (name in line['ends'])}" for name, value in line["values"].items()
    )


def describe_races(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row on the rounds that fedu-passing took to FedU's J, from FedU's lines."""
    if not found:
        return []
    reached = [line["race"]["rounds"] for line in found if line["race"]["rounds"] is not None]
    middle = f"{statistics.median(reached):g} (median)" if reached else "–"
    same = all(line["race"]["bytes"] == line["bytes"] for line in found)
    sent = f"bytes {'equal to' if same else 'DIFFER from'} FedU's"
    return [["rounds to FedU's last J", middle, f"{len(reached)} of {len(found)}", sent, ""]]


HEADERS = (
    "method",
    "score, ± std over seeds",
    "seeds",
    "fedu-passing better by, ± s.e., Holm",
    "mode of settings (* an end of the range)",
)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a range such as 10-19."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def run_command(cases: Mapping[str, Case], kind: str, module: str, ledger: Path, about: str | None) -> int:
    """Run the cases, print their tables and, with --results, write them."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=parse_seeds, default="10-19")
    parser.add_argument("--only", default=",".join(cases), help="cases, comma-separated")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[], help="rows; default: all")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ledger", type=Path, default=ledger)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--remark", help="a remark on the measurement, for --results")
    parser.add_argument("--table", action="store_true", help="print what the ledger has, and run nothing")
    options = parser.parse_args()
    check_names("--only", options.only.split(","), cases)
    chosen = {name: cases[name] for name in options.only.split(",")}
    rows_of_cases = {name: case for case in chosen.values() for name in list_names(case)}
    check_names("--methods", options.methods, rows_of_cases)
    lines = (
        read_ledger(options.ledger)
        if options.table
        else run_missing(
            chosen, options.methods, options.seeds, options.folds, options.ledger, options.device
        )
    )
    for label, rows in build_tables(chosen, options.seeds, lines).items():
        print(f"\n{label}")
        for row in rows:
            print(" | ".join(row))
        if options.results:
            found = [entry for (case, *_), entry in lines.items() if case == label]
            score = "accuracy in %" if found[0]["metric"] == "accuracy" else "RMSE"
            about = (
                f"seeds {options.seeds[0]} to {options.seeds[-1]}, {SHARE:g} of the clients per round, "
                f"{ROUNDS} rounds, {options.folds} folds; {score} of all test rows; "
                f"`python -m {module}`" + (f"; {options.remark}" if options.remark else "")
            )
            versions = " and ".join(sorted({entry["environment"] for entry in found}))
            write_section(options.results, f"{kind}: {label}", about, HEADERS, rows, versions)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(list_cases(), KIND, "benchmarks.passing", LEDGER, __doc__))
