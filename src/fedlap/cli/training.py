"""Commands that train: run and compare."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

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
from fedlap.cli.threads import use_threads
from fedlap.cli.together import all_trained, finish, say_strengths, say_surprises, show, trained
from fedlap.errors import DivergedError, InputError, UnsuitedError
from fedlap.experiment import Experiment
from fedlap.report import Comparison, draw_curves
from fedlap.runs import folder_for, folder_for_all, prepare, write_file
from fedlap.sweeps import Prepared, prepared


@takes(DATA, CUT, TRAINING, SEED, RESULT)
def run(
    algorithm: Annotated[str, typer.Option(help=f"Algorithm: {', '.join(ALGORITHMS)}.")] = "fedu",
    **given: Any,
) -> None:
    """Train one algorithm on one data set and keep the result."""
    use_threads(given["threads"])
    asked = description(given)
    asked["algorithm"] = {"name": algorithm, **algorithm_settings(given)}
    for assignment in given["set"] or []:
        assign(asked, assignment)
    prepare(given["out"])
    described = Experiment.of(asked)
    (ready,) = prepared([described])
    experiment, name = ready.experiment, ready.experiment.algorithm["name"]
    say_surprises(ready)
    say_strengths({name: described}, {name: experiment})
    ((_, scores),) = trained(given["out"], [ready], [name])
    if isinstance(scores, DivergedError):
        raise scores
    folder, last = folder_for(given["out"], experiment), scores[-1]
    if given["json"]:
        print(
            json.dumps({"experiment": experiment.described(), "last": last.as_dict(), "folder": str(folder)})
        )
        return
    show(Comparison(experiment.title, [experiment.seed], {name: [scores]}))
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
    use_threads(given["threads"])
    numbers = seed_numbers(seeds)
    asked = {
        name: Experiment.of({**described, "seed": numbers[0]})
        for name, described in _described(algorithm_names(algorithms), given).items()
    }
    prepare(given["out"])
    planned = [each.model_copy(update={"seed": seed}) for seed in numbers for each in asked.values()]
    ready = _ready(planned, leave_out=algorithms == "all")
    experiments = [each.experiment for each in ready]
    labels = [experiment.algorithm["name"] for experiment in experiments]
    first = dict.fromkeys(labels)
    say_surprises(ready[0])
    say_strengths(asked, dict(zip(first, experiments, strict=False)))
    title, source = experiments[0].title, experiments[0].data["name"]
    comparison = Comparison(title, numbers, all_trained(given["out"], ready, labels), source)
    folder = folder_for_all(given["out"], experiments, "compare")
    write_file(folder / "curves.png", draw_curves(comparison))
    finish(comparison, folder / "comparison.json", "Table and curves", given["json"])


def _described(names: list[str], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The description of each algorithm's experiment; each gets those settings that it has."""
    settings, common = algorithm_settings(given), description(given)
    for assignment in given["set"] or []:
        path, value = parsed(assignment)
        if path.startswith("algorithm."):
            settings[path.removeprefix("algorithm.")] = value
        elif path in ("algorithm", "seed"):
            raise InputError(f"--set {assignment}: compare takes this from --{path}s")
        else:
            assign(common, assignment)
    shared = shared_settings(names, settings)
    return {name: {**common, "algorithm": {"name": name, **shared[name]}} for name in names}


def _ready(planned: Sequence[Experiment], leave_out: bool) -> list[Prepared]:
    """Every run is checked before the first is trained; an algorithm that is unsuited may be left out."""
    ready: list[Prepared] = []
    try:
        for each in prepared(planned):
            ready.append(each)
    except UnsuitedError as error:
        name = planned[len(ready)].algorithm["name"]
        rest = [experiment for experiment in planned if experiment.algorithm["name"] != name]
        if not leave_out or not rest:
            raise
        console.remark(f"note: {name} is left out; {error}")
        return _ready(rest, leave_out)
    return ready
