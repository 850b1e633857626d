"""Commands that train: run and compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.arguments import (
    algorithm_names,
    algorithm_settings,
    assign,
    description,
    parsed,
    seed_numbers,
    shared_settings,
)
from fedlap.cli.options import CUT, DATA, KEEPING, RESULT, SEED, TRAINING, takes
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import (
    all_trained,
    finish,
    kept,
    say_strengths,
    say_surprises,
    show_one,
    trained,
)
from fedlap.errors import DivergedError, InputError, UnsuitedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared, prepared
from fedlap.experiments.run_folder import RunFolder, folder_for_all, prepare, read_experiment
from fedlap.report import Comparison, draw_curves
from fedlap.storage.files import write_file

# What may be given beside a file, which says the rest.
BESIDE_FILE = {"file", "rounds", "threads", "set", *RESULT, *KEEPING}


@takes(DATA, CUT, TRAINING, SEED, RESULT, KEEPING)
def run(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="An experiment.toml, which then says everything.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help=f"Algorithm: {', '.join(ALGORITHMS)}.")] = "fedu",
    **given: Any,
) -> None:
    """Train one algorithm on one data set and keep the result."""
    use_threads(given["threads"])
    if file is None:
        asked = description(given)
        asked["algorithm"] = {"name": algorithm, **algorithm_settings(given)}
    else:
        asked = _beside(context, file)
    for assignment in given["set"] or []:
        assign(asked, assignment)
    prepare(given["out"])
    run_one(Experiment.of(asked), given)


def _beside(context: typer.Context, file: Path) -> dict[str, Any]:
    """What a file describes, with what may be changed beside it."""
    typed = [
        name for name in context.params
        if str(context.get_parameter_source(name)).endswith("COMMANDLINE")
    ]  # fmt: skip
    for name in typed:
        if name not in BESIDE_FILE:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: {str(file)!r} says this already; change it there, or with --set")
    described = read_experiment(file).described()
    return described | ({"rounds": context.params["rounds"]} if "rounds" in typed else {})


def run_one(described: Experiment, given: dict[str, Any]) -> None:
    """Train one experiment, or go on with it, and show what came out."""
    (ready,) = prepared([described])
    experiment, name = ready.experiment, ready.experiment.algorithm["name"]
    say_surprises(ready)
    say_strengths({name: described}, {name: experiment})
    ((_, scores),) = trained(given, [ready], [name])
    if isinstance(scores, DivergedError):
        raise scores
    show_one(RunFolder.of(given["out"], experiment), experiment, scores, given["json"])


@takes(DATA, CUT, TRAINING, RESULT, KEEPING)
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
    comparison = Comparison(title, numbers, all_trained(given, ready, labels), source)
    folder = folder_for_all(given["out"], experiments, "compare")
    write_file(folder / "curves.png", draw_curves(comparison))
    finish(
        comparison,
        folder / "comparison.json",
        "Table and curves",
        given["json"],
        kept(given["out"], ready, labels),
    )


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
