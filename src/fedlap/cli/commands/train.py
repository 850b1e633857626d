"""Commands that train: run, compare, sweep, tune and resume."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.cli.cluster_options import CLUSTER_OPTIONS, ENGINE_OPTIONS, STACK_WORKER_OPTIONS
from fedlap.cli.completion import complete_names
from fedlap.cli.names import ALGORITHM_NAMES
from fedlap.cli.options import (
    CHECKPOINT_OPTIONS,
    CHECKPOINT_PANEL,
    CLIENT_OPTIONS,
    DATA_OPTIONS,
    FIELDS_PANEL,
    METHOD_PANEL,
    RESULT_OPTIONS,
    SEED_OPTIONS,
    TRAINING_OPTIONS,
    TRAINING_PANEL,
    AlgorithmOption,
    Options,
    RunFolderArgument,
    SeedsOption,
    ThreadsOption,
    add_options,
    build_graph_option,
)

COMPARISON_OPTIONS: Options = TRAINING_OPTIONS | {
    "graph": build_graph_option(
        " Several make a row each; 'shuffled' permutes the names of the one before, as in known,shuffled."
    )
}
RESUME_OPTIONS: Options = {
    **CHECKPOINT_OPTIONS,
    "again": (
        Annotated[
            bool,
            typer.Option(
                "--again",
                metavar="",
                help="Train from round 0 instead of resuming.",
                rich_help_panel=CHECKPOINT_PANEL,
            ),
        ],
        False,
    ),
}


@add_options(
    DATA_OPTIONS, CLIENT_OPTIONS, TRAINING_OPTIONS, SEED_OPTIONS, ENGINE_OPTIONS, RESULT_OPTIONS,
    CHECKPOINT_OPTIONS,
)  # fmt: skip
def run_command(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Experiment file (.toml), instead of options."),
    ] = None,
    algorithm: AlgorithmOption = "fedu",
    **options: Any,
) -> None:
    """Train one algorithm on one data set.

    Scores, checkpoints and models are stored in a folder in --out. Finished runs are loaded, interrupted runs
    resume, and --again forces a rerun.

    Example: fedlap run --data digits --algorithm fedu --graph similar --rounds 50
    """
    from fedlap.cli.run import train_one

    train_one(context, file, algorithm, options)


@add_options(
    DATA_OPTIONS, CLIENT_OPTIONS, COMPARISON_OPTIONS, STACK_WORKER_OPTIONS, RESULT_OPTIONS, CHECKPOINT_OPTIONS
)
def compare_command(
    context: typer.Context,
    algorithms: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help=f"Algorithms (comma-separated), or 'all': {', '.join(ALGORITHM_NAMES)}.",
            rich_help_panel=METHOD_PANEL,
            autocompletion=complete_names(ALGORITHM_NAMES),
        ),
    ] = "fedu,local,global",
    seeds: SeedsOption = "0-4",
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            metavar="",
            help="Choose lr and strength of every algorithm first, by cross-validation on training rows.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = False,
    **options: Any,
) -> None:
    """Train several algorithms and rank them.

    All algorithms start from the same models and see the same clients and batches. Several graphs, as in
    --graph known,shuffled, give one row each. Finished runs are loaded, interrupted runs resume, and --again
    forces a rerun.

    Example: fedlap compare --data digits --algorithms fedu,local,global --seeds 0-4
    """
    from fedlap.cli.compare import compare_algorithms

    compare_algorithms(context, algorithms, seeds, tune, options)


@add_options(
    DATA_OPTIONS, CLIENT_OPTIONS, TRAINING_OPTIONS, STACK_WORKER_OPTIONS, RESULT_OPTIONS, CHECKPOINT_OPTIONS
)
def sweep_command(
    context: typer.Context,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUES",
            help="Field and its values, e.g. strength=0,0.01,0.1 or model.hidden=[50],[100]. "
            "Repeat it to train all combinations.",
            rich_help_panel=FIELDS_PANEL,
        ),
    ] = None,
    algorithm: AlgorithmOption = "fedu",
    seeds: SeedsOption = "0-4",
    **options: Any,
) -> None:
    """Train every combination of values of any fields.

    Finished runs are loaded, interrupted runs resume, and --again forces a rerun.

    Example: fedlap sweep --data digits --vary strength=0,0.01,0.1 --seeds 0-2
    """
    from fedlap.cli.sweep import sweep_values

    sweep_values(context, vary, algorithm, seeds, options)


@add_options(
    DATA_OPTIONS, CLIENT_OPTIONS, TRAINING_OPTIONS, STACK_WORKER_OPTIONS, RESULT_OPTIONS, CHECKPOINT_OPTIONS
)
def tune_command(
    context: typer.Context,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUES",
            help="Field and its values, e.g. strength=0.001,0.01,0.1. Repeat it to try all combinations. "
            "Default: learning rates and, for methods with a graph, strengths up to the largest stable one.",
            rich_help_panel=FIELDS_PANEL,
        ),
    ] = None,
    algorithm: AlgorithmOption = "fedu",
    folds: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Number of cross-validation folds.",
            min=2,
            max=1000,
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = 5,
    seeds: SeedsOption = "0",
    **options: Any,
) -> None:
    """Select settings by cross-validation on training rows.

    Test rows are never used. Invalid candidates are skipped with a warning; diverged candidates are never
    selected.

    Example: fedlap tune --data digits --algorithm fedu --vary strength=0.001,0.01,0.1
    """
    from fedlap.cli.tune import tune_settings

    tune_settings(context, vary, algorithm, folds, seeds, options)


@add_options(
    CLUSTER_OPTIONS, {name: RESULT_OPTIONS[name] for name in ("out", "metric", "json")}, RESUME_OPTIONS
)
def resume_command(
    run: RunFolderArgument,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Total number of rounds. Default: as in the run.",
            min=1,
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    threads: ThreadsOption = None,
    **options: Any,
) -> None:
    """Resume a run from its last checkpoint.

    The numbers are those of a run that was never interrupted.

    Example: fedlap resume runs/digits-fedu-0123456789abcdef --rounds 200
    """
    from fedlap.cli.runs import resume_run

    resume_run(run, rounds, threads, options)
