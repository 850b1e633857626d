"""Runs that are made ready and trained together, for every command that trains."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from fedlap.cli import console
from fedlap.cli.description import seeds_text
from fedlap.errors import DivergedError
from fedlap.experiment import Experiment
from fedlap.report import Comparison, Outcome
from fedlap.report.progress import progress
from fedlap.runs import write_file, write_run
from fedlap.sweeps import Prepared, stacks, train_all


def say_surprises(ready: Prepared) -> None:
    """Say what may surprise in somebody's own file."""
    for remark in ready.federation.remarks() if "path" in ready.experiment.data else []:
        console.remark(f"note: {remark}")


def say_strengths(asked: dict[str, Experiment], ready: dict[str, Experiment]) -> None:
    """Say which strength was chosen where none was given; once, where all labels of an algorithm have one."""
    chosen: dict[tuple[str, str], list[str]] = {}
    for label, experiment in ready.items():
        made = experiment.algorithm
        if "strength" in made and "strength" not in asked[label].algorithm:
            limit = "smoothing" if "smoothing" in made else "1"
            rule = f"min(0.01, {limit}/(lr·R·ρ)), ρ the largest eigenvalue of the graph's Laplacian"
            text = f"strength = {made['strength']:g}, by default {rule}"
            chosen.setdefault((made["name"], text), []).append(label)
    for (name, text), labels in chosen.items():
        alone = [other for other, _ in chosen].count(name) == 1
        for who in [name] if alone else labels:
            console.remark(f"{who}  {text}")


def trained(
    out: Path, ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> Iterator[tuple[int, Outcome]]:
    """Train all, with progress, each kept in its folder as soon as it is done: its place and what came out.

    Labels, and the fields that these are values of, say in the progress what is being trained.
    """

    def name(places: Sequence[int]) -> str:
        own = list(dict.fromkeys(labels[place] for place in places))
        seeds = sorted({ready[place].experiment.seed for place in places})
        return f"{own[0] if len(own) == 1 else f'{len(own)} values of {fields}'}, {seeds_text(seeds)}"

    def rounds(places: Sequence[int]) -> int:
        return ready[places[0]].experiment.rounds

    with progress(console.err, stacks(ready), name, rounds) as (on_score, on_round):
        for place, made in train_all(ready, on_score, on_round):
            if isinstance(made, DivergedError):
                yield place, made
            else:
                write_run(out, ready[place].experiment, made)
                yield place, made.scores


def all_trained(
    out: Path, ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> dict[str, list[Outcome]]:
    """The same, by label and seed; of a run that diverges it is said why, and the others go on."""
    outcomes: dict[int, Outcome] = {}
    for place, outcome in trained(out, ready, labels, fields):
        outcomes[place] = outcome
        if isinstance(outcome, DivergedError):
            console.remark(f"error: {labels[place]}, seed {ready[place].experiment.seed}: {outcome}")
    runs: dict[str, list[Outcome]] = {}
    for place, label in enumerate(labels):
        runs.setdefault(label, []).append(outcomes[place])
    return runs


def show(made: Comparison) -> None:
    """Print the table and the verdict."""
    console.result(made.title())
    console.out.print(made.table(console.out.width))
    for line in made.verdict():
        console.result(line)


def finish(made: Comparison, file: Path, what: str, as_json: bool) -> None:
    """Keep the table and the numbers and print them; exit code 1 where a run diverged."""
    folder = file.parent
    write_file(folder / "table.md", made.markdown().encode())
    write_file(file, json.dumps(made.as_dict(), indent=1).encode())
    if as_json:
        print(json.dumps({**made.as_dict(), "folder": str(folder)}))
    else:
        show(made)
        console.result(f"{what} are in {folder}")
    if made.failures():
        raise typer.Exit(1)
