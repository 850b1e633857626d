"""Training and printing of runs, for every command that trains."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedlap.algorithms import Algorithm, Coupled
from fedlap.algorithms.coupling import AUTO
from fedlap.cli import console
from fedlap.cli.exit_codes import EXIT_FAILED
from fedlap.cli.interrupts import stop_on_signal
from fedlap.comparisons.result import ComparisonResult
from fedlap.comparisons.training import TrainingSession
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.session import CheckpointInterval
from fedlap.experiments.stored_run import load_learned_graph
from fedlap.experiments.workers import TaskWorkers
from fedlap.report import Comparison
from fedlap.training.schedule import AUTO_INTERVAL
from fedlap.training.scores import Score
from fedlap.training.scoring_interval import INTERVAL_RULE
from fedlap.training.strength_choice import DEFAULT_RULE, STRENGTH_RULE


def print_data_remarks(ready: Sequence[Prepared]) -> None:
    """Print the warnings about a user's file, and about graphs that leave most clients alone."""
    first = ready[0]
    encoding, remarks = first.federation.encoding, []
    if "path" in first.experiment.data:
        remarks = [*(encoding.describe() if encoding else []), *first.federation.list_warnings()]
    for run in ready:
        if run.experiment.seed == first.experiment.seed:
            graph = run.experiment.graph
            name = Path(graph["path"]).name if graph.get("name") == "file" else graph.get("name", "")
            remarks += list_graph_warnings(run.job.algorithm, name)
    for remark in dict.fromkeys(remarks):
        console.print_remark(f"note: {remark}")


def list_graph_warnings(algorithm: Algorithm, name: str) -> list[str]:
    """Return a warning if most clients have no neighbour in the graph of this name."""
    if not isinstance(algorithm, Coupled):
        return []
    graph = algorithm.coupling.graph
    alone = graph.count_isolated()
    if graph.size < 2 or 2 * alone <= graph.size:
        return []
    return [
        f"{alone:,} of {graph.size:,} clients have no neighbour in graph {name!r}, so no other client helps "
        "them; choose a denser graph"
    ]


def print_default_strengths(unresolved: dict[str, Experiment], resolved: dict[str, Experiment]) -> None:
    """Print the strengths that were not given, once per algorithm if all its labels have the same one."""
    chosen: dict[tuple[str, str], list[str]] = {}
    for label, experiment in resolved.items():
        settings = experiment.algorithm
        setting = unresolved[label].algorithm.get("strength")
        if "strength" in settings and setting in (None, AUTO):
            rule = f"{DEFAULT_RULE}; --strength auto cross-validates it"
            if "smoothing" in settings:
                rule = "by default: min(0.01, smoothing/(lr·R·ρ)); --strength auto cross-validates it"
            rule = rule if setting is None else f"{STRENGTH_RULE} (seed {experiment.seed})"
            text = f"strength = {settings['strength']:g} {rule}"
            chosen.setdefault((settings["name"], text), []).append(label)
    for (name, text), labels in chosen.items():
        alone = [other for other, _ in chosen].count(name) == 1
        for label in [name] if alone else labels:
            console.print_remark(f"{label}: {text}")


def print_intervals(unresolved: dict[str, Experiment], resolved: dict[str, Experiment]) -> None:
    """Print the intervals between scores that were chosen, unless every round is scored."""
    chosen: dict[int, list[str]] = {}
    for label, experiment in resolved.items():
        every = experiment.evaluate_every
        if unresolved[label].evaluate_every == AUTO_INTERVAL and isinstance(every, int) and every != 1:
            chosen.setdefault(every, []).append(label)
    for every, labels in chosen.items():
        subject = "" if len(labels) == len(resolved) else f"{', '.join(labels)}: "
        console.print_remark(
            f"{subject}scores every {every} rounds {INTERVAL_RULE}; --evaluate-every 1 scores every round"
        )


def start_session(options: dict[str, Any], workers: TaskWorkers | None = None) -> TrainingSession:
    """Return the session of a command: runs are stored in --out, and Ctrl-C stops after a checkpoint.

    workers: processes that train stacks of runs; None trains them in this process.
    """
    words = [word.strip() for word in (options["track"] or "").split(",") if word.strip()]
    return TrainingSession(
        options["out"],
        options["again"],
        "--again forces a rerun",
        CheckpointInterval(options["save_rounds"], options["save_seconds"]),
        tuple(words),
        console.err,
        console.print_remark,
        stop_on_signal,
        shlex.join(["fedlap", *sys.argv[1:]]),
        workers,
    )


def print_comparison(comparison: Comparison) -> None:
    """Print the table and the verdict."""
    console.print_result(comparison.describe_table())
    console.out.print(comparison.build_table(console.out.width))
    for line in comparison.describe_verdict():
        console.print_result(line)


def print_run(
    run: RunFolder, experiment: Experiment, scores: Sequence[Score], metric: str | None, as_json: bool
) -> None:
    """Print the scores of one run, up to the last round of the experiment."""
    last, saved = scores[-1], next(iter(run.saved_rounds), 0)
    if as_json:
        facts = {"experiment": experiment.describe(), "last": last.as_dict()}
        print(json.dumps({**facts, "folder": str(run.folder), "folder_round": saved}))
        return
    runs = {experiment.algorithm["name"]: [list(scores)]}
    print_comparison(Comparison(experiment.title, [experiment.seed], runs, metric_name=metric))
    if last.objective is not None:
        gap = "" if last.gap is None else f", duality gap {last.gap:.3g}"
        console.print_result(f"J(W) = {last.objective:.4f}, training loss {last.train_loss:.4f}{gap}")
    learned = load_learned_graph(run)
    if learned is not None:
        at, graph = learned
        parts = "connected" if graph.components == 1 else f"in {graph.components} components"
        when = "" if at == last.round else f" of round {at}"
        console.print_result(f"learned graph{when}: {graph.size} clients, {graph.edges} edges, {parts}")
    console.print_result(f"{last.seconds:.2f} s of training. Stored in {run.folder}")
    if saved > last.round:
        console.print_result(
            f"These are the scores of round {last.round}; the folder and its models are at round {saved}."
        )


def print_ranking(result: ComparisonResult, as_json: bool) -> None:
    """Print the table and the numbers; exit with code 1 if a run diverged."""
    if as_json:
        print(json.dumps({**result.facts, "folder": str(result.folder)}))
    else:
        print_comparison(result.comparison)
        for line in result.advice:
            console.print_result(line)
        console.print_result(
            f"Table and figure are in {result.folder}; `fedlap report {result.folder}` writes an HTML report"
        )
    if result.comparison.list_failures():
        raise typer.Exit(EXIT_FAILED)
