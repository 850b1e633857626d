"""Commands on stored runs: runs, rm, show, clients, report, export and predict."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedlap.cli.names import METRIC_NAMES
from fedlap.cli.options import (
    DATA_PANEL,
    OUTPUT_PANEL,
    JsonOption,
    MetricOption,
    RunFolderArgument,
    RunsFolderOption,
)
from fedlap.cli.table_options import DecimalOption, SeparatorOption

MODEL_PANEL = "Model"
FILTER_PANEL = "Filter"


def runs_command(
    unfold: Annotated[
        bool,
        typer.Option(
            "--all",
            metavar="",
            help="List the runs of comparisons, sweeps and tunings, too.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only runs on this data set.", rich_help_panel=FILTER_PANEL),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only runs of this algorithm.", rich_help_panel=FILTER_PANEL),
    ] = None,
    state: Annotated[
        Literal["done", "unfinished", "diverged", "damaged"] | None,
        typer.Option(
            metavar="STATE",
            help="Only runs in this state: done, unfinished, diverged or damaged.",
            rich_help_panel=FILTER_PANEL,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Only runs trained since a date (UTC) or an age, e.g. 2026-01-31 or 7d.",
            rich_help_panel=FILTER_PANEL,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Metric to show and sort by: {', '.join(METRIC_NAMES)}. Default: newest first.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    out: RunsFolderOption = Path("runs"),
    json_: Annotated[
        bool,
        typer.Option(
            "--json",
            metavar="",
            help="Print one JSON object per run and per group.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
) -> None:
    """List stored runs, newest first, or best first with --metric.

    A comparison, sweep or tuning is one line, with the score of its best row. The digits in the first column
    name a run or group in other commands, e.g. `fedlap show`. Settings are those in which the listed runs of
    one method differ. The date is that of the last score.

    Example: fedlap runs --data digits
    """
    from fedlap.cli.run_list import RunFilter, parse_since, print_runs

    print_runs(out, unfold, RunFilter(data, algorithm, state, parse_since(since)), metric, json_)


def rm_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Runs or groups: folders, names in --out, or digits.", show_default=False
        ),
    ],
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", metavar="", help="Delete without asking.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Print what would be deleted.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
    out: RunsFolderOption = Path("runs"),
) -> None:
    """Delete runs, or comparisons, sweeps and tunings with their runs.

    Runs that another group uses stay. Files that fedlap did not write stay, too. A run that is being trained
    is not deleted.

    Example: fedlap rm runs/digits-fedu-0123456789abcdef --dry-run
    """
    from fedlap.cli.remove import remove_runs

    remove_runs(runs, out, yes, dry_run)


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
    metric: MetricOption = None,
    json_: JsonOption = False,
) -> None:
    """Show the scores of a run, finished or not.

    Example: fedlap show runs/digits-fedu-0123456789abcdef
    """
    from fedlap.cli.runs import show_run

    show_run(run, out, to, metric, json_)


def clients_command(
    run: RunFolderArgument,
    out: RunsFolderOption = Path("runs"),
    metric: MetricOption = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column to sort by, e.g. gain.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table to this .csv file.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List each client's rows, scores, gain, neighbours and coefficients.

    The gain compares the client's model with the one that it trains alone; these models are trained and
    stored if they do not exist yet.

    Example: fedlap clients runs/radon-fedu-0123456789abcdef --to clients.csv
    """
    from fedlap.cli.clients import list_clients

    list_clients(run, out, metric, sort, to, json_)


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs or of peers, or one of compare, sweep, tune or serve; or names in runs/.",
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
    metric: MetricOption = None,
    open_: Annotated[
        bool,
        typer.Option("--open", metavar="", help="Open the page in a browser.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
) -> None:
    """Write a self-contained HTML page of results.

    The page shows tables, curves, clients, the graph and settings. The folder also gets the tables as .md,
    .csv and .tex and the figures as .png and .pdf.

    Example: fedlap report runs/digits-compare-0123456789abcdef --open
    """
    from fedlap.cli.report import write_report

    write_report(runs, out, metric, open_)


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

    Example: fedlap export runs/digits-fedu-0123456789abcdef --client 3 --to model.safetensors
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
            help="Column (or columns: a,b) that names the client whose model predicts the row.",
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
    separator: SeparatorOption = None,
    decimal: DecimalOption = None,
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
    true labels or values, the accuracy or the RMSE is printed too.

    Example: fedlap predict runs/digits-fedu-0123456789abcdef rows.csv --client 3
    """
    from fedlap.cli.predict import predict_file

    dialect = separator, decimal
    predict_file(model, data, client, by, label, identifier, dialect, probabilities, to, out, as_json)
