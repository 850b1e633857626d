"""Commands on stored runs: runs, show, report, export and predict."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import DATA_PANEL, OUTPUT_PANEL, JsonOption, RunFolderArgument, RunsFolderOption

MODEL_PANEL = "Model"


def runs_command(
    out: RunsFolderOption = Path("runs"),
    json_: Annotated[
        bool,
        typer.Option(
            "--json", metavar="", help="Print one JSON object per run.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
) -> None:
    """List stored runs with state, rounds and scores."""
    from fedlap.cli.runs import list_runs

    list_runs(out, json_)


def show_command(
    run: RunFolderArgument,
    out: RunsFolderOption = Path("runs"),
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all scores to this .csv or .parquet file.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Show the scores of a run, finished or not."""
    from fedlap.cli.runs import show_run

    show_run(run, out, to, json_)


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, or one folder of compare, sweep or tune.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the page. Default: `report` in the first RUN.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    open_: Annotated[
        bool,
        typer.Option("--open", metavar="", help="Open the page in a browser.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
) -> None:
    """Write a self-contained HTML page of results.

    The page shows tables, curves, clients, the graph and settings. The folder also gets the tables as .md,
    .csv and .tex and the figures as .png and .pdf.
    """
    from fedlap.cli.report import write_report

    write_report(runs, out, open_)


def export_command(
    run: RunFolderArgument,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Client whose model is exported.", show_default=False)
    ],
    to: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Model file to write. Its description goes into a .json file of the same name.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = Path("model.safetensors"),
    out: RunsFolderOption = Path("runs"),
) -> None:
    """Export one client's model to a .safetensors file.

    The .safetensors and .json files contain everything that `fedlap predict` needs.
    """
    from fedlap.cli.export import export_model

    export_model(run, client, to, out)


def predict_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a run, its name in --out, or a .safetensors model.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="File of unscaled rows: .csv, .parquet or .npz.", show_default=False
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Client whose model predicts.", rich_help_panel=MODEL_PANEL),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column that names the client whose model predicts the row.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of true labels, to score predictions. Default: the label column of training.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    identifier: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column that identifies rows in the output. Default: the row number, from 1.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            metavar="",
            help="Write the probability of every class.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file to write predictions to, instead of stdout.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    out: RunsFolderOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Predict rows with trained models.

    The output has the row, the client, the prediction and, for classes, its probability. If the rows have
    true labels or values, the accuracy or the loss is printed too.
    """
    from fedlap.cli.predict import predict_file

    predict_file(model, data, client, by, label, identifier, probabilities, to, out, as_json)
