"""Training and printing of runs, for every command that trains."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from fedlap.cli import console
from fedlap.cli.interrupts import stop_on_signal
from fedlap.errors import DivergedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan, RunOutcome
from fedlap.experiments.stored_run import load_learned_graph
from fedlap.report import Comparison
from fedlap.report.seed_list import format_seeds
from fedlap.storage.files import write_file
from fedlap.tracking import build_tracker
from fedlap.tracking.progress import show_progress
from fedlap.training.scores import Score


def print_data_remarks(ready: Prepared) -> None:
    """Print the warnings about a user's file."""
    for remark in ready.federation.list_warnings() if "path" in ready.experiment.data else []:
        console.print_remark(f"note: {remark}")


def print_default_strengths(unresolved: dict[str, Experiment], resolved: dict[str, Experiment]) -> None:
    """Print the default strengths, once per algorithm if all its labels have the same one."""
    chosen: dict[tuple[str, str], list[str]] = {}
    for label, experiment in resolved.items():
        settings = experiment.algorithm
        if "strength" in settings and "strength" not in unresolved[label].algorithm:
            limit = "smoothing" if "smoothing" in settings else "1"
            rule = f"min(0.01, {limit}/(lr·R·ρ)), where ρ is the largest eigenvalue of the graph's Laplacian"
            text = f"strength = {settings['strength']:g} by default: {rule}"
            chosen.setdefault((settings["name"], text), []).append(label)
    for (name, text), labels in chosen.items():
        alone = [other for other, _ in chosen].count(name) == 1
        for label in [name] if alone else labels:
            console.print_remark(f"{label}: {text}")


def train_with_progress(
    options: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> Iterator[tuple[int, RunOutcome]]:
    """Train the runs that are not finished, and yield the index and the outcome of every run.

    Runs are stored in folders while they train. The progress shows the labels, or how many values of
    `fields` are trained at once.
    """
    for number, wave in enumerate(_split_waves(ready)):
        again = options["again"] and number == 0
        runs = [ready[place] for place in wave]
        for place, outcome in _train_wave(
            {**options, "again": again}, runs, [labels[p] for p in wave], fields
        ):
            yield wave[place], outcome


def _train_wave(
    options: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str
) -> Iterator[tuple[int, RunOutcome]]:
    """Train runs of different folders together."""

    def label_stack(places: Sequence[int]) -> str:
        names = list(dict.fromkeys(labels[place] for place in places))
        seeds = sorted({ready[place].experiment.seed for place in places})
        return f"{names[0] if len(names) == 1 else f'{len(names)} values of {fields}'}, {format_seeds(seeds)}"

    def get_rounds(places: Sequence[int]) -> int:
        return ready[places[0]].experiment.rounds

    plan = ResumePlan.of(options["out"], ready, options["again"])
    for remark in (*plan.remarks, *_explain_plan(plan, options["out"])):
        console.print_remark(f"note: {remark}")
    yield from plan.outcomes.items()
    if not plan.remaining:
        return
    words = [word.strip() for word in (options["track"] or "").split(",") if word.strip()]
    trackers = {
        place: build_tracker(words, plan.runs[place].folder, console.print_remark) for place in plan.remaining
    }
    interval, stacks = CheckpointInterval(options["save_rounds"], options["save_seconds"]), plan.pack()
    scored = "validation" if all(run.experiment.fold is not None for run in ready) else "test"
    with (
        stop_on_signal() as stopping,
        show_progress(console.err, stacks, label_stack, get_rounds, scored) as (on_score, on_round),
    ):
        callbacks = ProgressCallbacks(
            interval, stopping, on_score, on_round, lambda text: console.print_remark(f"note: {text}")
        )
        yield from plan.train(stacks, callbacks, trackers)


def _split_waves(ready: Sequence[Prepared]) -> list[list[int]]:
    """Split indices into waves: runs that differ only in rounds share a folder, and resume one another."""
    by_digest: dict[str, list[int]] = {}
    for place in sorted(range(len(ready)), key=lambda place: ready[place].experiment.rounds):
        by_digest.setdefault(ready[place].experiment.digest, []).append(place)
    longest = max(map(len, by_digest.values()))
    return [
        sorted(places[wave] for places in by_digest.values() if wave < len(places)) for wave in range(longest)
    ]


def _explain_plan(plan: ResumePlan, out: Path) -> Iterator[str]:
    """Yield remarks about runs that are loaded or resumed."""
    one = len(plan.runs) == 1
    if plan.outcomes:
        subject = "this run is" if one else f"{len(plan.outcomes)} of {len(plan.runs)} runs are"
        more = f", `fedlap resume {plan.runs[0].folder} --rounds …` trains further" if one else ""
        yield f"{subject} finished and loaded from {out}; --again forces a rerun{more}"
    resumed_rounds = [
        plan.prepared[place].job.rounds_done
        for place in plan.remaining
        if plan.prepared[place].job.rounds_done
    ]
    if resumed_rounds:
        subject = "this run resumes" if one else f"{len(resumed_rounds)} of {len(plan.runs)} runs resume"
        first, last = min(resumed_rounds), max(resumed_rounds)
        at = f"round {first}" if first == last else f"rounds {first} to {last}"
        yield f"{subject} from {at}; --again forces a rerun"


def train_by_label(
    options: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> dict[str, list[RunOutcome]]:
    """Train runs and return outcomes per label; a diverged run is reported, the others continue."""
    outcomes: dict[int, RunOutcome] = {}
    for place, outcome in train_with_progress(options, ready, labels, fields):
        outcomes[place] = outcome
        if isinstance(outcome, DivergedError):
            console.print_remark(f"error: {labels[place]}, seed {ready[place].experiment.seed}: {outcome}")
    runs: dict[str, list[RunOutcome]] = {}
    for place, label in enumerate(labels):
        runs.setdefault(label, []).append(outcomes[place])
    return runs


def print_comparison(comparison: Comparison) -> None:
    """Print the table and the verdict."""
    console.print_result(comparison.describe_table())
    console.out.print(comparison.build_table(console.out.width))
    for line in comparison.describe_verdict():
        console.print_result(line)


def print_run(run: RunFolder, experiment: Experiment, scores: Sequence[Score], as_json: bool) -> None:
    """Print the scores of one run, up to the last round of the experiment."""
    last, saved = scores[-1], next(iter(run.saved_rounds), 0)
    if as_json:
        facts = {"experiment": experiment.describe(), "last": last.as_dict()}
        print(json.dumps({**facts, "folder": str(run.folder), "folder_round": saved}))
        return
    print_comparison(
        Comparison(experiment.title, [experiment.seed], {experiment.algorithm["name"]: [list(scores)]})
    )
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


def describe_folders(out: Path, ready: Sequence[Prepared], labels: Sequence[str]) -> dict[str, Any]:
    """Return the command and, per row, the runs' folders and their rounds, as `fedlap report` needs them.

    Print a remark if folders are past the last round of the table.
    """
    rows: dict[str, list[str]] = {}
    rounds: dict[str, list[int]] = {}
    later = []
    for prepared, label in zip(ready, labels, strict=True):
        run = RunFolder.of(out, prepared.experiment)
        saved = next(iter(run.saved_rounds), 0)
        rows.setdefault(label, []).append(run.name)
        rounds.setdefault(label, []).append(saved)
        later += [saved] if saved > prepared.experiment.rounds else []
    if later:
        console.print_remark(
            f"note: {len(later)} of {len(ready)} runs were trained further, up to round {max(later)}; their "
            "folders and models are at that later round"
        )
    return {"command": shlex.join(["fedlap", *sys.argv[1:]]), "kept": rows, "folder_rounds": rounds}


def finish_comparison(
    comparison: Comparison, file: Path, contents: str, as_json: bool, runs: dict[str, Any]
) -> None:
    """Write and print the table and the numbers; exit with code 1 if a run diverged."""
    folder, facts = file.parent, comparison.as_dict() | runs
    write_file(folder / "table.md", comparison.render_markdown().encode())
    write_file(file, json.dumps(facts, indent=1).encode())
    if as_json:
        print(json.dumps({**facts, "folder": str(folder)}))
    else:
        print_comparison(comparison)
        console.print_result(f"{contents} are in {folder}; `fedlap report {folder}` writes an HTML report")
    if comparison.list_failures():
        raise typer.Exit(1)
