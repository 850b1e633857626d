"""The command that selects settings by cross-validation: tune."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import tomli_w
import typer

from fedlap.cli import console
from fedlap.cli.arguments import parse_algorithms, parse_assignment, parse_seeds
from fedlap.cli.exit_codes import EXIT_FAILED
from fedlap.cli.sweep import describe_common_fields
from fedlap.cli.task_workers import open_workers
from fedlap.cli.train_runs import print_comparison, print_data_remarks, print_default_strengths, start_session
from fedlap.cli.tune_proposals import propose_commands
from fedlap.cli.vary import list_combinations
from fedlap.comparisons.prepared_rows import check_same_task
from fedlap.comparisons.run_rows import describe_folders
from fedlap.comparisons.sweep import build_experiments
from fedlap.comparisons.training import TrainingSession, train_outcomes
from fedlap.errors import DivergedError, InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fields import Combination
from fedlap.experiments.prepare import Loader, Prepared
from fedlap.experiments.run_folder import choose_group_folder, create_out_folder
from fedlap.experiments.session import RunOutcome
from fedlap.report.tuning_table import Tuning
from fedlap.storage.files import write_file
from fedlap.training.metrics import check_metric
from fedlap.training.schedule import AUTO_INTERVAL
from fedlap.training.tuning import default_grid


def tune_settings(
    context: typer.Context,
    vary: list[str] | None,
    algorithm: str,
    folds: int,
    seeds: str,
    options: dict[str, Any],
) -> None:
    """Select settings by cross-validation on training rows."""
    workers = open_workers(context, options["workers"], options["address"], options["threads"])
    _check_fold("--set", [parse_assignment(text)[0] for text in options["set"] or []])
    numbers, common = parse_seeds(seeds), describe_common_fields("tune", algorithm, options)
    (name,) = parse_algorithms(str(common["algorithm"]["name"]))
    loader = Loader()
    candidates = (
        list_combinations(vary, name) if vary else _list_default_candidates(loader, common, numbers[0], name)
    )
    _check_fold("--vary", [field.path for field in candidates[0].fields])
    unresolved = build_experiments("tune", candidates, common, numbers[0])
    create_out_folder(options["out"])
    session = start_session(options, workers)
    # Only the last round is scored, since nothing else is compared.
    overrides = {"evaluate_every": 0} if common["evaluate_every"] == AUTO_INTERVAL else {}
    accepted, rejected = _prepare_candidates(
        loader, candidates, unresolved, list(_list_seeds_and_folds(numbers, folds)), overrides
    )
    ready = [run for runs in zip(*accepted.values(), strict=True) for run in runs]
    check_same_task(ready)
    check_metric(options["metric"], ready[0].federation.labels is not None)
    print_data_remarks(ready)
    print_default_strengths(unresolved, {label: runs[0].experiment for label, runs in accepted.items()})
    tuning = Tuning(
        ready[0].experiment.title,
        [seed for seed, _ in _list_seeds_and_folds(numbers, folds)],
        _train_candidates(
            session, ready, list(accepted), " × ".join(field.name for field in candidates[0].fields)
        ),
        ready[0].experiment.data["name"],
        tuple(field.name for field in candidates[0].fields),
        {candidate.label: candidate.values for candidate in candidates if candidate.label in accepted},
        tuple(dict.fromkeys(runs[0].experiment.algorithm["name"] for runs in accepted.values())),
        folds,
        tuple(
            (candidate.values, str(rejected[candidate.label]))
            for candidate in candidates
            if candidate.label in rejected
        ),
        metric_name=options["metric"],
    )
    folder = choose_group_folder(options["out"], [run.experiment for run in ready], "tune")
    write_file(folder / "table.md", tuning.render_markdown().encode())
    labels = list(accepted) * (len(ready) // len(accepted))
    facts: dict[str, Any] = tuning.as_dict() | describe_folders(session, ready, labels)
    proposals: list[tuple[str, str]] = []
    if tuning.best is not None:
        file = folder / "tuned.toml"
        best = next(candidate for candidate in candidates if candidate.label == tuning.best)
        write_file(file, tomli_w.dumps(unresolved[tuning.best].describe()).encode())
        proposals = propose_commands(context, best, unresolved[tuning.best], file)
        facts |= {"tuned": str(file), "commands": [command for _, command in proposals]}
    write_file(folder / "tune.json", json.dumps(facts, indent=1).encode())
    if options["json"]:
        print(json.dumps(facts | {"folder": str(folder)}))
    else:
        print_comparison(tuning)
        for purpose, command in proposals:
            console.print_result(f"{purpose}: {command}")
        console.print_result(
            f"Table and scores are in {folder}; `fedlap report {folder}` writes an HTML report"
        )
    if tuning.best is None:
        raise typer.Exit(EXIT_FAILED)


def _list_default_candidates(
    loader: Loader, common: dict[str, Any], seed: int, name: str
) -> list[Combination]:
    """Return the default candidates; settings that were passed stay fixed."""
    experiment = Experiment.of({**common, "seed": seed})
    method, _, _ = experiment.build(loader.load(experiment))
    values = default_grid(method, fixed=common["algorithm"])
    if not values:
        raise InputError(
            f"tune: no setting of {name} is left to tune; vary a field, e.g. --vary local_steps=5,10"
        )
    return list_combinations(
        [f"{key}={','.join(map(repr, numbers))}" for key, numbers in values.items()], name
    )


def _check_fold(option: str, paths: Sequence[str]) -> None:
    """Raise if an option sets the folds, which the command chooses."""
    for path in paths:
        if path.split(".")[0] == "fold":
            raise InputError(f"{option} {path}: tune does not take this field; use --folds")


def _list_seeds_and_folds(seeds: Sequence[int], folds: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield seeds and folds in the order of their runs."""
    for seed in seeds:
        for held_out in range(folds):
            yield seed, {"number": folds, "held_out": held_out}


def _prepare_candidates(
    loader: Loader,
    candidates: Sequence[Combination],
    unresolved: dict[str, Experiment],
    seeds_and_folds: Sequence[tuple[int, dict[str, int]]],
    overrides: dict[str, int],
) -> tuple[dict[str, list[Prepared]], dict[str, InputError]]:
    """Prepare the runs of every candidate; skip invalid ones, and raise if all are invalid."""

    def split_folds(whole: Experiment) -> list[Experiment]:
        return [
            whole.model_copy(update={"seed": seed, "fold": fold, **overrides})
            for seed, fold in seeds_and_folds
        ]

    for fold in split_folds(unresolved[candidates[0].label]):
        loader.load(fold)  # an error in the data must not count against a candidate
    accepted: dict[str, list[Prepared]] = {}
    rejected: dict[str, InputError] = {}
    for label, whole in unresolved.items():
        try:
            loader.prepare(whole)
            accepted[label] = [loader.prepare(fold) for fold in split_folds(whole)]
        except InputError as error:
            rejected[label] = error
    if not accepted:
        raise candidates[0].locate_error(rejected[candidates[0].label])
    for label, reason in rejected.items():
        console.print_remark(f"warning: {label} is skipped; {reason}")
    return accepted, rejected


def _train_candidates(
    session: TrainingSession, ready: Sequence[Prepared], labels: Sequence[str], fields: str
) -> dict[str, list[RunOutcome]]:
    """Train every candidate and return its outcomes; a diverged candidate is reported once."""
    outcomes = train_outcomes(session, ready, list(labels) * (len(ready) // len(labels)), fields)
    by_label = {
        label: [outcomes[place] for place in range(first, len(ready), len(labels))]
        for first, label in enumerate(labels)
    }
    for label, runs in by_label.items():
        reason = next((run for run in runs if isinstance(run, DivergedError)), None)
        if reason is not None:
            console.print_remark(f"note: {label}: {reason}")
    return by_label
