"""Options that several commands share."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.cli.completion import complete_names, complete_run
from fedlap.cli.names import (
    ALGORITHM_NAMES,
    DATA_NAMES,
    GRAPH_NAMES,
    METRIC_NAMES,
    MODEL_NAMES,
    PARTITION_NAMES,
    TRACKER_NAMES,
)
from fedlap.cli.table_options import TABLE_OPTIONS

Options = dict[str, tuple[Any, Any]]  # name: annotation and default

# Headings of `--help`, in the order in which most commands show them.
METHOD_PANEL = "Method"
DATA_PANEL = "Data"
GRAPH_PANEL = "Graph"
TRAINING_PANEL = "Training"
FIELDS_PANEL = "Any field"
OUTPUT_PANEL = "Output"
CHECKPOINT_PANEL = "Checkpoints"

RunFolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run, or its name in --out.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
RunsFolderOption = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder that contains the runs.", rich_help_panel=OUTPUT_PANEL)
]
AlgorithmOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"Algorithm: {', '.join(ALGORITHM_NAMES)}.",
        rich_help_panel=METHOD_PANEL,
        autocompletion=complete_names(ALGORITHM_NAMES),
    ),
]
SeedsOption = Annotated[
    str,
    typer.Option(
        metavar="LIST", help="Random seeds, one run each, e.g. 0-4 or 0,3,7.", rich_help_panel=TRAINING_PANEL
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of CPU threads. Default: $OMP_NUM_THREADS, or one per available physical core.",
        min=1,
        rich_help_panel=TRAINING_PANEL,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", metavar="", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT_PANEL
    ),
]

DATA_OPTIONS: Options = {
    "data": (
        Annotated[
            str,
            typer.Option(
                metavar="NAME",
                help="Data set, or your own .csv, .parquet or .npz file. "
                f"Data sets: {', '.join(DATA_NAMES)}.",
                rich_help_panel=DATA_PANEL,
                autocompletion=complete_names(DATA_NAMES),
            ),
        ],
        "digits",
    ),
}
CLIENT_OPTIONS: Options = {
    "client": (
        Annotated[
            str | None,
            typer.Option(
                metavar="COLUMN",
                help="Column of your file that names the client. Several (a,b) are joined by ' / '.",
                rich_help_panel=DATA_PANEL,
            ),
        ],
        None,
    ),
    "label": (
        Annotated[
            str | None,
            typer.Option(
                metavar="COLUMN", help="Column of your file to predict.", rich_help_panel=DATA_PANEL
            ),
        ],
        None,
    ),
    "test": (
        Annotated[
            str | None,
            typer.Option(
                metavar="FILE",
                help="Separate file of test rows. Default: split your file.",
                rich_help_panel=DATA_PANEL,
            ),
        ],
        None,
    ),
    "drop": (
        Annotated[
            list[str] | None,
            typer.Option(metavar="COLUMN", help="Column to ignore (repeatable).", rich_help_panel=DATA_PANEL),
        ],
        None,
    ),
    "partition": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help=f"Partition of rows among clients: {', '.join(PARTITION_NAMES)}. "
                "Default: depends on the data set.",
                rich_help_panel=DATA_PANEL,
                autocompletion=complete_names(PARTITION_NAMES),
            ),
        ],
        None,
    ),
    "scarce": (
        Annotated[
            bool,
            typer.Option(
                "--scarce",
                metavar="",
                help="Cut half of the clients to a fifth of their training rows.",
                rich_help_panel=DATA_PANEL,
            ),
        ],
        False,
    ),
    **TABLE_OPTIONS,
}


def build_graph_option(more: str = "") -> tuple[Any, Any]:
    """Return the option of the graph; `more` is added to its help."""
    option = typer.Option(
        metavar="NAME",
        help=f"Graph over clients, or a graph file. Graphs: {', '.join(GRAPH_NAMES)} (comes with the data). "
        f"Files: edges (.csv) or weights (.npz, .mtx, .npy).{more}",
        rich_help_panel=GRAPH_PANEL,
        autocompletion=complete_names(GRAPH_NAMES),
    )
    return Annotated[str, option], "complete"


TRAINING_OPTIONS: Options = {
    "model": (
        Annotated[
            str,
            typer.Option(
                metavar="NAME",
                help=f"Model: {', '.join(MODEL_NAMES)}.",
                rich_help_panel=METHOD_PANEL,
                autocompletion=complete_names(MODEL_NAMES),
            ),
        ],
        "linear",
    ),
    "graph": build_graph_option(),
    "rounds": (
        Annotated[
            int,
            typer.Option(metavar="N", help="Number of communication rounds.", rich_help_panel=TRAINING_PANEL),
        ],
        100,
    ),
    "batch": (
        Annotated[
            str,
            typer.Option(
                metavar="N", help="Mini-batch size in rows, or 'all'.", rich_help_panel=TRAINING_PANEL
            ),
        ],
        "20",
    ),
    "sample": (
        Annotated[
            float,
            typer.Option(
                metavar="FRACTION",
                help="Fraction of clients sampled per round, in (0, 1].",
                rich_help_panel=TRAINING_PANEL,
            ),
        ],
        1.0,
    ),
    "evaluate_every": (
        Annotated[
            str,
            typer.Option(
                metavar="N",
                help="Score every N rounds; 0: the last only; auto: in less time than training takes.",
                rich_help_panel=TRAINING_PANEL,
            ),
        ],
        "auto",
    ),
    "score_training": (
        Annotated[
            str,
            typer.Option(
                metavar="WHEN",
                help="Rounds that score training rows: never, last or always.",
                rich_help_panel=TRAINING_PANEL,
            ),
        ],
        "last",
    ),
    "lr": (
        Annotated[
            float | None,
            typer.Option(
                metavar="LR",
                help="Learning rate of local steps. Default: depends on the algorithm.",
                rich_help_panel=METHOD_PANEL,
            ),
        ],
        None,
    ),
    "local_steps": (
        Annotated[
            int | None,
            typer.Option(
                metavar="N",
                help="Mini-batch steps per client and round. Default: 5.",
                rich_help_panel=METHOD_PANEL,
            ),
        ],
        None,
    ),
    "local_epochs": (
        Annotated[
            int | None,
            typer.Option(
                metavar="N",
                help="Epochs per client and round, instead of --local-steps.",
                rich_help_panel=METHOD_PANEL,
            ),
        ],
        None,
    ),
    "strength": (
        Annotated[
            str | None,
            typer.Option(
                metavar="STRENGTH",
                help="Coupling strength η between neighbours; 'auto' cross-validates it on training rows. "
                "Default: 40/(n·ρ) for n rows per client, or less if that is unstable.",
                rich_help_panel=GRAPH_PANEL,
            ),
        ],
        None,
    ),
    "device": (
        Annotated[
            str,
            typer.Option(
                metavar="DEVICE", help="Device: cpu, cuda, cuda:1 and so on.", rich_help_panel=TRAINING_PANEL
            ),
        ],
        "cpu",
    ),
    "threads": (ThreadsOption, None),
}
SEED_OPTIONS: Options = {
    "seed": (
        Annotated[
            int,
            typer.Option(
                metavar="N",
                help="Random seed. The same seed gives the same numbers.",
                rich_help_panel=TRAINING_PANEL,
            ),
        ],
        0,
    ),
}
MetricOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Metric to show and rank by: {', '.join(METRIC_NAMES)}. "
        "Default: accuracy for classes, rmse for real targets.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
RESULT_OPTIONS: Options = {
    "set": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="FIELD=VALUE",
                help="Set any field of the experiment (repeatable), e.g. --set algorithm.strength=0.02.",
                rich_help_panel=FIELDS_PANEL,
            ),
        ],
        None,
    ),
    "out": (
        Annotated[
            Path,
            typer.Option(metavar="FOLDER", help="Folder for runs and results.", rich_help_panel=OUTPUT_PANEL),
        ],
        Path("runs"),
    ),
    "metric": (MetricOption, None),
    "json": (JsonOption, False),
}
CHECKPOINT_OPTIONS: Options = {
    "again": (
        Annotated[
            bool,
            typer.Option(
                "--again",
                metavar="",
                help="Force a rerun. By default, finished runs are loaded and interrupted runs resume.",
                rich_help_panel=CHECKPOINT_PANEL,
            ),
        ],
        False,
    ),
    "track": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAMES",
                help=f"Log scores to these trackers (comma-separated): {', '.join(TRACKER_NAMES)}.",
                rich_help_panel=OUTPUT_PANEL,
            ),
        ],
        None,
    ),
    "save_rounds": (
        Annotated[
            int | None,
            typer.Option(
                metavar="N",
                help="Write a checkpoint every N rounds.",
                min=1,
                rich_help_panel=CHECKPOINT_PANEL,
            ),
        ],
        None,
    ),
    "save_seconds": (
        Annotated[
            float,
            typer.Option(
                metavar="N",
                help="Write a checkpoint every N seconds, using at most about 2 % of the time.",
                rich_help_panel=CHECKPOINT_PANEL,
            ),
        ],
        30.0,
    ),
}


def add_options(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds these options to a command, which receives them as keyword arguments."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for group in groups
            for name, (annotation, default) in group.items()
        ]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*parameters, *shared]
        )
        return command

    return decorate
