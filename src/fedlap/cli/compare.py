"""The command that trains several algorithms: compare."""

from collections.abc import Sequence
from typing import Any

from fedlap.cli import console
from fedlap.cli.arguments import (
    assign,
    describe_experiment,
    distribute_settings,
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
from fedlap.errors import InputError, UnsuitedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Prepared, prepare
from fedlap.experiments.run_folder import choose_group_folder, create_out_folder
from fedlap.report import Comparison, draw_curves
from fedlap.storage.files import write_file


def compare_algorithms(algorithms: str, seeds: str, options: dict[str, Any]) -> None:
    """Train several algorithms and rank them."""
    use_threads(options["threads"])
    numbers = parse_seeds(seeds)
    unresolved = {
        name: Experiment.of({**description, "seed": numbers[0]})
        for name, description in _describe_experiments(parse_algorithms(algorithms), options).items()
    }
    create_out_folder(options["out"])
    planned = [
        experiment.model_copy(update={"seed": seed}) for seed in numbers for experiment in unresolved.values()
    ]
    ready = _prepare_runs(planned, skip_unsuited=algorithms == "all")
    experiments = [run.experiment for run in ready]
    labels = [experiment.algorithm["name"] for experiment in experiments]
    first = dict.fromkeys(labels)
    print_data_remarks(ready[0])
    print_default_strengths(unresolved, dict(zip(first, experiments, strict=False)))
    title, source = experiments[0].title, experiments[0].data["name"]
    comparison = Comparison(title, numbers, train_by_label(options, ready, labels), source)
    folder = choose_group_folder(options["out"], experiments, "compare")
    write_file(folder / "curves.png", draw_curves(comparison))
    finish_comparison(
        comparison,
        folder / "comparison.json",
        "Table and figure",
        options["json"],
        describe_folders(options["out"], ready, labels),
    )


def _describe_experiments(names: list[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Describe an experiment per algorithm; a setting goes to every algorithm that has it."""
    settings, common = select_method_settings(options), describe_experiment(options)
    for assignment in options["set"] or []:
        path, value = parse_assignment(assignment)
        if path.startswith("algorithm."):
            settings[path.removeprefix("algorithm.")] = value
        elif path in ("algorithm", "seed"):
            raise InputError(f"--set {assignment}: compare does not take this field; use --{path}s")
        else:
            assign(common, assignment)
    shared = distribute_settings(names, settings)
    return {name: {**common, "algorithm": {"name": name, **shared[name]}} for name in names}


def _prepare_runs(planned: Sequence[Experiment], skip_unsuited: bool) -> list[Prepared]:
    """Check and prepare every run before the first is trained; optionally skip unsuited algorithms."""
    ready: list[Prepared] = []
    try:
        for run in prepare(planned):
            ready.append(run)
    except UnsuitedError as error:
        name = planned[len(ready)].algorithm["name"]
        rest = [experiment for experiment in planned if experiment.algorithm["name"] != name]
        if not skip_unsuited or not rest:
            raise
        console.print_remark(f"warning: {name} is skipped; {error}")
        return _prepare_runs(rest, skip_unsuited)
    return ready
