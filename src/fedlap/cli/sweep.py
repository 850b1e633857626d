"""The command that trains over lists of values: sweep."""

from collections.abc import Sequence
from typing import Any

from fedlap.cli.arguments import (
    assign,
    describe_experiment,
    parse_algorithms,
    parse_assignment,
    parse_seeds,
    select_method_settings,
)
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import (
    describe_folders,
    finish_comparison,
    print_data_remarks,
    print_default_strengths,
    train_by_label,
)
from fedlap.cli.vary import Combination, list_combinations
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared, prepare
from fedlap.experiments.run_folder import choose_group_folder, create_out_folder
from fedlap.report import Sweep, draw_sweep
from fedlap.storage.files import write_file


def sweep_values(vary: list[str] | None, algorithm: str, seeds: str, options: dict[str, Any]) -> None:
    """Train every combination of values of any fields."""
    use_threads(options["threads"])
    numbers, common = parse_seeds(seeds), describe_common_fields("sweep", algorithm, options)
    (name,) = parse_algorithms(str(common["algorithm"]["name"]))
    combinations = list_combinations(vary or [], name)
    unresolved = build_experiments("sweep", combinations, common, numbers[0])
    create_out_folder(options["out"])
    # Runs are prepared seed by seed, so that a mistake is found before much data are loaded.
    ready = _prepare_runs(
        combinations * len(numbers),
        [_with_seed(experiment, seed) for seed in numbers for experiment in unresolved.values()],
    )
    experiments, labels = [run.experiment for run in ready], list(unresolved) * len(numbers)
    print_data_remarks(ready[0])
    print_default_strengths(unresolved, dict(zip(unresolved, experiments, strict=False)))
    fields = tuple(field.name for field in combinations[0].fields)
    sweep = Sweep(
        experiments[0].title,
        numbers,
        train_by_label(options, ready, labels, " × ".join(fields)),
        experiments[0].data["name"],
        fields,
        {combination.label: combination.values for combination in combinations},
        tuple(dict.fromkeys(experiment.algorithm["name"] for experiment in experiments)),
    )
    folder = choose_group_folder(options["out"], experiments, "sweep")
    write_file(folder / "sweep.png", draw_sweep(sweep))
    finish_comparison(
        sweep,
        folder / "sweep.json",
        "Table and figure",
        options["json"],
        describe_folders(options["out"], ready, labels),
    )


def describe_common_fields(command: str, algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Describe the fields that all runs share."""
    common = describe_experiment(options)
    common["algorithm"] = {"name": algorithm, **select_method_settings(options)}
    for assignment in options["set"] or []:
        if parse_assignment(assignment)[0] == "seed":
            raise InputError(f"--set {assignment}: {command} does not take this field; use --seeds")
        assign(common, assignment)
    return common


def _with_seed(experiment: Experiment, seed: int) -> Experiment:
    return experiment.model_copy(update={"seed": seed})


def build_experiments(
    command: str, combinations: Sequence[Combination], common: dict[str, Any], seed: int
) -> dict[str, Experiment]:
    """Build an experiment per combination; raise if two are equal, since a field is then unused."""
    unresolved: dict[str, Experiment] = {}
    for combination in combinations:
        experiment = combination.build_experiment(common, seed)
        for label, other in unresolved.items():
            if experiment == other:
                raise InputError(
                    f"{command}: {label} and {combination.label} are the same run, since "
                    f"{experiment.algorithm['name']} does not use this field; vary another field"
                )
        unresolved[combination.label] = experiment
    return unresolved


def _prepare_runs(combinations: list[Combination], planned: list[Experiment]) -> list[Prepared]:
    """Check and prepare every run before the first is trained; an error names its values."""
    ready: list[Prepared] = []
    try:
        for run in prepare(planned):
            ready.append(run)
    except InputError as error:
        raise combinations[len(ready)].locate_error(error) from None
    check_same_task("sweep", ready)
    return ready


def check_same_task(command: str, ready: Sequence[Prepared]) -> None:
    """Raise if classification and regression runs would be ranked together."""
    if len({run.federation.labels is None for run in ready}) > 1:
        raise InputError(
            f"{command}: some runs are scored by accuracy and others by loss, so they cannot be ranked; "
            f"{command} every task separately"
        )
