"""The command that trains over lists of values: sweep."""

from typing import Any

import typer

from fedlap.cli.arguments import (
    assign,
    describe_experiment,
    parse_algorithms,
    parse_assignment,
    parse_seeds,
    select_method_settings,
)
from fedlap.cli.task_workers import open_workers
from fedlap.cli.train_runs import (
    print_data_remarks,
    print_default_strengths,
    print_intervals,
    print_ranking,
    start_session,
)
from fedlap.cli.vary import list_combinations
from fedlap.comparisons.prepared_rows import PreparedRows
from fedlap.comparisons.run_rows import run_rows
from fedlap.comparisons.sweep import build_rows, build_sweep_table
from fedlap.errors import InputError
from fedlap.experiments.prepare import Loader


def sweep_values(
    context: typer.Context, vary: list[str] | None, algorithm: str, seeds: str, options: dict[str, Any]
) -> None:
    """Train every combination of values of any fields."""
    workers = open_workers(context, options["workers"], options["address"], options["threads"])
    numbers, common = parse_seeds(seeds), describe_common_fields("sweep", algorithm, options)
    (name,) = parse_algorithms(str(common["algorithm"]["name"]))
    combinations = list_combinations(vary or [], name)
    rows = build_rows("sweep", combinations, common, numbers[0], Loader())
    algorithms = tuple(dict.fromkeys(row.experiment.algorithm["name"] for row in rows))

    def print_remarks(prepared: PreparedRows) -> None:
        print_data_remarks(prepared.ready)
        resolved = {row.label: run.experiment for row, run in zip(rows, prepared.ready, strict=False)}
        described = {row.label: row.experiment for row in rows}
        print_default_strengths(described, resolved)
        print_intervals(described, resolved)

    result = run_rows(
        rows,
        numbers,
        start_session(options, workers),
        build_sweep_table(combinations, numbers, algorithms),
        metric=options["metric"],
        fields=" × ".join(field.name for field in combinations[0].fields),
        on_ready=print_remarks,
    )
    print_ranking(result, options["json"])


def describe_common_fields(command: str, algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Describe the fields that all runs share."""
    common = describe_experiment(options)
    common["algorithm"] = {"name": algorithm, **select_method_settings(options)}
    for assignment in options["set"] or []:
        if parse_assignment(assignment)[0] == "seed":
            raise InputError(f"--set {assignment}: {command} does not take this field; use --seeds")
        assign(common, assignment)
    return common
