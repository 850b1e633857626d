"""The command that trains several algorithms: compare."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import typer

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
from fedlap.cli.task_workers import open_workers
from fedlap.cli.train_runs import (
    print_data_remarks,
    print_default_strengths,
    print_intervals,
    print_ranking,
    start_session,
)
from fedlap.comparisons.advice import advise
from fedlap.comparisons.compare import find_controls, label_row
from fedlap.comparisons.graphs import RowGraph, list_graphs
from fedlap.comparisons.prepared_rows import PreparedRows
from fedlap.comparisons.rows import DescribedRow
from fedlap.comparisons.run_rows import run_rows
from fedlap.comparisons.tuning import FOLDS, RowTuning
from fedlap.errors import InputError, UnsuitedError
from fedlap.experiments.experiment import SHUFFLED, Experiment, has_graph
from fedlap.experiments.prepare import Loader
from fedlap.experiments.settings import inspect_settings
from fedlap.graph import BUILDER_INPUTS, GRAPHS
from fedlap.report.comparison import Comparison, OutcomesByRow


def compare_algorithms(
    context: typer.Context, algorithms: str, seeds: str, tune: bool, options: dict[str, Any]
) -> None:
    """Train several algorithms and rank them."""
    workers = open_workers(context, options["workers"], options["address"], options["threads"])
    numbers = parse_seeds(seeds)
    graphs = list_graphs(options["graph"])
    loader = Loader()
    rows = [
        DescribedRow(label, Experiment.of({**description, "seed": numbers[0]}), loader, fixed)
        for label, (description, fixed) in _describe_rows(
            parse_algorithms(algorithms), graphs, options
        ).items()
    ]
    controls = find_controls([row.label for row in rows], graphs)
    session = start_session(options, workers)

    def build_table(title: str, outcomes: OutcomesByRow, source: str) -> Comparison:
        return Comparison(title, numbers, outcomes, source, controls=controls)

    def print_remarks(prepared: PreparedRows) -> None:
        print_data_remarks(prepared.ready)
        described = {row.label: row.experiment for row in rows}
        resolved = {row.label: prepared.runs_of(row.label)[0].experiment for row in prepared.rows}
        if not tune:
            print_default_strengths(described, resolved)
        print_intervals(described, resolved)

    result = run_rows(
        rows,
        numbers,
        session,
        build_table,
        metric=options["metric"],
        folds=FOLDS if tune else None,
        on_ready=print_remarks,
        on_tuned=_print_tuning,
        on_skip=_print_skipped if algorithms == "all" else None,
    )
    advice = advise(result.comparison, result.runs, tune, partial(_format_option, session.command))
    print_ranking(replace(result, advice=advice), options["json"])


def _print_tuning(tuning: RowTuning) -> None:
    console.print_remark(f"note: {tuning.describe_rule()}")
    for label in tuning.values:
        console.print_remark(f"{label}: {tuning.describe_values(label)}")


def _print_skipped(label: str, error: UnsuitedError) -> None:
    console.print_remark(f"warning: {label} is skipped; {error}")


def _format_option(command: str, name: str, value: Any) -> str:
    """Return what to type: the whole command with --tune, or another option and its value."""
    return f"`{command} --tune`" if name == "tune" else f"--{name} {value}"


def _describe_rows(
    names: list[str], graphs: Sequence[RowGraph], options: dict[str, Any]
) -> dict[str, tuple[dict[str, Any], frozenset[str]]]:
    """Describe an experiment per algorithm and graph, and name the settings that were set.

    A setting goes to every algorithm, or every graph, that has it.
    """
    settings, common = select_method_settings(options), describe_experiment({**options, "graph": None})
    sections = {graph.label: dict(graph.section or {}) for graph in graphs}
    for assignment in options["set"] or []:
        path, value = parse_assignment(assignment)
        if path.startswith("algorithm."):
            settings[path.removeprefix("algorithm.")] = value
        elif path in ("algorithm", "seed"):
            raise InputError(f"--set {assignment}: compare does not take this field; use --{path}s")
        elif path.split(".")[0] == "graph":
            _assign_graph(sections, path, assignment)
        else:
            assign(common, assignment)
    shared = distribute_settings(names, settings)
    return {
        label_row(name, graph, graphs): (
            {
                **common,
                "algorithm": {"name": name, **shared[name]},
                **({} if graph is None else {"graph": sections[graph.label]}),
            },
            frozenset(shared[name]),
        )
        for name in names
        for graph in (graphs if has_graph(name) else [None])
    }


def _assign_graph(sections: dict[str, dict[str, Any]], path: str, assignment: str) -> None:
    """Set a field of every graph that has it; if none has it, of all, so that the error names it."""
    setting = path.partition(".")[2]
    owners = [
        label
        for label, section in sections.items()
        if setting in (SHUFFLED, *inspect_settings(GRAPHS.get(section["name"], lambda: None), BUILDER_INPUTS))
    ]
    for label in owners or sections:
        description = {"graph": sections[label]}
        assign(description, assignment)
        sections[label] = description["graph"]
