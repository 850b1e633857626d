"""The command that chooses settings by cross-validation: tune."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import tomli_w
import typer

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.arguments import algorithm_names, parsed, seed_numbers
from fedlap.cli.options import CUT, DATA, KEEPING, RESULT, TRAINING, takes
from fedlap.cli.sweep import asked_of, check_scores, common_to_all
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import kept, say_strengths, say_surprises, show, trained
from fedlap.cli.tune_proposals import propose
from fedlap.cli.vary import Combination, combinations
from fedlap.errors import DivergedError, InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Loader, Prepared
from fedlap.experiments.run_folder import folder_for_all, prepare
from fedlap.report import Outcome
from fedlap.report.tuning_table import Tuning
from fedlap.storage.files import write_file
from fedlap.training.tuning import grid


@takes(DATA, CUT, TRAINING, RESULT, KEEPING)
def tune(
    context: typer.Context,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A field and its values, as in strength=0.001,0.01,0.1; repeated: all combinations "
            "(default: rates and, on a graph, strengths up to the largest that is stable)."
        ),
    ] = None,
    algorithm: Annotated[str, typer.Option(help=f"Algorithm: {', '.join(ALGORITHMS)}.")] = "fedu",
    folds: Annotated[int, typer.Option(help="Folds that training rows are cut into.", min=2, max=1000)] = 5,
    seeds: Annotated[str, typer.Option(help="As in 0-4 or 0,3,7.")] = "0",
    **given: Any,
) -> None:
    """Choose strengths, rates or any field by cross-validation on training rows; test rows are not seen."""
    use_threads(given["threads"])
    _check_fold("--set", [parsed(text)[0] for text in given["set"] or []])
    numbers, common = seed_numbers(seeds), common_to_all("tune", algorithm, given)
    (name,) = algorithm_names(str(common["algorithm"]["name"]))
    loader = Loader()
    tried = combinations(vary, name) if vary else _usual(loader, common, numbers[0], name)
    _check_fold("--vary", [field.path for field in tried[0].fields])
    asked = asked_of("tune", tried, common, numbers[0])
    prepare(given["out"])
    # Scores of other rounds are not looked at.
    quick = {} if "evaluate_every" in common else {"evaluate_every": 0}
    accepted, refused = _accepted(loader, tried, asked, list(_places(numbers, folds)), quick)
    ready = [run for runs in zip(*accepted.values(), strict=True) for run in runs]
    check_scores("tune", ready)
    say_surprises(ready[0])
    say_strengths(asked, {label: runs[0].experiment for label, runs in accepted.items()})
    made = Tuning(
        ready[0].experiment.title,
        [seed for seed, _ in _places(numbers, folds)],
        _outcomes(given, ready, list(accepted), " × ".join(field.name for field in tried[0].fields)),
        ready[0].experiment.data["name"],
        tuple(field.name for field in tried[0].fields),
        {each.label: each.values for each in tried if each.label in accepted},
        tuple(dict.fromkeys(runs[0].experiment.algorithm["name"] for runs in accepted.values())),
        folds,
        tuple((each.values, str(refused[each.label])) for each in tried if each.label in refused),
    )
    folder = folder_for_all(given["out"], [run.experiment for run in ready], "tune")
    write_file(folder / "table.md", made.markdown().encode())
    labels = list(accepted) * (len(ready) // len(accepted))
    said: dict[str, Any] = made.as_dict() | kept(given["out"], ready, labels)
    proposals: list[tuple[str, str]] = []
    if made.best is not None:
        file, best = folder / "tuned.toml", next(each for each in tried if each.label == made.best)
        write_file(file, tomli_w.dumps(asked[made.best].described()).encode())
        proposals = propose(context, best, asked[made.best], file)
        said |= {"tuned": str(file), "commands": [command for _, command in proposals]}
    write_file(folder / "tune.json", json.dumps(said, indent=1).encode())
    if given["json"]:
        print(json.dumps(said | {"folder": str(folder)}))
    else:
        show(made)
        for purpose, command in proposals:
            console.result(f"{purpose}: {command}")
        console.result(f"Table and scores are in {folder}; `fedlap report {folder}` makes a page")
    if made.best is None:
        raise typer.Exit(1)


def _usual(loader: Loader, common: dict[str, Any], seed: int, name: str) -> list[Combination]:
    """Values to try where none are given; what was fixed stays."""
    described = Experiment.of({**common, "seed": seed})
    method, _, _ = described.build(loader.load(described))
    values = grid(method, fixed=common["algorithm"])
    if not values:
        raise InputError(
            f"tune: nothing of {name} is left to choose; vary a field, as in --vary local_steps=5,10"
        )
    return combinations([f"{key}={','.join(map(repr, some))}" for key, some in values.items()], name)


def _check_fold(option: str, paths: Sequence[str]) -> None:
    """Folds are the command's own."""
    for path in paths:
        if path.split(".")[0] == "fold":
            raise InputError(f"{option} {path}: tune takes this from --folds")


def _places(seeds: Sequence[int], folds: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Seeds and folds, in the order of their runs."""
    for seed in seeds:
        for held_out in range(folds):
            yield seed, {"number": folds, "held_out": held_out}


def _accepted(
    loader: Loader,
    tried: Sequence[Combination],
    asked: dict[str, Experiment],
    places: Sequence[tuple[int, dict[str, int]]],
    quick: dict[str, int],
) -> tuple[dict[str, list[Prepared]], dict[str, InputError]]:
    """The runs of each candidate; one that is refused is left out, as long as any is left."""

    def cut(whole: Experiment) -> list[Experiment]:
        return [whole.model_copy(update={"seed": seed, "fold": fold, **quick}) for seed, fold in places]

    for each in cut(asked[tried[0].label]):
        loader.load(each)  # data that cannot be had are nobody's setting
    accepted: dict[str, list[Prepared]] = {}
    refused: dict[str, InputError] = {}
    for label, whole in asked.items():
        try:
            loader.ready(whole)
            accepted[label] = [loader.ready(each) for each in cut(whole)]
        except InputError as error:
            refused[label] = error
    if not accepted:
        raise tried[0].refused(refused[tried[0].label])
    for label, reason in refused.items():
        console.remark(f"note: {label} is left out; {reason}")
    return accepted, refused


def _outcomes(
    given: dict[str, Any], ready: Sequence[Prepared], labels: Sequence[str], fields: str
) -> dict[str, list[Outcome]]:
    """What came out of each candidate's runs; of one that diverged it is said why, once."""
    outcomes = dict(trained(given, ready, list(labels) * (len(ready) // len(labels)), fields))
    made = {
        label: [outcomes[place] for place in range(at, len(ready), len(labels))]
        for at, label in enumerate(labels)
    }
    for label, runs in made.items():
        reason = next((run for run in runs if isinstance(run, DivergedError)), None)
        if reason is not None:
            console.remark(f"note: {label}: {reason}")
    return made
