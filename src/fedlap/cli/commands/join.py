"""The command that trains a client after a run: join."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import (
    DATA_PANEL,
    GRAPH_PANEL,
    OUTPUT_PANEL,
    TRAINING_PANEL,
    JsonOption,
    RunFolderArgument,
    RunsFolderOption,
)


def join_command(
    run: RunFolderArgument,
    data: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="File of the client's unscaled rows: .csv, .parquet or .npz.",
            show_default=False,
        ),
    ],
    neighbours: Annotated[
        list[str],
        typer.Option(
            metavar="NAMES",
            help="Neighbours (comma-separated), each NAME or NAME=WEIGHT, e.g. north,south=0.5. "
            "Default weight: 1.",
            rich_help_panel=GRAPH_PANEL,
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the new client.", rich_help_panel=DATA_PANEL)
    ] = "new",
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column to predict. Default: the label column of training.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    test_share: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of the rows to hold out and to score the model on.",
            min=0,
            max=0.99,
            rich_help_panel=DATA_PANEL,
        ),
    ] = 0.0,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", help="Rounds of local work on the rows.", min=0, rich_help_panel=TRAINING_PANEL
        ),
    ] = 5,
    batch: Annotated[
        str,
        typer.Option(metavar="N", help="Rows per mini-batch, or 'all'.", rich_help_panel=TRAINING_PANEL),
    ] = "20",
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Step size. Default: that of the run.", rich_help_panel=TRAINING_PANEL
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", help="Random seed of batches and held-out rows.", rich_help_panel=TRAINING_PANEL
        ),
    ] = 0,
    to: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Model file to write. Its description goes into a .json file of the same name.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = Path("model.safetensors"),
    out: RunsFolderOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Train a model for a client that was not part of a run.

    The model starts at the weighted mean of the neighbours' models and takes local steps on the client's
    rows. If the method of the run mixes over a graph, it is pulled towards the neighbours, too. No other
    model changes. `fedlap predict` takes the file.

    Example: fedlap join runs/radon-fedu-0123456789abcdef new.csv --name new --neighbours Aitkin,Cass
    """
    from fedlap.cli.join import train_newcomer

    settings = {"rounds": rounds, "batch": batch, "lr": lr, "seed": seed, "name": name}
    train_newcomer(run, data, neighbours, label, test_share, settings, to, out, as_json)
