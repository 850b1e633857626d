"""Commands that train: run and compare."""

import json
from typing import Annotated, Any

import torch
import typer

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.description import (
    algorithm_names,
    algorithm_settings,
    assign,
    description,
    parsed,
    seed_numbers,
    shared_settings,
)
from fedlap.cli.options import CUT, DATA, RESULT, SEED, TRAINING, takes
from fedlap.errors import InputError, UnsuitedError
from fedlap.experiment import Experiment
from fedlap.report import Comparison, draw_curves
from fedlap.report.progress import progress
from fedlap.result import Result
from fedlap.runs import folder_for_all, prepare, write_file, write_run
from fedlap.scores import Score


@takes(DATA, CUT, TRAINING, SEED, RESULT)
def run(
    algorithm: Annotated[str, typer.Option(help=f"Algorithm: {', '.join(ALGORITHMS)}.")] = "fedu",
    **given: Any,
) -> None:
    """Train one algorithm on one data set and keep the result."""
    _use_threads(given["threads"])
    asked = description(given)
    asked["algorithm"] = {"name": algorithm, **algorithm_settings(given)}
    for assignment in given["set"] or []:
        assign(asked, assignment)
    prepare(given["out"])
    experiment = _settled(Experiment.of(asked))
    result = _train(experiment)
    folder = write_run(given["out"], experiment, result)
    last = result.scores[-1]
    if given["json"]:
        print(
            json.dumps({"experiment": experiment.described(), "last": last.as_dict(), "folder": str(folder)})
        )
        return
    runs = {experiment.algorithm["name"]: [result.scores]}
    console.out.print(Comparison(experiment.title, [experiment.seed], runs).table(console.out.width))
    gap = "" if last.gap is None else f", duality gap {last.gap:.3g}"
    console.result(f"J(W) = {last.objective:.4f}, training loss {last.train_loss:.4f}{gap}")
    console.result(f"{last.seconds:.2f} s of training. Kept in {folder}")


@takes(DATA, CUT, TRAINING, RESULT)
def compare(
    algorithms: Annotated[
        str, typer.Option(help=f"Names with commas between, or 'all': {', '.join(ALGORITHMS)}.")
    ] = "fedu,local,global",
    seeds: Annotated[str, typer.Option(help="As in 0-4 or 0,3,7.")] = "0-4",
    **given: Any,
) -> None:
    """Train several algorithms from the same starts on the same clients and batches."""
    _use_threads(given["threads"])
    names, numbers = algorithm_names(algorithms), seed_numbers(seeds)
    settings = algorithm_settings(given)
    common = description(given)
    for assignment in given["set"] or []:
        path, value = parsed(assignment)
        if path.startswith("algorithm."):
            settings[path.removeprefix("algorithm.")] = value
        elif path in ("algorithm", "seed"):
            raise InputError(f"--set {assignment}: compare takes this from --{path}s")
        else:
            assign(common, assignment)
    shared = shared_settings(names, settings)
    asked = {name: {**common, "algorithm": {"name": name, **shared[name]}} for name in names}
    prepare(given["out"])
    # Every algorithm is checked before the first is trained; a random graph's ρ may differ between seeds.
    first: list[Experiment] = []
    for name in list(names):
        try:
            first.append(_settled(Experiment.of({**asked[name], "seed": numbers[0]}), remarks=not first))
        except UnsuitedError as error:
            if algorithms != "all":
                raise
            console.remark(f"note: {name} is left out; {error}")
            names.remove(name)
    rest = [
        Experiment.of({**asked[name], "seed": seed}).checked()[0] for seed in numbers[1:] for name in names
    ]
    planned = first + rest
    runs: dict[str, list[list[Score]]] = {name: [] for name in names}
    for experiment in planned:
        result = _train(experiment, lines=1)
        write_run(given["out"], experiment, result)
        runs[experiment.algorithm["name"]].append(result.scores)
    comparison = Comparison(planned[0].title, numbers, runs, planned[0].data["name"])
    folder = folder_for_all(given["out"], planned)
    write_file(folder / "table.md", comparison.markdown().encode())
    write_file(folder / "curves.png", draw_curves(comparison))
    write_file(folder / "comparison.json", json.dumps(comparison.as_dict(), indent=1).encode())
    if given["json"]:
        print(json.dumps({**comparison.as_dict(), "folder": str(folder)}))
        return
    console.out.print(comparison.table(console.out.width))
    for line in comparison.verdict():
        console.result(line)
    console.result(f"Table and curves are in {folder}")


def _settled(experiment: Experiment, remarks: bool = True) -> Experiment:
    """The experiment, checked; says what may surprise, and which strength it chose where none was given."""
    made, federation = experiment.checked()
    for remark in federation.remarks() if remarks and "path" in made.data else []:
        console.remark(f"note: {remark}")
    name, eta = made.algorithm["name"], made.algorithm.get("strength")
    if eta is not None and "strength" not in experiment.algorithm:
        limit = "smoothing" if "smoothing" in made.algorithm else "1"
        rule = f"by default min(0.01, {limit}/(lr·R·ρ)), ρ the largest eigenvalue of the graph's Laplacian"
        console.remark(f"{name}  strength = {eta:g}, {rule}")
    return made


def _train(experiment: Experiment, lines: int = 5) -> Result:
    """Train with progress."""
    name = f"{experiment.algorithm['name']} seed {experiment.seed}"
    with progress(console.err, name, experiment.rounds, lines) as (on_score, on_round):
        return experiment.run(on_score, on_round)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
