"""The command that varies settings: sweep."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fedlap.algorithms import ALGORITHMS
from fedlap.cli.arguments import (
    algorithm_names,
    algorithm_settings,
    assign,
    description,
    parsed,
    seed_numbers,
)
from fedlap.cli.options import CUT, DATA, KEEPING, RESULT, TRAINING, takes
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import all_trained, finish, kept, say_strengths, say_surprises
from fedlap.cli.vary import Combination, combinations
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared, prepared
from fedlap.experiments.run_folder import folder_for_all, prepare
from fedlap.report import Sweep, draw_sweep
from fedlap.storage.files import write_file


@takes(DATA, CUT, TRAINING, RESULT, KEEPING)
def sweep(
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A field and its values, as in strength=0,0.01,0.1 or model.hidden=[50],[100]; "
            "repeated: all combinations."
        ),
    ] = None,
    algorithm: Annotated[str, typer.Option(help=f"Algorithm: {', '.join(ALGORITHMS)}.")] = "fedu",
    seeds: Annotated[str, typer.Option(help="As in 0-4 or 0,3,7.")] = "0-4",
    **given: Any,
) -> None:
    """Train with several values of any field, in all combinations."""
    use_threads(given["threads"])
    numbers, common = seed_numbers(seeds), common_to_all("sweep", algorithm, given)
    (name,) = algorithm_names(str(common["algorithm"]["name"]))
    tried = combinations(vary or [], name)
    asked = asked_of("sweep", tried, common, numbers[0])
    prepare(given["out"])
    # Seed by seed, so that what cannot be run is found before much data are loaded.
    ready = _ready(tried * len(numbers), [_at(each, seed) for seed in numbers for each in asked.values()])
    experiments, labels = [each.experiment for each in ready], list(asked) * len(numbers)
    say_surprises(ready[0])
    say_strengths(asked, dict(zip(asked, experiments, strict=False)))
    fields = tuple(field.name for field in tried[0].fields)
    made = Sweep(
        experiments[0].title,
        numbers,
        all_trained(given, ready, labels, " × ".join(fields)),
        experiments[0].data["name"],
        fields,
        {each.label: each.values for each in tried},
        tuple(dict.fromkeys(experiment.algorithm["name"] for experiment in experiments)),
    )
    folder = folder_for_all(given["out"], experiments, "sweep")
    write_file(folder / "sweep.png", draw_sweep(made))
    finish(made, folder / "sweep.json", "Table and picture", given["json"], kept(given["out"], ready, labels))


def common_to_all(command: str, algorithm: str, given: dict[str, Any]) -> dict[str, Any]:
    """What all runs have in common."""
    common = description(given)
    common["algorithm"] = {"name": algorithm, **algorithm_settings(given)}
    for assignment in given["set"] or []:
        if parsed(assignment)[0] == "seed":
            raise InputError(f"--set {assignment}: {command} takes this from --seeds")
        assign(common, assignment)
    return common


def _at(experiment: Experiment, seed: int) -> Experiment:
    return experiment.model_copy(update={"seed": seed})


def asked_of(
    command: str, tried: Sequence[Combination], common: dict[str, Any], seed: int
) -> dict[str, Experiment]:
    """The experiment of each combination; two that are the same show that a field is not used."""
    asked: dict[str, Experiment] = {}
    for each in tried:
        made = each.experiment(common, seed)
        for label, other in asked.items():
            if made == other:
                raise InputError(
                    f"{command}: {label} and {each.label} are the same run, since {made.algorithm['name']} "
                    "does not use what differs; vary another field"
                )
        asked[each.label] = made
    return asked


def _ready(tried: list[Combination], planned: list[Experiment]) -> list[Prepared]:
    """Every run is checked before the first is trained; one that is refused is named."""
    ready: list[Prepared] = []
    try:
        for each in prepared(planned):
            ready.append(each)
    except InputError as error:
        raise tried[len(ready)].refused(error) from None
    check_scores("sweep", ready)
    return ready


def check_scores(command: str, ready: Sequence[Prepared]) -> None:
    """Refuse runs that cannot be ranked."""
    if len({each.federation.labels is None for each in ready}) > 1:
        raise InputError(
            f"{command}: some of these runs are scored by accuracy and some by loss, so that none is best; "
            f"{command} each task by itself"
        )
