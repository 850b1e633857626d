"""Runs that are made ready and trained together, for every command that trains."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from fedlap.cli import console
from fedlap.cli.arguments import seeds_text
from fedlap.cli.graph_source import learned_graph
from fedlap.cli.interrupts import stop_on_signal
from fedlap.errors import DivergedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.session import Interval, ResumePlan, Watch
from fedlap.report import Comparison, Outcome
from fedlap.report.progress import progress
from fedlap.storage.files import write_file
from fedlap.tracking import tracker_for
from fedlap.training.scores import Score


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
    given: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> Iterator[tuple[int, Outcome]]:
    """Train what is not there yet, with progress, kept in folders meanwhile: places and what came out.

    Labels, and the fields that these are values of, say in the progress what is being trained.
    """

    for number, wave in enumerate(_waves(ready)):
        again = given["again"] and number == 0
        some = [ready[place] for place in wave]
        for place, outcome in _one_wave({**given, "again": again}, some, [labels[p] for p in wave], fields):
            yield wave[place], outcome


def _one_wave(
    given: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str
) -> Iterator[tuple[int, Outcome]]:
    """Runs with a folder for each."""

    def name(places: Sequence[int]) -> str:
        own = list(dict.fromkeys(labels[place] for place in places))
        seeds = sorted({ready[place].experiment.seed for place in places})
        return f"{own[0] if len(own) == 1 else f'{len(own)} values of {fields}'}, {seeds_text(seeds)}"

    def rounds(places: Sequence[int]) -> int:
        return ready[places[0]].experiment.rounds

    plan = ResumePlan.of(given["out"], ready, given["again"])
    for remark in (*plan.remarks, *_known(plan, given["out"])):
        console.remark(f"note: {remark}")
    yield from plan.done.items()
    if not plan.left:
        return
    words = [word.strip() for word in (given["track"] or "").split(",") if word.strip()]
    told = {place: tracker_for(words, plan.runs[place].folder, console.remark) for place in plan.left}
    interval, stacks = Interval(given["save_rounds"], given["save_seconds"]), plan.stacks()
    with stop_on_signal() as stopping, progress(console.err, stacks, name, rounds) as (on_score, on_round):
        watch = Watch(interval, stopping, on_score, on_round, lambda text: console.remark(f"note: {text}"))
        yield from plan.trained(stacks, watch, told)


def _waves(ready: Sequence[Prepared]) -> list[list[int]]:
    """Places in waves: an experiment with several numbers of rounds is one run, which goes on in the next."""
    by_digest: dict[str, list[int]] = {}
    for place in sorted(range(len(ready)), key=lambda place: ready[place].experiment.rounds):
        by_digest.setdefault(ready[place].experiment.digest, []).append(place)
    longest = max(map(len, by_digest.values()))
    return [sorted(some[at] for some in by_digest.values() if at < len(some)) for at in range(longest)]


def _known(plan: ResumePlan, out: Path) -> Iterator[str]:
    """What is there already, and what can be done about it."""
    one = len(plan.runs) == 1
    if plan.done:
        what = "this run is" if one else f"{len(plan.done)} of {len(plan.runs)} runs are"
        more = f"; `fedlap resume {plan.runs[0].folder} --rounds …` goes on" if one else ""
        yield f"{what} there already and shown from {out}; --again repeats {'it' if one else 'them'}{more}"
    begun = [plan.ready[place].trial.done for place in plan.left if plan.ready[place].trial.done]
    if begun:
        what = "this run goes" if one else f"{len(begun)} of {len(plan.runs)} runs go"
        at = f"round {min(begun)}" if len(set(begun)) == 1 else f"rounds {min(begun)} to {max(begun)}"
        yield f"{what} on from {at}; --again begins anew"


def all_trained(
    given: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str = "algorithm"
) -> dict[str, list[Outcome]]:
    """The same, by label and seed; of a run that diverges it is said why, and the others go on."""
    outcomes: dict[int, Outcome] = {}
    for place, outcome in trained(given, ready, labels, fields):
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


def show_one(run: RunFolder, experiment: Experiment, scores: Sequence[Score], as_json: bool) -> None:
    """Print what came out of one run, in the rounds that the experiment asks for."""
    last, saved = scores[-1], next(iter(run.saved), 0)
    if as_json:
        said = {"experiment": experiment.described(), "last": last.as_dict()}
        print(json.dumps({**said, "folder": str(run.folder), "folder_round": saved}))
        return
    show(Comparison(experiment.title, [experiment.seed], {experiment.algorithm["name"]: [list(scores)]}))
    gap = "" if last.gap is None else f", duality gap {last.gap:.3g}"
    console.result(f"J(W) = {last.objective:.4f}, training loss {last.train_loss:.4f}{gap}")
    learned = learned_graph(run)
    if learned is not None:
        at, graph = learned
        parts = "connected" if graph.components == 1 else f"in {graph.components} components"
        when = "" if at == last.round else f" of round {at}"
        console.result(f"learned graph{when}: {graph.size} clients, {graph.edges} edges, {parts}")
    console.result(f"{last.seconds:.2f} s of training. Kept in {run.folder}")
    if saved > last.round:
        console.result(
            f"These scores are of round {last.round}; the folder is at round {saved}, and its models are of "
            f"round {saved}."
        )


def kept(out: Path, ready: Sequence[Prepared], labels: Sequence[str]) -> dict[str, Any]:
    """What a page can be made from: the command, and the runs' folders and their rounds, row by row.

    Folders that are past the round that is shown are pointed out.
    """
    rows: dict[str, list[str]] = {}
    rounds: dict[str, list[int]] = {}
    later = []
    for each, label in zip(ready, labels, strict=True):
        run = RunFolder.of(out, each.experiment)
        saved = next(iter(run.saved), 0)
        rows.setdefault(label, []).append(run.name)
        rounds.setdefault(label, []).append(saved)
        later += [saved] if saved > each.experiment.rounds else []
    if later:
        console.remark(
            f"note: {len(later)} of {len(ready)} runs are past the round that is shown, up to round "
            f"{max(later)}; their folders and models are of that later round"
        )
    return {"command": shlex.join(["fedlap", *sys.argv[1:]]), "kept": rows, "folder_rounds": rounds}


def finish(made: Comparison, file: Path, what: str, as_json: bool, runs: dict[str, Any]) -> None:
    """Keep the table and the numbers and print them; exit code 1 where a run diverged."""
    folder, said = file.parent, made.as_dict() | runs
    write_file(folder / "table.md", made.markdown().encode())
    write_file(file, json.dumps(said, indent=1).encode())
    if as_json:
        print(json.dumps({**said, "folder": str(folder)}))
    else:
        show(made)
        console.result(f"{what} are in {folder}; `fedlap report {folder}` makes a page")
    if made.failures():
        raise typer.Exit(1)
