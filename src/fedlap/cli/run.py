"""The command that trains one algorithm: run."""

from pathlib import Path
from typing import Any

import typer

from fedlap.cli.arguments import (
    assign,
    describe_experiment,
    select_method_settings,
)
from fedlap.cli.cluster_options import CLUSTER_OPTIONS
from fedlap.cli.options import (
    CHECKPOINT_OPTIONS,
    RESULT_OPTIONS,
)
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import (
    print_data_remarks,
    print_default_strengths,
    print_intervals,
    print_run,
    start_session,
)
from fedlap.comparisons.training import train_outcomes
from fedlap.errors import DivergedError, InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from fedlap.experiments.run_folder import RunFolder, create_out_folder, read_experiment
from fedlap.training.metrics import check_metric
from fedlap.training.shards.cluster import use_workers

# Options that may be combined with an experiment file, which sets everything else.
OPTIONS_WITH_FILE = {
    "file", "plugin", "rounds", "threads", "set", *CLUSTER_OPTIONS, *RESULT_OPTIONS, *CHECKPOINT_OPTIONS
}  # fmt: skip


def train_one(context: typer.Context, file: Path | None, algorithm: str, options: dict[str, Any]) -> None:
    """Train one algorithm on one data set."""
    use_threads(options["threads"])
    if file is None:
        description = describe_experiment(options)
        description["algorithm"] = {"name": algorithm, **select_method_settings(options)}
    else:
        description = _read_experiment_file(context, file)
    for assignment in options["set"] or []:
        assign(description, assignment)
    create_out_folder(options["out"])
    run_experiment(Experiment.of(description), options)


def _read_experiment_file(context: typer.Context, file: Path) -> dict[str, Any]:
    """Read a description from a file, with the options that may override it."""
    typed = [
        name for name in context.params
        if str(context.get_parameter_source(name)).endswith("COMMANDLINE")
    ]  # fmt: skip
    for name in typed:
        if name not in OPTIONS_WITH_FILE:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: {str(file)!r} already sets this; change the file or use --set")
    description = read_experiment(file).describe()
    return description | ({"rounds": context.params["rounds"]} if "rounds" in typed else {})


def run_experiment(described: Experiment, options: dict[str, Any]) -> None:
    """Train or resume one experiment and print its scores."""
    with use_workers(described.engine, options["workers"], options["address"]):
        _train_and_print(described, options)


def _train_and_print(described: Experiment, options: dict[str, Any]) -> None:
    (ready,) = prepare([described])
    experiment, name = ready.experiment, ready.experiment.algorithm["name"]
    check_metric(options["metric"], ready.federation.labels is not None)
    print_data_remarks([ready])
    print_default_strengths({name: described}, {name: experiment})
    print_intervals({name: described}, {name: experiment})
    (scores,) = train_outcomes(start_session(options), [ready], [name])
    if isinstance(scores, DivergedError):
        raise scores
    folder = RunFolder.of(options["out"], experiment)
    print_run(folder, experiment, scores, options["metric"], options["json"])
